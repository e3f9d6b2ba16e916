#!/usr/bin/env python3
"""suite.py - runs torch's own DistributedTest, as the wheel carries it, on a backend; compares with what Gloo passes.

Usage: suite.py [--backend abcomm] [--part w4] [-k WORDS] [--all] [--record FILE] [--limit SECONDS] [--logs DIR]

A part is a number of ranks and the name that opens torch's gates: w4 and w8 as Gloo, w4-mpi and w8-mpi for all_to_all, which torch
keeps on CPUs for MPI. Without --all only the tests run that Gloo is known to pass or fail (gloo.tsv). All of them must pass, unless
known.tsv names them with a reason; a test named there that passes is a failure too, so that the list stays true. Each test that calls
Gloo must call this backend as often at least, and Gloo groups may be made only by the code that known.tsv names.

Ranks are forked from this process, which has torch imported and no threads: a test takes a third of a second. `place.py BUILD python
tests/torch/suite.py` provides torch and the package. Ends with "N passed, N failed, N skipped".
"""
from __future__ import annotations

import argparse
import csv
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any, NamedTuple

import suite_rank

HERE = Path(__file__).resolve().parent
BASELINE, KNOWN = HERE / "gloo.tsv", HERE / "known.tsv"
PARTS = {"w4": (4, "gloo"), "w8": (8, "gloo"), "w4-mpi": (4, "mpi"), "w8-mpi": (8, "mpi")}
LIMIT = 60         # seconds for one test
LAST_WORDS = 2     # seconds for the ranks of a test that is over, or to print where they hang


class Outcome(NamedTuple):
    """How one test ended, over all its ranks."""

    result: str  # pass, fail, skip or hang
    seconds: float
    reason: str
    calls: int   # of the backend, all ranks together
    gloo: list[str]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="abcomm")
    parser.add_argument("--part", action="append", choices=PARTS, help="default: all of them")
    parser.add_argument("-k", action="append", default=[], metavar="WORDS", help="only tests whose names have these words")
    parser.add_argument("--all", action="store_true", help="also the tests that Gloo skips")
    parser.add_argument("--record", type=Path, help="write what passes and fails to this file, and judge nothing")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"seconds for one test ({LIMIT})")
    parser.add_argument("--logs", type=Path, help="keep the ranks' output here; default: shown only for failures")
    return parser.parse_args()


# ---- one test

def wait_for(pids: list[int], seconds: float) -> bool:
    """Wait until all these children have ended, and reap them; False when the time is over first."""
    end, left = time.monotonic() + seconds, {os.pidfd_open(pid): pid for pid in pids}
    try:
        while left and time.monotonic() < end:
            ready, _, _ = select.select(list(left), [], [], max(0.0, end - time.monotonic()))
            for descriptor in ready:
                os.waitpid(left.pop(descriptor), 0)
                os.close(descriptor)
    finally:
        for descriptor in left:
            os.close(descriptor)
    pids[:] = left.values()
    return not left


def end_all(pids: list[int]) -> None:
    """Let what still runs say where it is, then end it."""
    for number, seconds in ((signal.SIGUSR1, LAST_WORDS), (signal.SIGKILL, 30.0)):
        for pid in pids:
            os.kill(pid, number)
        if wait_for(pids, seconds):
            return


def read_outcomes(folder: Path, world: int) -> list[dict[str, Any]]:
    """What each rank wrote; a rank that wrote nothing died."""
    found = []
    for rank in range(world):
        path = folder / f"rank{rank}.json"
        died = {"result": "fail", "reason": f"rank {rank} died"}
        found.append(json.loads(path.read_text(encoding="utf-8")) if path.exists() else died)
    return found


def sum_up(ranks: list[dict[str, Any]], seconds: float, hung: bool) -> Outcome:
    """One outcome out of all ranks': the first failure that is not about another rank's."""
    failures = [rank for rank in ranks if rank["result"] == "fail"]
    failures.sort(key=lambda rank: "BrokenBarrier" in rank["reason"] or "died" in rank["reason"])
    calls = sum(rank.get("calls", 0) for rank in ranks)
    gloo = [who for rank in ranks for who in rank.get("gloo", [])]
    if hung:
        return Outcome("hang", seconds, failures[0]["reason"] if failures else "", calls, gloo)
    if failures:
        return Outcome("fail", seconds, failures[0]["reason"], calls, gloo)
    return Outcome(ranks[0]["result"], seconds, ranks[0]["reason"], calls, gloo)


def run_test(loaded: Any, name: str, world: int, options: argparse.Namespace, folder: Path) -> Outcome:
    """Fork the ranks, wait for them, judge them."""
    skipped = suite_rank.why_skipped(loaded[1], name)
    if skipped is not None:
        return Outcome("skip", 0.0, skipped, 0, [])
    start = time.monotonic()
    for part in ("barrier", "test_dir", "init_dir"):
        (folder / part).mkdir(parents=True)
    os.environ["TEMP_DIR"] = str(folder)
    loaded[0].Barrier.init()
    meeting, pids = suite_rank.meeting_point(world), []
    for rank in range(world):
        pid = os.fork()
        if pid == 0:
            suite_rank.run_rank(loaded, name, rank, world, options.backend, folder, meeting)
        pids.append(pid)
    ended = wait_for(pids, options.limit)
    if not ended:
        end_all(pids)
    return sum_up(read_outcomes(folder, world), time.monotonic() - start, not ended)


def output_of(folder: Path, world: int) -> str:
    logs = [folder / f"rank{rank}.log" for rank in range(world)]
    return "\n".join(f"-- rank {rank}\n{log.read_text(errors='replace')[-3000:]}" for rank, log in enumerate(logs) if log.exists())


