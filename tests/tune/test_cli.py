#!/usr/bin/env python3
"""test_cli.py - the tuning file over real ranks: a file changes what runs, rank 0 alone opens it, a broken one fails the creation on
every rank with words that help, and `abcomm tune` writes what the library reads.

Usage: test_cli.py ABCOMM
"""
import json
import os
import subprocess
import sys
import tempfile

ABCOMM = sys.argv[1]
failures = []


def run(*args, **env):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("ABCOMM_")}
    return subprocess.run([ABCOMM, *args], capture_output=True, text=True, timeout=60, check=False, env={**clean, **env})


def bench(ranks, *args, **env):
    return run("run", "-n", str(ranks), "--", ABCOMM, "bench", "allreduce", "-n", "2", "--json", "-", *args, **env)


def expect(ok, what, detail=""):
    if not ok:
        failures.append(what)
        print(f"FAIL  {what}\n{detail}")


def write(path, value):
    with open(path, "w", encoding="utf-8") as file:
        file.write(value if isinstance(value, str) else json.dumps(value))


def row(**more):
    return {"collective": "allreduce", "ranks": 2, "memory": "private", "from_bytes": 1 << 20, "to_bytes": 2 << 20, "algorithm": "ring",
            "chunk": 65536, **more}


def chosen(done):
    return [(r["algorithm"], r["why"]) for r in json.loads(done.stdout)["rows"]] if done.returncode == 0 else done.stderr


def test_followed(path):
    write(path, {"abcomm_tuning": 1, "rows": [row()]})
    done = bench(2, "-d", "i32", "-b", "256K", "-e", "4M", ABCOMM_TUNING=path)
    got = chosen(done)
    expect(len(got) == 3 and got[1] == ("ring@65536", "file") and got[0][1] == got[2][1] == "price", "a row is followed in its range", got)
    # With 3 ranks a ring would add floats in another order; the file holds for 2 alone.
    write(path, {"abcomm_tuning": 1, "rows": [row(ranks=3, from_bytes=0)]})
    expect(chosen(bench(3, "-e", "8", ABCOMM_TUNING=path))[0][1] == "price", "sums of floats keep their bits")
    expect(chosen(bench(3, "-d", "i32", "-e", "8", ABCOMM_TUNING=path)) == [("ring@65536", "file")], "other sums follow the file")
    expect(chosen(bench(2, "-d", "i32", "-e", "8", ABCOMM_TUNING=path))[0][1] == "price", "rows for other ranks are passed over")
    done = bench(3, "-d", "i32", "-e", "8", ABCOMM_TUNING=path, ABCOMM_ALGO="allreduce:chain@4K")
    expect(chosen(done) == [("chain@4096", "setting")], "a setting wins over the file", done.stderr)
    done = bench(3, "-d", "i32", "-e", "8", "--algo", "twoshot", ABCOMM_TUNING=path)
    expect(chosen(done)[0][0].startswith("twoshot@") and chosen(done)[0][1] == "call", "a call wins over the file", done.stderr)


def test_rank_0_alone(path):
    """The other ranks name a file that is not there; they follow rank 0's."""
    write(path, {"abcomm_tuning": 1, "rows": [row(from_bytes=0)]})
    script = f'test $ABCOMM_RANK = 0 && export ABCOMM_TUNING={path} || export ABCOMM_TUNING=/nowhere; ' \
             f'exec {ABCOMM} bench allreduce -d i32 -b 64 -e 64 -n 2 --json -'
    done = run("run", "-n", "2", "--", "sh", "-c", script)
    expect(chosen(done) == [("ring@65536", "file")], "only rank 0 opens the file", done.stderr)


def test_broken(path):
    for value, words in (("{", "not JSON"), ({}, "no tuning file"), ({"abcomm_tuning": 9, "rows": []}, "version 9"),
                         ({"abcomm_tuning": 1, "rows": [row(algorithm="quickest")]}, "quickest"),
                         ({"abcomm_tuning": 1, "rows": [row(from_bytes=float("nan"))]}, "not JSON")):
        write(path, value)
        done = bench(3, "-e", "8", ABCOMM_TUNING=path)
        expect(done.returncode != 0 and done.stderr.count(words) == 3 and path in done.stderr, f"every rank says: {words}", done.stderr)
    done = bench(2, "-e", "8", ABCOMM_TUNING="/nowhere")
    expect(done.returncode != 0 and done.stderr.count("/nowhere cannot be opened") == 2, "no such file", done.stderr)


def test_tune(path):
    args = ("tune", "--quick", "-b", "64", "-e", "64K", "-f", "32", "--mem", "private", "--margin", "0", "-c")
    done = run(*args, "allreduce,broadcast", "-n", "2,3", "--out", path, "--csv", path + ".csv", ABCOMM_TUNING="/nowhere")
    expect(done.returncode == 0 and "use it with ABCOMM_TUNING=" + path in done.stdout, "tune runs", done.stdout + done.stderr)
    with open(path, encoding="utf-8") as file:
        made = json.load(file)
    expect([job["ranks"] for job in made["machine"]["jobs"]] == [2, 3], "facts of both jobs", str(made["machine"]))
    with open(path + ".csv", encoding="utf-8") as file:
        lines = file.read().splitlines()
    expect(sum(",chosen," in line for line in lines) == 2 * (2 * 3 + 3) and len(lines) > 36, "every candidate is in the CSV", "\n".join(lines))
    made["rows"].append(row(ranks=7))
    write(path, made)
    done = run(*args, "allreduce", "-n", "2", "--out", path)
    with open(path, encoding="utf-8") as file:
        again = json.load(file)
    expect(any(r["ranks"] == 7 for r in again["rows"]), "rows of other ranks stay", str(again))
    expect(chosen(bench(2, "-e", "8", ABCOMM_TUNING=path)), "the library reads what tune writes")
    os.remove(path + ".csv")


def test_refusals(path):
    for args, words in ((["-n", "1"], "-n must be"), (["-n", "2,x"], "'2,x'"), (["-c", "barrier"], "'barrier'"), (["--mem", "gpu"], "'gpu'"),
                        (["-b", "8Q"], "'8Q'"), (["-b", "1M", "-e", "1K"], "less than -b"), (["-f", "1"], "'1'"),
                        (["--margin", "x"], "'x'"), (["--nope"], "'--nope'"), (["--out"], "needs a value"), (["more"], "'more'")):
        done = run("tune", *args)
        expect(done.returncode == 2 and words in done.stderr and done.stdout == "", f"refused: {args}", done.stderr)
    write(path, "my diary")
    done = run("tune", "--quick", "-e", "8", "--out", path)
    expect(done.returncode == 1 and "is no tuning file" in done.stderr, "a file that is none is not replaced", done.stderr)
    done = run("tune", "--quick", "-e", "8", "--out", "/nowhere/file")
    expect(done.returncode == 1 and "/nowhere/file" in done.stderr, "a place that cannot be written", done.stderr)


def main():
    with tempfile.TemporaryDirectory() as place:
        for name, test in sorted(globals().items()):
            if name.startswith("test_"):
                test(os.path.join(place, name))
    print("FAILED: " + "; ".join(failures) if failures else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
