#!/usr/bin/env python3
"""test_cli.py - `abcomm bench` as a user meets it: flags, refusals, columns, JSON, and that wrong results do not pass.

Usage: test_cli.py ABCOMM
"""
import json
import os
import subprocess
import sys
import tempfile

ABCOMM = sys.argv[1]
failures = []
NAMES = "size count type redop root time algbw busbw #wrong time algbw busbw #wrong p50 p99 ip-p50 ip-p99 hand-off algorithm".split()


def run(ranks, *args, launcher=True):
    command = [ABCOMM, "run", "-n", str(ranks), "--"] if launcher else []
    return subprocess.run([*command, ABCOMM, "bench", *args], capture_output=True, text=True, timeout=60, check=False)


def expect(ok, what, detail=""):
    if not ok:
        failures.append(what)
        print(f"FAIL  {what}\n{detail}")


def rows(text):
    return [line.split() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_columns():
    done = run(2, "allreduce", "-b", "8", "-e", "128", "-f", "4", "-n", "3", "-w", "1")
    expect(done.returncode == 0, "a plain run succeeds", done.stderr)
    lines = done.stdout.splitlines()
    header = [line.split() for line in lines if " count " in line and line.startswith("#")]
    expect(header and header[0][0] == "#" and header[0][1:] == NAMES, "columns have their names", done.stdout)
    table = rows(done.stdout)
    expect([r[0] for r in table] == ["8", "32", "128"], "sizes follow -b -e -f", done.stdout)
    for r in table:
        expect(len(r) == len(NAMES), "a value in each column", " ".join(r))
        expect(r[1:5] == [str(int(r[0]) // 4), "f32", "sum", "-1"], "count, type, operation, root", " ".join(r))
        expect(r[8] == "0" and r[12] == "0", "nothing is wrong", " ".join(r))
        expect(float(r[5]) > 0 and float(r[14]) >= float(r[13]), "times are positive and p99 is not below p50", " ".join(r))
        bus = float(r[0]) / float(r[5]) * 1e-3  # 2 ranks: factor 1
        expect(abs(bus - float(r[7])) <= 0.05 * bus + 0.002, "bus bandwidth follows from size and time", " ".join(r))
    expect(lines[-2].startswith("# Out of bounds values : 0 OK"), "the sum of errors", done.stdout)
    expect(lines[-1].startswith("# Avg bus bandwidth    : "), "the average", done.stdout)
    expect(not any(line.startswith("[0]") for line in lines), "lines have no rank before them", done.stdout)


def test_collectives():
    for name, ranks, count in (("reduce_scatter", 3, 4), ("allgather", 3, 4), ("broadcast", 3, 12), ("reduce", 3, 12), ("gather", 3, 4),
                               ("scatter", 3, 4), ("alltoall", 3, 4), ("scan", 3, 12), ("exscan", 3, 12)):
        done = run(ranks, name, "-b", "48", "-e", "48", "-n", "2", "-d", "f32,bf16", "--mem", "both", "-r", "2")
        table = rows(done.stdout)
        expect(done.returncode == 0 and len(table) == 4, f"{name} runs", done.stdout + done.stderr)
        expect([r[1] for r in table] == [str(count), str(2 * count)] * 2, f"{name}: count", done.stdout)
        expect(all(r[4] == ("2" if name in ("broadcast", "reduce", "gather", "scatter") else "-1") for r in table), f"{name}: root", done.stdout)
    done = run(2, "barrier", "-n", "5")
    expect(done.returncode == 0 and len(rows(done.stdout)) == 1, "barrier runs", done.stdout + done.stderr)


def test_messages():
    done = run(2, "sendrecv", "-b", "8", "-e", "32K", "-f", "64", "-n", "4", "-d", "f32,i8", "--mem", "both")
    table = rows(done.stdout)
    expect(done.returncode == 0 and [r[0] for r in table] == ["8", "512", "32768"] * 4, "messages are measured", done.stdout + done.stderr)
    for r in table:
        expect(len(r) == 16 and r[9] == r[15] == "0", "a value in each column, nothing is wrong", " ".join(r))
        expect(all(float(r[k]) > 0 for k in (4, 6, 10, 12)), "times are positive", " ".join(r))
    done = run(2, "sendrecv", "-b", "8", "-e", "8", "-n", "3", "--json", "-")
    row = json.loads(done.stdout)["rows"][0]
    expect(row["bytes"] == 8 and row["one_way"]["wrong"] == 0 and row["both_ways"]["bound_us"] >= 0, "messages as JSON", done.stdout)
    done = run(2, "sendrecv", "-b", "8", "-e", "8", "-n", "3", "--corrupt")
    expect(done.returncode != 0 and "FAILED" in done.stdout, "a wrong message does not pass", done.stdout + done.stderr)
    for ranks, args, words in ((3, [], "between 2 ranks, not 3"), (2, ["--algo", "ring"], "--algo means nothing for sendrecv")):
        done = run(ranks, "sendrecv", *args)
        expect(done.returncode != 0 and words in done.stderr, f"refused: {words}", done.stderr)


def test_choices():
    done = run(2, "allreduce", "-b", "1K", "-e", "1K", "-n", "2", "-d", "all", "-o", "all")
    expect(len(rows(done.stdout)) == 140, "all types and operations", done.stdout + done.stderr)
    done = run(2, "allreduce", "-b", "100", "-e", "300", "-i", "100", "-n", "2", "-c", "0", "--in-place", "0", "--pin")
    table = rows(done.stdout)
    expect([r[0] for r in table] == ["100", "200", "300"], "a fixed step", done.stdout + done.stderr)
    expect(all(r[8] == "N/A" and r[9:13] == ["-"] * 4 for r in table), "no check, no in-place", done.stdout)
    done = run(3, "allreduce", "-b", "64", "-e", "64", "-n", "2", "--algo", "chain")
    expect(done.returncode == 0 and "algorithm chain" in done.stdout, "an algorithm by name", done.stdout + done.stderr)
    done = run(2, "allreduce", "-e", "8", "-n", "2", "--algo", "nonsense")
    expect(done.returncode == 1 and "nonsense" in done.stderr, "an unknown algorithm is refused by name", done.stderr)


def test_many_calls():
    for way in ("--group", "--started"):
        for name in ("allreduce", "reduce_scatter", "alltoall", "gather", "scan"):
            done = run(3, name, "-b", "24", "-e", "6K", "-f", "256", "-n", "3", "--mem", "both", way, "30")
            table = rows(done.stdout)
            expect(done.returncode == 0 and len(table) == 4, f"30 calls of {name}, {way}", done.stdout + done.stderr)
            expect(all(r[8] == r[12] == "0" for r in table), f"{name}, {way}: nothing is wrong", done.stdout)
        done = run(2, "allreduce", "-b", "64", "-e", "64", "-n", "4", "-w", "0", way, "5", "--corrupt")
        expect(done.returncode == 1 and rows(done.stdout)[0][8] == "4", f"{way}: a wrong element is seen", done.stdout)
        done = run(2, "barrier", "-n", "3", way, "7", "--json", "-")
        expect(json.loads(done.stdout)["calls"] == 7, f"{way}: barriers", done.stdout + done.stderr)


def test_json():
    args = ["allreduce", "-b", "8", "-e", "32", "-n", "3"]
    done = run(2, *args, "--json", "-")
    data = json.loads(done.stdout)
    expect(data["ranks"] == 2 and data["collective"] == "allreduce" and data["wrong"] == 0, "JSON on stdout", done.stdout)
    with tempfile.TemporaryDirectory() as place:
        path = os.path.join(place, "out.json")
        done = run(2, *args, "--json", path)
        with open(path) as f:
            data = json.load(f)
    expect([r["bytes"] for r in data["rows"]] == [8, 32], "JSON in a file beside the table", str(data))
    expect(len(rows(done.stdout)) == 2, "the table stays", done.stdout)
    for r in data["rows"]:
        for place in ("out_of_place", "in_place"):
            expect(0 < r[place]["min_us"] <= r[place]["p50_us"] <= r[place]["p99_us"], "percentiles are in order", str(r))
    done = run(2, *args, "--json", "/nowhere/file")
    expect(done.returncode == 1 and "/nowhere/file" in done.stderr, "a file that cannot be written", done.stderr)


def test_corrupt():
    for name in ("allreduce", "allgather", "reduce_scatter", "broadcast"):
        done = run(3, name, "-b", "96", "-e", "96", "-n", "4", "-w", "0", "--corrupt")
        table = rows(done.stdout)
        expect(done.returncode == 1, f"{name}: wrong results are a failure", done.stdout)
        expect(table and table[0][8] == "4" and table[0][12] == "4", f"{name}: each wrong element is counted", done.stdout)
        expect("# Out of bounds values : 8 FAILED" in done.stdout, f"{name}: the sum says so", done.stdout)


REFUSALS = [
    ([], "name the collective first"),
    (["allredcue"], "'allredcue'"),
    (["allreduce", "-x"], "'-x'"),
    (["allreduce", "--nope"], "'--nope'"),
    (["allreduce", "-b"], "-b needs a value"),
    (["allreduce", "-b", "8Q"], "'8Q'"),
    (["allreduce", "-b", "-8"], "'-8'"),
    (["allreduce", "-e", "99999999999999999999"], "'99999999999999999999'"),
    (["allreduce", "-b", "1M", "-e", "1K"], "less than -b"),
    (["allreduce", "-b", "0"], "never grows"),
    (["allreduce", "-f", "1"], "'1'"),
    (["allreduce", "-n", "0"], "'0'"),
    (["allreduce", "-d", "f12"], "known are all, f32, f64, bf16, i32"),
    (["allreduce", "-o", "mean"], "known are all, sum, min, max, avg"),
    (["allreduce", "-c", "2"], "'2'"),
    (["allreduce", "--mem", "shared"], "private, arena or both"),
    (["allreduce", "--in-place", "yes"], "0, 1 or both"),
    (["allreduce", "-c", "0", "--corrupt"], "shows nothing"),
    (["allreduce", "--group", "1"], "'1' is not a number of calls from 2 to 1000"),
    (["allreduce", "--started", "many"], "'many'"),
    (["allreduce", "--started", "9", "--group", "9"], "leave one of the two out"),
    (["sendrecv", "--group", "9"], "--group means nothing for sendrecv"),
    (["allreduce", "extra"], "'extra'"),
]


def test_refusals():
    for args, words in REFUSALS:
        done = run(1, *args, launcher=False)
        expect(done.returncode == 2 and words in done.stderr, f"refused: {args}", f"code {done.returncode}: {done.stderr}")
        expect(done.stdout == "", f"nothing on stdout: {args}", done.stdout)
    done = run(3, "allreduce", "-z")
    expect(done.returncode == 2 and done.stderr.count("'-z'") == 1, "one rank speaks for all", done.stderr)
    done = run(2, "broadcast", "-r", "2")
    expect(done.returncode == 2 and "no rank 2 among 2" in done.stderr, "a root beyond the ranks", done.stderr)
    done = run(1, "allreduce", launcher=False)
    expect(done.returncode == 2 and "abcomm run -n 4 -- abcomm bench allreduce" in done.stderr, "how to start", done.stderr)
    done = run(1, "--help", launcher=False)
    expect(done.returncode == 0 and "--mem MEMORY" in done.stdout and "corrupt" not in done.stdout, "help", done.stdout)


def main():
    for name, test in sorted(globals().items()):
        if name.startswith("test_"):
            test()
    print("FAILED: " + "; ".join(failures) if failures else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
