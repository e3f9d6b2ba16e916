"""setup.py - builds the extension on the stable ABI and puts libabcomm, the program and what they need beside it.

The library comes from the source tree around this folder, built by meson in a temporary place; ABC_BUILDDIR names a build directory
that has it already. Everything finds its neighbours by paths relative to itself, so that the wheel works wherever it is unpacked.
"""
import sys
import sysconfig

# Before anything that an older Python may not have, and pip's own check does not see when this file is run by hand.
if sys.version_info < (3, 11):
    sys.exit("abcomm needs CPython 3.11 or newer; this is Python %d.%d" % sys.version_info[:2])
if sys.implementation.name != "cpython":
    sys.exit("abcomm needs CPython; this is " + sys.implementation.name + ", which has no stable ABI")
if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("abcomm needs CPython with the GIL: the free-threaded build has no stable ABI yet")

import atexit
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent
TREE = HERE.parent.parent
LIBRARY = "libabcomm.so.0"
# Of the libraries that ours needs, those that no glibc system is sure to have.
CARRIED = ("libsodium.so", "libjansson.so")
SOURCES = ["array", "call", "comm", "completions", "counts", "errors", "exchange", "group", "memory", "module", "op", "request"]


def version():
    text = (TREE / "include/abcomm/abcomm.h").read_text()
    return ".".join(re.search(rf"ABC_VERSION_{part} (\d+)", text)[1] for part in ("MAJOR", "MINOR", "PATCH"))


def run(*command):
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")
    return done.stdout


def build_library():
    """A build directory with the library and the program; they look for their neighbours beside themselves first."""
    if "ABC_BUILDDIR" in os.environ:
        return Path(os.environ["ABC_BUILDDIR"])
    build = SCRATCH / "library"
    run("meson", "setup", str(build), str(TREE), "--buildtype=release", "-Dtests=false", "-Dexamples=false",
        "-Dc_link_args=-Wl,--disable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../lib")
    run("ninja", "-C", str(build), f"{LIBRARY[:-2]}.{version()}", "abcomm")
    return build


def carried(library):
    """The shared libraries to put beside ours, as {name: path}."""
    found = {}
    for line in run("ldd", str(library)).splitlines():
        name, _, rest = line.strip().partition(" => ")
        if name.startswith(CARRIED):
            found[name] = rest.split(" (")[0]
    return found


def fill_package(build, package):
    """The library, what it needs, the program and the licences."""
    files = {"lib/" + LIBRARY: build / LIBRARY, "bin/abcomm": build / "abcomm", "LICENSE": TREE / "LICENSE"}
    for name, path in carried(build / LIBRARY).items():
        files["lib/" + name] = path
        for text in sorted(Path("/usr/share/doc").glob(name.split(".")[0] + "*/copyright"))[:1]:
            files[f"lib/{name}.copyright"] = text
    for name, path in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, package / name)


class Build(build_ext):
    def build_extension(self, extension):
        package = Path(self.get_ext_fullpath(extension.name)).parent
        fill_package(build_library(), package)
        extension.extra_objects = [str(package / "lib" / LIBRARY)]
        extension.extra_link_args = ["-Wl,--disable-new-dtags,-rpath,$ORIGIN/lib"]
        # Where this Python was built is nobody else's business.
        self.compiler.linker_so = [word for word in self.compiler.linker_so if not word.startswith(("-Wl,-rpath", "-L"))]
        super().build_extension(extension)


class Wheel(bdist_wheel):
    def get_tag(self):
        """Named for the oldest glibc that all the binaries are content with: older systems refuse the wheel."""
        needed = [2]
        for path in (Path(self.bdist_dir) / "abcomm").rglob("*"):
            if path.is_file():
                needed += [int(minor) for minor in re.findall(rb"\bGLIBC_2\.(\d+)", path.read_bytes())]
        return "cp311", "abi3", f"manylinux_2_{max(needed)}_{os.uname().machine}"


# Nothing is left in the source tree, and nothing old gets into the wheel.
SCRATCH = Path(tempfile.mkdtemp(prefix="abcomm-wheel-"))
atexit.register(shutil.rmtree, SCRATCH, ignore_errors=True)
WARNINGS = ["-Wall", "-Wextra", "-Werror=implicit", "-Wno-unused-parameter", "-Wno-missing-field-initializers",
            "-Wno-cast-function-type"]
setup(
    version=version(),
    ext_modules=[
        Extension(
            "abcomm._abcomm",
            [f"src/{name}.c" for name in SOURCES],
            include_dirs=[str(TREE / "include")],
            extra_compile_args=["-std=gnu11", "-O2", "-g0", "-fvisibility=hidden", *WARNINGS],
            py_limited_api=True,
        )
    ],
    cmdclass={"build_ext": Build, "bdist_wheel": Wheel},
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        "build": {"build_base": str(SCRATCH / "build")},
        "egg_info": {"egg_base": str(SCRATCH)},
    },
)
