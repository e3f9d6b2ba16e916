#!/usr/bin/env python3
"""runner_test.py - tests how tests/runner/run.py counts: the total line of ./dev test must never be kinder than the tests were."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner"))
import run as runner  # noqa: E402

# (what, result, stdout, stderr, wanted counts)
CASES = [
    ("a plain program", "OK", "", "", (1, 0, 0)),
    ("a plain program that fails", "FAIL", "", "", (0, 1, 0)),
    ("a program that was too slow", "TIMEOUT", "3 passed, 0 failed, 0 skipped\n", "", (3, 1, 0)),
    ("a skipped program", "SKIP", "skip: no AVX-512\n", "", (0, 0, 1)),
    ("a script's own total", "OK", "ok a\n12 passed, 0 failed, 3 skipped\n", "", (12, 0, 3)),
    ("the last total counts", "OK", "1 passed, 0 failed, 0 skipped\n2 passed, 0 failed, 0 skipped\n", "", (2, 0, 0)),
    ("cmocka", "OK", "", "[  PASSED  ] 7 test(s).\n", (7, 0, 0)),
    ("cmocka, two groups", "OK", "[  PASSED  ] 7 test(s).\n[  PASSED  ] 2 test(s).\n", "", (9, 0, 0)),
    ("cmocka with failures", "FAIL", "", "[  PASSED  ] 6 test(s).\n[  FAILED  ] 2 test(s), listed below:\n", (6, 2, 0)),
    ("cmocka with skips", "OK", "", "[  PASSED  ] 6 test(s).\n[  SKIPPED ] 1 test(s), listed below:\n[  SKIPPED ] wide\n", (6, 0, 1)),
    ("dead after all cases", "FAIL", "", "[  PASSED  ] 6 test(s).\n", (6, 1, 0)),
    ("a crash says nothing", "ERROR", "", "", (0, 1, 0)),
]

# (result, stdout, wanted reasons)
REASONS = [
    ("SKIP", "start\nskip: no AVX-512\n", ["skip: no AVX-512"]),
    ("SKIP", "no AVX-512\n", ["no AVX-512"]),
    ("OK", "[ RUN      ] wide\nno AVX-512\n[  SKIPPED ] wide\n", ["wide: no AVX-512"]),
    ("OK", "[ RUN      ] a\n[       OK ] a\n[ RUN      ] b\n[  SKIPPED ] b\n", ["b: (it did not say why)"]),
]


def main():
    failed = 0
    for what, result, stdout, stderr, wanted in CASES:
        got = runner.count({"name": what, "result": result, "stdout": stdout, "stderr": stderr})
        if got != wanted:
            print(f"FAIL  {what}: wanted {wanted}, got {got}")
            failed += 1
    for result, stdout, wanted in REASONS:
        got = runner.skip_reasons({"name": "x", "result": result, "stdout": stdout, "stderr": ""})
        if got != wanted:
            print(f"FAIL  the reason of a skip: wanted {wanted}, got {got}")
            failed += 1
    print(f"{len(CASES) + len(REASONS) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
