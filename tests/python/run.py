#!/usr/bin/env python3
"""run.py - builds the Python package against a build directory and runs its tests with pytest.

Usage: run.py BUILDDIR [PYTEST ARGUMENT...]

The virtual environment and the built package stay in BUILDDIR/python, so that the next run starts at once. Ends with "N passed,
N failed, N skipped"; exit code 77, and the reason, when there is no CPython that could be used or no package index to install from
(the last is a failure where CI is set).
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BINDING = HERE.parent.parent / "bindings" / "python"
PACKAGES = ["numpy>=1.24", "ml_dtypes>=0.3", "pytest>=7", "setuptools>=77", "mypy>=1.8"]
USABLE = "import sys, sysconfig, ensurepip, os; h = os.path.join(sysconfig.get_path('include'), 'Python.h'); " \
         "sys.exit(sys.version_info < (3, 11) or sys.implementation.name != 'cpython' or not os.path.exists(h))"


def skip(reason):
    print(f"skip: {reason}")
    sys.exit(77)


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **more)
    return done.returncode, done.stdout


def interpreter():
    for name in ("python3", "python3.11", "python3.12", "python3.13", "python3.14", "/usr/bin/python3"):
        path = shutil.which(name)
        if path and run(path, "-c", USABLE)[0] == 0:
            return path
    skip("no CPython 3.11 or newer with its header and ensurepip; on Debian: apt-get install python3-dev python3-venv")


def environment(place, packages=PACKAGES):
    """The Python of a virtual environment with what the tests need."""
    python = place / "venv" / "bin" / "python"
    wanted = "\n".join(packages)
    stamp = place / "venv" / "installed.txt"
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    shutil.rmtree(place / "venv", ignore_errors=True)
    code, said = run(interpreter(), "-m", "venv", place / "venv")
    if code == 0:
        code, said = run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    if code != 0:
        print(said)
        if os.environ.get("CI"):
            sys.exit("the packages that the tests need could not be installed")
        skip(f"the packages that the tests need could not be installed: {' '.join(packages)}")
    stamp.write_text(wanted)
    return python


def build_package(python, build, place):
    site = place / "site"
    shutil.rmtree(site, ignore_errors=True)
    code, said = run(python, "setup.py", "--quiet", "build", "--build-lib", site, cwd=BINDING,
                     env={**os.environ, "ABC_BUILDDIR": str(build)})
    if code != 0:
        print(said)
        print("0 passed, 1 failed, 0 skipped")
        sys.exit(1)
    return site


def run_pytest(python, folder, variables):
    """Run the tests of a folder, with the rest of the command line; prints the counts, and returns the exit code."""
    code, said = run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rs", "--durations=8", folder, *sys.argv[2:],
                     env=variables)
    print(said)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", said.splitlines()[-1])}
    failed = counts.get("failed", 0) + counts.get("error", 0)
    print(f"{counts.get('passed', 0)} passed, {failed or int(code != 0)} failed, {counts.get('skipped', 0)} skipped")
    return 1 if code else 0


def main():
    build = Path(sys.argv[1]).resolve()
    place = build / "python"
    place.mkdir(exist_ok=True)
    python = environment(place)
    site = build_package(python, build, place)
    return run_pytest(python, HERE, {**os.environ, "PYTHONPATH": str(site), "ABC_BUILDDIR": str(build), "PYTHONDONTWRITEBYTECODE": "1"})


if __name__ == "__main__":
    sys.exit(main())
