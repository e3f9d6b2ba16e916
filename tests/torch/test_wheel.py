"""test_wheel.py - the wheel beside PyTorch: what is in it, what it needs of a system, and that it works where it is unpacked."""
import re
import subprocess
import sys
import zipfile

import pytest
from conftest import HERE, fine, run, torchrun

BINDING = HERE.parent.parent / "bindings" / "python"
# What every glibc system with Python has; the rest must be in the wheel.
SYSTEM = re.compile(r"(libc|libm|libdl|libpthread|librt|ld-linux-[\w-]+)\.so\.\d+$")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    place = tmp_path_factory.mktemp("wheel")
    code, said = run([sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps",
                      "--no-build-isolation", "-w", place, BINDING])
    assert code == 0, said
    return next(place.glob("abcomm-*.whl"))


def readelf(*arguments):
    return subprocess.run(["readelf", "-W", *arguments], capture_output=True, text=True, check=True).stdout


def test_binaries_need_no_more_than_the_tag_says(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    newest = int(re.search(r"manylinux_2_(\d+)_", wheel.name)[1])
    binaries = [path for path in tmp_path.rglob("*") if path.is_file() and path.open("rb").read(4) == b"\x7fELF"]
    carried = {path.name for path in binaries}
    assert {"libabcomm.so.0", "_abcomm.abi3.so", "abcomm"} <= carried
    for binary in binaries:
        needed = re.findall(r"\(NEEDED\).*\[(.+)\]", readelf("-d", binary))
        assert all(SYSTEM.match(name) or name in carried for name in needed), (binary.name, needed)
        roads = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.+)\]", readelf("-d", binary))
        assert all(part.startswith("$ORIGIN") for road in roads for part in road.split(":")), (binary.name, roads)
        versions = [int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", readelf("-V", binary))]
        assert max(versions, default=0) <= newest, (binary.name, versions)
        assert "RWE" not in readelf("-l", binary), binary.name
    symbols = readelf("--dyn-syms", next(path for path in binaries if path.name == "_abcomm.abi3.so"))
    assert "PyInit__abcomm" in symbols and not re.search(r"\b_Z", symbols), "the extension needs C++, so perhaps one version of PyTorch"


def test_sources_have_their_types(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {f"abcomm/torch/{path.name}" for path in (BINDING / "abcomm" / "torch").glob("*.py")}
    assert modules and modules <= names and {"abcomm/py.typed", "abcomm/_abcomm.pyi"} <= names


def test_installed_wheel_trains(wheel, tmp_path):
    code, said = run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index",
                      "--target", tmp_path / "site", wheel])
    assert code == 0, said
    (tmp_path / "where.py").write_text(
        "import abcomm.torch, torch, torch.distributed as dist\n"
        "dist.init_process_group('abcomm')\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))\n"
        "model(torch.ones(2, 3)).sum().backward()\n"
        "print(f'trained in {abcomm.torch.__file__}\\n', end='')\n"  # one write: two ranks may print at once
        "dist.destroy_process_group()\n", encoding="utf-8")
    code, said = torchrun(2, tmp_path / "where.py", PYTHONPATH=str(tmp_path / "site"))
    assert fine(code, said) and said.count(f"trained in {tmp_path}/site/") == 2, said
