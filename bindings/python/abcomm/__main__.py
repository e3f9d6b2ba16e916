"""__main__.py - the program `abcomm` that the package carries: `abcomm run -n 4 python x.py`, or `python -m abcomm run ...`."""
import os
import sys


def main() -> None:
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "abcomm")
    sys.stdout.flush()
    try:
        os.execv(program, ["abcomm", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"abcomm: {program} cannot be run: {error.strerror}; install the package again")


if __name__ == "__main__":
    main()
