#!/usr/bin/env python3
"""run.py - runs the tests of the PyTorch package with pytest. Usage: run.py BUILDDIR [PYTEST ARGUMENT...]

Ends with "N passed, N failed, N skipped"; exit code 77, and the reason, where torch cannot be had (see place.py).
"""
import re
import sys
from pathlib import Path

import place

HERE = Path(__file__).resolve().parent


def main():
    python, variables = place.ready(sys.argv[1])
    code, said = place.python_tests.run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--durations=8", HERE,
                                        *sys.argv[2:], env=variables)
    print(said)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", said.splitlines()[-1])}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    print(f"{counts.get('passed', 0)} passed, {failed or int(code != 0)} failed, {counts.get('skipped', 0)} skipped")
    return 1 if code else 0


if __name__ == "__main__":
    sys.exit(main())
