#!/usr/bin/env python3
"""test_peers.py - bench/peers.py with peers that misbehave, through the real driver: one that hangs with a child in a session of its own,
one that crashes half way, one that pip cannot install, time that is over; and bench/compare.c itself with our library as its own peer.

Usage: test_peers.py BENCHDIR ABCOMM COMPARE
"""
import argparse
import contextlib
import io
import lzma
import os
import signal
import subprocess
import sys
import tempfile
import time

BENCH, ABCOMM, COMPARE = sys.argv[1:]
sys.path.insert(0, BENCH)
sys.dont_write_bytecode = True
import peer_list  # noqa: E402
import peers      # noqa: E402

# A program of a peer: what it does depends on its setting, which comes first.
PROGRAM = """#!/bin/sh
say() { for place in oop ip; do echo "row,$1,allreduce,2,8,$place,0.78,${3:-0.26},$2,0.25,0.10,,,,200,0,0"; done; }
samples() { echo "samples,$1,allreduce,2,8,oop,ours,100 101"; }
case $1 in
*/hangs) setsid sleep 321.5 & echo $! >"$PIDS"; trap '' TERM; sleep 321.5 ;;
*/crashes) say "$1" 0.26 0.27; echo "it hurts" >&2; kill -SEGV $$ ;;
*) if test "$2" = tune; then say "$1" ""; else say "$1" 0.26; samples "$1"; fi ;;
esac
"""


class Fake(peer_list.Peer):
    """Neither installs nor builds; its program is a script."""

    def __init__(self, program, names):
        super().__init__("a fake", [], lambda crowded: {name: ([], {}) for name in names}, names[:1])
        self.program = program

    def install(self, where):
        self.version = "0"

    def build(self, builddir, program):
        pass

    def command(self, ranks, setting):
        return [self.program], dict(os.environ)


class Uninstallable(peer_list.Peer):
    def __init__(self):
        super().__init__("nothing", ["abcomm-no-such-wheel==1.0"], lambda crowded: {"default": ([], {})}, ["default"])


def options(place, **more):
    args = {"quick": False, "minutes": 1.0, "peers": [], "ranks": [2], "runs": 2, "best": None, "out": place, "name": "fake"}
    return argparse.Namespace(**{**args, **more})


def bench_of(place, known, **more):
    """A bench of these peers, prepared. Our own library is not built here."""
    peers.all_peers, peers.own = (lambda: known), lambda: Fake(os.path.join(place, "program"), ["blocking"])
    bench = peers.Bench(place, options(place, peers=list(known), **more))
    bench.prepare()
    return bench


def run(bench):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        bench.measure()
        code = bench.report()
    return code, out.getvalue()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def check_hang_and_crash(place):
    program = os.path.join(place, "program")
    bench = bench_of(place, {"x": Fake(program, ["fine", "hangs", "crashes"])})
    bench.limit = 1
    began = time.monotonic()
    code, text = run(bench)
    assert code == 0, text
    # Once in tuning. What crashed is tried once more with the size that it reached, then no more.
    assert time.monotonic() - began < 10, time.monotonic() - began
    assert "- left out: x/hangs with 2 ranks, tune: no end within 1 s; its words are in bench-work/peers.err" in text, text
    assert "- left out: x/crashes with 2 ranks, tune: above 8 B, exit code -11" in text, text
    assert text.count("crashes with 2 ranks, allreduce: exit code -11") == 1 and text.count("hangs with") == 1, text
    with open(os.path.join(place, "bench-work", "runs.csv")) as f:
        runs = [",".join(line.split(",")[:2]) for line in f if "own/" not in line]
    assert runs == 2 * ["1,x/crashes"] + 2 * ["1,x/fine"] + 2 * ["2,x/fine"], runs
    with open(os.environ["PIDS"]) as f:
        assert not alive(int(f.read())), "a child in a session of its own is left"
    with open(os.path.join(place, "bench-work", "peers.err")) as f:
        assert "it hurts" in f.read()
    with open(os.path.join(place, "fake-samples.csv")) as f:
        lines = f.read().splitlines()
    assert lines[0].startswith("run,setting,what") and "1,x/fine,allreduce,2,8,oop,ours,100 101" in lines, lines
    assert text.splitlines()[-1].startswith("worst ratio 2.89 (2 ranks far, 8 B oop, "), text


def check_told_to_end(place):
    """A program that runs is ended with us."""
    code = ("import sys; sys.path.insert(0, sys.argv[1]); import os, peers; peers.guard_children(); "
            "peers.run_limited(60, [sys.argv[2], 'x/hangs'], os.environ, None)")
    with subprocess.Popen([sys.executable, "-B", "-c", code, BENCH, os.path.join(place, "program")]) as process:
        while not (os.path.exists(os.environ["PIDS"]) and open(os.environ["PIDS"]).read().strip()):
            assert process.poll() is None
            time.sleep(0.05)
        process.terminate()
        assert process.wait(timeout=20) == 128 + signal.SIGTERM
    with open(os.environ["PIDS"]) as f:
        assert not alive(int(f.read())), "a child is left"


