#!/usr/bin/env python3
"""run.py - runs the tests of a build directory and prints one total line.

Called by ./dev test. Meson starts the programs; this adds up the single cases (cmocka's counts, or a script's own last line
"N passed, N failed, N skipped"), shows the output of what failed at the end, and says why something was skipped.
"""
import argparse
import json
import os
import re
import subprocess
import sys

TOTAL = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)
CMOCKA = re.compile(r"^\[  (PASSED |FAILED |SKIPPED)\s*\] (\d+) test\(s\)", re.M)
CMOCKA_CASE = re.compile(r"^\[ RUN      \] (\S+)\n(.*?)^\[  SKIPPED \] \1$", re.M | re.S)
SHOWN_LINES = 200


def parse_arguments():
    parser = argparse.ArgumentParser(prog="./dev test", description="Run the tests of a build directory.")
    parser.add_argument("build", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tests to run, as meson names them (default: all)")
    parser.add_argument("--suite", action="append", default=[], help="only this suite")
    parser.add_argument("--no-suite", action="append", default=[], help="not this suite")
    parser.add_argument("--full", action="store_true", help="the long products too (ABC_TEST_FULL=1)")
    parser.add_argument("--seed", type=int, help="seed of the samples (ABC_TEST_SEED)")
    parser.add_argument("--timeout-scale", type=float, default=1, help="multiply every test's timeout")
    parser.add_argument("--jobs", type=int, default=2, help="test programs at a time (2)")
    return parser.parse_args()


def start_meson(options):
    """Run meson, passing on its line for each test; (exit code, all that it said)."""
    environment = dict(os.environ)
    if options.full:
        environment["ABC_TEST_FULL"] = "1"
        options.timeout_scale *= 20
    if options.seed is not None:
        environment["ABC_TEST_SEED"] = str(options.seed)
    command = ["meson", "test", "-C", options.build, "--no-rebuild", "--num-processes", str(options.jobs),
               "--timeout-multiplier", str(options.timeout_scale)]
    for suite in options.suite:
        command += ["--suite", suite]
    for suite in options.no_suite:
        command += ["--no-suite", suite]
    process = subprocess.Popen(command + options.names, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace")
    said = []
    for line in process.stdout:
        said.append(line)
        if re.match(r"\s*\d+/\d+ ", line):  # a test has ended
            print(line, end="", flush=True)
    return process.wait(), "".join(said)


def read_log(build):
    path = os.path.join(build, "meson-logs", "testlog.json")
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8", errors="replace") as log:
        return [json.loads(line) for line in log if line.strip()]


def count(test):
    """(passed, failed, skipped) cases of one test program."""
    text = test.get("stdout", "")
    good = test["result"] in ("OK", "EXPECTEDFAIL")
    if test["result"] == "SKIP":
        return 0, 0, 1
    total = None
    for match in TOTAL.finditer(text):
        total = [int(match.group(i)) for i in (1, 2, 3)]
    if total is None:
        cases = CMOCKA.findall(text + "\n" + test.get("stderr", ""))
        if cases:
            total = [sum(int(n) for kind, n in cases if kind.strip() == word) for word in ("PASSED", "FAILED", "SKIPPED")]
    if total is None:
        total = [1, 0, 0] if good else [0, 1, 0]
    # A program that died after its last case, or in the middle of one, has still failed.
    if not good and total[1] == 0:
        total[1] = 1
    return tuple(total)


def skip_reasons(test):
    """Why a program, or single cases of it, did not run: its own words."""
    text = test.get("stdout", "") + "\n" + test.get("stderr", "")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if re.match(r"(?i)skip(ped)?\b", line)]
    if test["result"] == "SKIP":
        return said[-1:] or lines[-1:] or ["(it did not say why)"]
    return said + [f"{name}: {words.strip() or '(it did not say why)'}" for name, words in CMOCKA_CASE.findall(text)]


def show_failure(test):
    print(f"\n---- {test['name']}: {test['result']} after {test.get('duration', 0):.1f} s, exit code {test.get('returncode')}")
    for stream in ("stdout", "stderr"):
        lines = test.get(stream, "").splitlines()
        if len(lines) > SHOWN_LINES:
            print(f"... {len(lines) - SHOWN_LINES} lines left out")
        for line in lines[-SHOWN_LINES:]:
            print(line)


def main():
    options = parse_arguments()
    log_path = os.path.join(options.build, "meson-logs", "testlog.json")
    if os.path.exists(log_path):
        os.remove(log_path)  # never count an earlier run's results
    exit_code, said = start_meson(options)
    tests = read_log(options.build)
    if not tests:
        print(said)
        print("no test ran; `meson test --list` shows the names")
        print("0 passed, 1 failed, 0 skipped")
        return 1
    sums = [0, 0, 0]
    failures = []
    for test in sorted(tests, key=lambda t: t["name"]):
        counts = count(test)
        sums = [a + b for a, b in zip(sums, counts)]
        if counts[2]:
            for reason in skip_reasons(test):
                print(f"skipped: {test['name']}: {reason}")
        if counts[1]:
            failures.append(test)
    for test in failures:
        show_failure(test)
    if exit_code != 0 and not failures:
        print(said)
        sums[1] += 1
    print(f"{sums[0]} passed, {sums[1]} failed, {sums[2]} skipped")
    return 1 if sums[1] else 0


if __name__ == "__main__":
    sys.exit(main())
