#!/usr/bin/env python3
"""run.py - runs the tests of the PyTorch package with pytest. Usage: run.py BUILDDIR [PYTEST ARGUMENT...]

Ends with "N passed, N failed, N skipped"; exit code 77, and the reason, where torch cannot be had (see place.py).
"""
import sys
from pathlib import Path

import place

HERE = Path(__file__).resolve().parent


def main():
    python, variables = place.ready(sys.argv[1])
    return place.python_tests.run_pytest(python, HERE, variables)


if __name__ == "__main__":
    sys.exit(main())