def check_large_samples(place):
    bench = bench_of(place, {})
    for size, suffix, gone in ((peers.LARGE + 1, ".csv.xz", ".csv"), (10, ".csv", ".csv.xz")):
        with open(bench.path("samples.csv"), "w") as f:
            f.write("1" * size)
        bench.keep_samples(os.path.join(place, "large"))
        path = os.path.join(place, "large-samples" + suffix)
        with lzma.open(path) if suffix.endswith("xz") else open(path, "rb") as f:
            assert f.read().endswith(b"nanoseconds\n" + b"1" * size)
        assert not os.path.exists(os.path.join(place, "large-samples" + gone))


def check_no_index(place):
    """An index that nobody serves; the other peer is measured all the same, and the column says it."""
    os.environ.update(PIP_INDEX_URL="http://127.0.0.1:9/simple", PIP_RETRIES="0", PIP_DEFAULT_TIMEOUT="2", PIP_CONFIG_FILE="/dev/null",
                      PIP_FIND_LINKS="", PIP_EXTRA_INDEX_URL="", PIP_NO_CACHE_DIR="1")
    known = {"gone": Uninstallable(), "x": Fake(os.path.join(place, "program"), ["fine"])}
    bench = bench_of(place, known)
    assert list(bench.peers) == ["x", "own"], bench.peers
    code, text = run(bench)
    assert code == 0, text
    assert "- left out: gone: pip cannot install abcomm-no-such-wheel==1.0" in text or \
        "- left out: gone: no virtual environment" in text, text
    assert "| x | gone (left out) |" in text and "| 3.00 | left out |" in text, text
    assert not os.path.exists(os.path.join(place, "bench-work", "peer-gone", "complete"))


def check_time_over(place):
    """A program that would take longer than what is left is ended and not blamed; no further one starts; there are tables."""
    program = os.path.join(place, "program")
    bench = bench_of(place, {"x": Fake(program, ["fine", "fine2"]), "y": Fake(program, ["fine"])})
    assert bench.to_tune(2) == ["x/fine", "y/fine", "x/fine2"], bench.to_tune(2)
    bench.tune()
    bench.compare(1, 2, bench.path("best.csv"))
    bench.end = bench.begin
    bench.tune()
    assert ("not tried", "2 ranks, no time was left for tuning: x/fine, y/fine, x/fine2") in bench.notes, bench.notes
    bench.peers["x"] = Fake(program, ["hangs"])
    bench.end = time.monotonic() + 1.5
    bench.one(2, "x/hangs", "allreduce", 2)
    assert bench.late and not bench.most, bench.notes
    began = time.monotonic()
    bench.args.best = bench.path("best.csv")
    code, text = run(bench)
    assert code == 0 and time.monotonic() - began < 5, text
    assert "all that were allowed: the last runs are missing" in text and "x/fine" in text, text
    empty = bench_of(place, {"x": Fake(program, ["fine"])})
    empty.end = time.monotonic()
    assert run(empty)[0] == 3, "there is nothing to make tables of"


def check_program(place):
    """Every part of the program, our library being the peer too: complete rows, no wrong result, the sizes in order."""
    parts = {"tune": 2 * 7, "allreduce": 2 * 7, "collectives": 4 * 3, "rest": 1 + 9 * 2, "types": 3 * 3, "crowd": 2, "own": 3 * 3 + 2}
    for ranks, part in ((2, "tune"), (2, "allreduce"), (3, "collectives"), (2, "rest"), (2, "types"), (5, "crowd"), (2, "own")):
        done = subprocess.run([ABCOMM, "run", "-n", str(ranks), "--", COMPARE, "own/blocking", part, "32768", "0.02"], timeout=60,
                              capture_output=True, text=True, check=False)
        lines = [line[line.find(kind + ","):] for line in done.stdout.splitlines() for kind in ("row", "samples")
                 if kind + ",own/" in line]
        rows = [line.split(",") for line in lines if line.startswith("row")]
        assert done.returncode == 0 and len(rows) == parts[part], (part, done.stdout, done.stderr)
        assert all(len(row) == 17 and row[15:] == ["0", "0"] and float(row[6]) > 0 and float(row[7]) > 0 for row in rows), rows
        assert all((row[8] != "") == (part == "allreduce") == (row[10] != "") == (row[12] != "") for row in rows), rows
        samples = [line.split(",") for line in lines if line.startswith("samples")]
        assert len(samples) == len(rows) * {"tune": 0, "allreduce": 4}.get(part, 3), part
        assert all(len(row) == 8 and len(row[7].split()) >= 3 for row in samples), samples
    for words in (["own/blocking", "nonsense"], ["own/blocking", "own", "8", "0"], []):
        done = subprocess.run([ABCOMM, "run", "-n", "2", "--", COMPARE, *words], timeout=60, capture_output=True, text=True, check=False)
        assert done.returncode != 0 and "usage: compare SETTING" in done.stderr, done


def main():
    peers.guard_children()
    for check in (check_program, check_hang_and_crash, check_told_to_end, check_large_samples, check_time_over, check_no_index):
        with tempfile.TemporaryDirectory() as place:
            os.environ["PIDS"] = os.path.join(place, "pids")
            with open(os.path.join(place, "program"), "w") as f:
                f.write(PROGRAM)
            os.chmod(os.path.join(place, "program"), 0o755)
            check(place)
    print("ok")


if __name__ == "__main__":
    main()
