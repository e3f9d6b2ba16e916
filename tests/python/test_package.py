"""test_package.py - the package as a stranger meets it: other interpreters, a wheel without a compiler, types, examples."""
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from conftest import HERE, PROGRAM, job, python

TREE = HERE.parent.parent
BINDING = TREE / "bindings" / "python"


def run(*command, **more):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", check=False, **more)
    return done.returncode, done.stdout


def test_types_are_clean():
    import abcomm

    place = Path(abcomm.__file__).parent
    cache = PROGRAM.parent / "python" / "mypy"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache]
    where = {"cwd": place.parent, "env": {**os.environ, "MYPYPATH": str(place.parent)}}  # not where a folder is called torch
    code, said = run(*command, "--exclude", "/torch/", place, **where)
    assert code == 0, said
    # Without torch its types are unknown, and what is derived from them.
    code, said = run(*command, "--ignore-missing-imports", "--allow-subclassing-any", "--allow-untyped-decorators",
                     "--no-warn-return-any", place / "torch", **where)
    assert code == 0, said


def test_stub_declares_what_there_is():
    from abcomm import _abcomm

    stub = (BINDING / "abcomm" / "_abcomm.pyi").read_text()
    for name in dir(_abcomm):
        if not name.startswith("__"):
            assert re.search(rf"^(class |def )?{name}\b", stub, re.M), name
    for kind in (_abcomm.Communicator, _abcomm.Request, _abcomm.Memory):
        body = re.search(rf"^class {kind.__name__}:\n((?:    .*\n|\n)+)", stub, re.M)[1]
        declared = set(re.findall(r"^    def (\w+)\(", body, re.M))
        assert {name for name in vars(kind) if not name.startswith("__")} <= declared


def test_only_the_stable_abi():
    import abcomm

    extension = next(Path(abcomm.__file__).parent.glob("_abcomm*.so"))
    assert extension.name == "_abcomm.abi3.so"
    code, said = run("readelf", "-d", extension)
    assert code == 0 and re.search(r"rpath: \[\$ORIGIN/lib\]", said), said


def interpreters(*names):
    """Pythons of these names that run, on the PATH or kept by pyenv."""
    kept = [path for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")]
    return [path for path in [*map(shutil.which, names), *kept] if path and run(path, "-c", "pass")[0] == 0]


def test_old_python_is_refused():
    found = interpreters("python3.10", "python3.9", "python3.8")
    if not found:
        pytest.skip("no older Python is here")
    import abcomm

    code, said = run(found[0], "-c", "import abcomm", env={**os.environ, "PYTHONPATH": str(Path(abcomm.__file__).parent.parent)})
    assert code == 1 and "abcomm needs CPython 3.11 or newer" in said, said
    code, said = run(found[0], BINDING / "setup.py", "--version")
    assert code == 1 and ("abcomm needs CPython 3.11 or newer" in said or "setuptools" in said), said


def test_newer_python_takes_the_same_build():
    found = interpreters("python3.14", "python3.13", "python3.12")
    if not found:
        pytest.skip("no newer Python is here")
    code, said = run(found[0], "-c", "import abcomm, array; c = abcomm.Communicator(0, 1); x = array.array('f', [5]); "
                                     "c.allreduce(x); print(x[0], abcomm.__version__)")
    assert code == 0 and said.startswith("5.0"), said


def test_wheel_without_compiler(tmp_path):
    """The wheel in an empty environment, on a PATH where nothing is, under the program that it carries; no NumPy."""
    code, said = run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, BINDING)
    assert code == 0, said
    wheel, = tmp_path.glob("abcomm-*.whl")
    assert re.search(r"-cp311-abi3-manylinux_2_\d+_\w+\.whl$", wheel.name)
    venv.create(tmp_path / "venv", symlinks=True)
    place = tmp_path / "venv" / "bin"
    code, said = run(sys.executable, "-m", "pip", "--python", place / "python", "install", "--quiet", "--no-deps", "--no-index",
                     wheel)
    assert code == 0, said
    script = "import abcomm, array; c = abcomm.Communicator(); x = array.array('d', [c.rank + 1]); " \
             "c.allreduce(x); print('sum', x[0])"
    empty = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    code, said = run(place / "abcomm", "run", "-n", "2", "--", place / "python", "-c", script, env=empty, cwd=tmp_path)
    assert code == 0 and said.count("sum 3.0") == 2, said
    code, said = run(place / "python", "-m", "abcomm", "info", env=empty, cwd=tmp_path)
    assert code == 0 and said.startswith("version"), said


@pytest.mark.skipif(not os.environ.get("ABC_TEST_FULL"), reason="builds the library once more; ABC_TEST_FULL=1 runs it")
def test_pip_install_from_the_tree(tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "ABC_BUILDDIR")}
    code, said = run(tmp_path / "venv/bin/pip", "install", "--quiet", BINDING, env=variables)
    assert code == 0, said
    code, said = run(tmp_path / "venv/bin/abcomm", "run", "-n", "2", "--", tmp_path / "venv/bin/python", "-c",
                     "import abcomm; abcomm.Communicator().barrier(); print('met')", env=variables)
    assert code == 0 and said.count("met") == 2, said


@pytest.mark.parametrize("example, ranks, words", [
    ("allreduce.py", 3, "the sum is 6"), ("linear_model.py", 2, "same weights on all ranks")])
def test_examples(example, ranks, words):
    code, said = job(ranks, sys.executable, TREE / "examples" / example)
    assert code == 0 and words in said, said