# ---- what is expected

def read_table(path: Path) -> list[list[str]]:
    """The rows of a file of columns between tabs; # begins a comment."""
    if not path.exists():
        return []
    with open(path, encoding="utf-8", newline="") as file:
        return [row for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row and not row[0].startswith("#")]


class Expected:
    """What Gloo does, and where this backend may differ."""

    def __init__(self, backend: str) -> None:
        self.gloo = {(row[0], row[1]): (row[2], int(row[3])) for row in read_table(BASELINE)}
        self.is_gloo = backend == "gloo"
        known = [] if self.is_gloo else read_table(KNOWN)
        self.fails = {row[1]: row[2] for row in known if row[0] == "fails"}
        self.fewer = {row[1] for row in known if row[0] == "fewer calls"}
        self.makers = {row[1] for row in known if row[0] == "gloo group"}

    def fault(self, part: str, name: str, got: Outcome) -> str:
        """Why this outcome is not what it should be; empty when it is."""
        result, calls = self.gloo.get((part, name), ("skip", 0))
        strangers = sorted(set(got.gloo) - self.makers)
        if strangers:
            return f"made Gloo groups: {', '.join(strangers)}"
        if name in self.fails:
            return "passes, though known.tsv says that it fails" if got.result == "pass" else ""
        if (result == "pass" or not self.is_gloo and result == "fail") and got.result != "pass":
            return f"{got.result}: {got.reason}" if got.reason else got.result
        if name in self.fewer:
            calls = min(calls, 1)
        if got.result == "pass" and got.calls < calls:
            return f"made {got.calls} calls, on Gloo {calls}"
        return ""


# ---- the whole

def run_part(part: str, options: argparse.Namespace, expected: Expected, logs: Path) -> list[tuple[str, str, Outcome]]:
    """All tests of a part. The gates are set when torch's module is imported, so each part has a process of its own."""
    world, gates = PARTS[part]
    os.environ.update(WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1")
    module = "" if options.backend == "gloo" else f"{options.backend}.torch"
    loaded = suite_rank.load(options.backend, gates, module)
    names = unittest.TestLoader().getTestCaseNames(loaded[1])
    if not options.all and not options.record:
        names = [name for name in names if (part, name) in expected.gloo]
    done = []
    for name in names:
        if options.k and not any(words in name for words in options.k):
            continue
        folder = logs / part / name
        shutil.rmtree(folder, ignore_errors=True)
        outcome = run_test(loaded, name, world, options, folder)
        fault = "" if options.record else expected.fault(part, name, outcome)
        if fault:
            print(f"FAIL  {part} {name} ({outcome.seconds:.1f} s): {fault}\n{output_of(folder, world)}", flush=True)
        done.append((name, fault, outcome))
        if not options.logs:
            shutil.rmtree(folder, ignore_errors=True)
    return done


def record(path: Path, part: str, done: list[tuple[str, str, Outcome]]) -> None:
    """Add a part's results to a baseline: without what is skipped, nor what the parts whose gates are Gloo's have already."""
    had = {row[1] for row in read_table(path) if PARTS[row[0]][1] == "gloo"}
    rows = [(name, outcome) for name, _, outcome in done if outcome.result != "skip" and name not in had]
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"# {part}: {len(rows)} tests; {len(done) - len(rows)} are skipped, or run in a part above\n")
        for name, outcome in rows:
            reason = outcome.reason.partition("\n")[0][:200]
            file.write(f"{part}\t{name}\t{outcome.result}\t{outcome.calls}\t{reason}".rstrip() + "\n")


def in_child(part: str, options: argparse.Namespace, expected: Expected, logs: Path) -> tuple[int, int, int]:
    """Run a part in a process of its own; (passed, failed, skipped)."""
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        start, code = time.monotonic(), 1
        try:
            done = run_part(part, options, expected, logs)
            if options.record:
                record(options.record, part, done)
            failed = sum(bool(fault) for _, fault, _ in done)
            as_known = sum(outcome.result in ("fail", "hang") and not fault for _, fault, outcome in done)
            skipped = sum(outcome.result == "skip" and not fault for _, fault, outcome in done) + as_known
            print(f"{part}: {len(done) - failed - skipped} passed, {failed} failed, {skipped} skipped, {as_known} of them fail as "
                  f"known.tsv or Gloo do, {time.monotonic() - start:.0f} s", flush=True)
            os.write(writable, f"{len(done) - failed - skipped} {failed} {skipped}".encode())
            code = 0
        finally:
            sys.stdout.flush()
            os._exit(code)
    os.close(writable)
    with os.fdopen(readable) as pipe:
        said = pipe.read().split()
    os.waitpid(pid, 0)
    passed, failed, skipped = map(int, said) if len(said) == 3 else (0, 1, 0)
    return passed, failed, skipped


def main() -> int:
    options = parse()
    # Threads of a library in this process would not survive the fork.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    expected = Expected(options.backend)
    if options.record:
        options.record.write_text(f"# What torch's DistributedTest does on {options.backend}; made by: suite.py --backend "
                                  f"{options.backend} --record FILE\n# part, test, result, calls of all ranks, reason\n",
                                  encoding="utf-8")
    logs = options.logs or Path(tempfile.mkdtemp(prefix="abcomm-suite-"))
    try:
        totals = [in_child(part, options, expected, logs) for part in options.part or PARTS]
    finally:
        if not options.logs:
            shutil.rmtree(logs, ignore_errors=True)
    passed, failed, skipped = (sum(column) for column in zip(*totals))
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
