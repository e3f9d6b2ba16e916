#!/usr/bin/env python3
"""place.py - where the PyTorch tests of a build directory live: BUILD/torch/venv with torch, BUILD/torch/site with the package.

Usage: place.py BUILDDIR [COMMAND...] prepares both and runs the command there, with "python" as that environment's. ABC_TEST_TORCH=DIR
names a virtual environment to take instead; ABC_TEST_LARGE=0 leaves torch out. Both are made once and used by every test of this folder.
"""
import fcntl
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "python"))
import run as python_tests  # noqa: E402

TORCH = "torch==2.13.0"
PACKAGES = [TORCH, "numpy>=1.24", "expecttest>=0.2", "pytest>=7", "setuptools>=77"]


def environment(build):
    """The Python that has torch; exits with 77 where there is none and none may be installed."""
    taken = os.environ.get("ABC_TEST_TORCH")
    if taken:
        return Path(taken) / "bin" / "python"
    place = Path(build) / "torch"
    if os.environ.get("ABC_TEST_LARGE") == "0" and not (place / "venv" / "installed.txt").exists():
        python_tests.skip(f"{TORCH} is large and not installed, and ABC_TEST_LARGE=0 says to leave it out")
    place.mkdir(parents=True, exist_ok=True)
    with open(place / "lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two tests of one build directory may begin together
        return python_tests.environment(place, PACKAGES)


def sources(build):
    """When what the package is made of last changed."""
    files = [Path(build) / "libabcomm.so.0", *python_tests.BINDING.rglob("*.py"), *python_tests.BINDING.rglob("*.[ch]")]
    return max(path.stat().st_mtime for path in files)


def package(build, python):
    """The folder with the package, built again when something of it has changed."""
    place = Path(build) / "torch"
    place.mkdir(parents=True, exist_ok=True)
    stamp = place / "built.txt"
    with open(place / "lock", "a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        newest = f"{sources(build)} {python}"
        if not stamp.exists() or stamp.read_text(encoding="utf-8") != newest:
            shutil.rmtree(place / "site", ignore_errors=True)
            site = python_tests.build_package(python, Path(build).resolve(), place)
            # What an installation knows besides: torch asks for entry points.
            python_tests.run(python, "setup.py", "--quiet", "dist_info", "--output-dir", site, cwd=python_tests.BINDING)
            stamp.write_text(newest, encoding="utf-8")
    return place / "site"


def ready(build):
    """(Python, environment variables) for a test that imports torch and abcomm."""
    build = Path(build).resolve()
    python = environment(build)
    site = package(build, python)
    variables = {**os.environ, "PYTHONPATH": str(site), "ABC_BUILDDIR": str(build), "PYTHONDONTWRITEBYTECODE": "1",
                 "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    variables.setdefault("OMP_NUM_THREADS", "1")
    variables.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return python, variables


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    python, variables = ready(sys.argv[1])
    command = sys.argv[2:] or ["python", "-c", "import torch, abcomm; print(torch.__version__, abcomm.__version__)"]
    program = str(python) if command[0] == "python" else command[0]
    os.execvpe(program, [program, *command[1:]], variables)


if __name__ == "__main__":
    main()
