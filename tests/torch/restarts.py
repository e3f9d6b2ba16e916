#!/usr/bin/env python3
"""restarts.py - jobs of which one rank is killed, again and again: torchrun restarts all ranks, and the second attempt must succeed.

Usage: restarts.py BUILDDIR [--runs 5] [--seed N]. The moments take turns: before the group is made, while it is made, between two
operations, inside one, by an exception, by exit. A restart has the same Store as the attempt before, with all that it has left there.
Each job must finish with exactly one restart. Ends with "N passed, N failed, N skipped".
"""
import argparse
import os
import random
import re
import socket
import sys
import time
from pathlib import Path

import job
import place

HERE = Path(__file__).resolve().parent
MOMENTS = ["step", "start", "call", "before", "error", "exit"]
LIMIT = 120  # seconds for one job


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ABC_TEST_SEED", random.randrange(1 << 30))))
    return parser.parse_args()


def run(number: int, seed: int, python: Path, variables: dict[str, str]) -> tuple[str, float]:
    """What is wrong with a job, or nothing; and how long it took."""
    ranks, begin = 2 + number % 3, time.monotonic()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        static = ["--master-addr", "127.0.0.1", "--master-port", free.getsockname()[1]]
    meeting = [["--standalone"], ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"], static][number % 3]
    code, said = job.run([python, "-m", "torch.distributed.run", *meeting, "--nproc-per-node", ranks, "--max-restarts", 3,
                          HERE / "restart_rank.py"], LIMIT,
                         {**variables, "RESTART_MOMENT": MOMENTS[number % len(MOMENTS)], "RESTART_SEED": str(seed + number)})
    took = time.monotonic() - begin
    finished = sorted(re.findall(r"finished (\d+) (\d+)", said))
    wanted = [(str(rank), "1") for rank in range(ranks)]
    # A rank that had finished when another was killed has said so in the first attempt, too.
    if code == 0 and [line for line in finished if line[1] != "0"] == wanted:
        return "", took
    how = "did not end" if code is None else f"exit code {code}"
    return f"{how}, finished: {finished}\n{said[-8000:]}", took


def main() -> int:
    options = parse()
    python, variables = place.ready(options.build)
    print(f"seed {options.seed}")
    failed, times = 0, []
    for number in range(options.runs):
        fault, took = run(number, options.seed, python, variables)
        times.append(took)
        failed += bool(fault)
        what = f"job {number}, {2 + number % 3} ranks, ended by {MOMENTS[number % len(MOMENTS)]!r} ({took:.1f} s)"
        print(f"FAIL  {what}: {fault}" if fault else f"ok    {what}", flush=True)
    print(f"{options.runs} jobs took {sum(times):.0f} s, the longest {max(times, default=0):.1f} s")
    print(f"{options.runs - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
