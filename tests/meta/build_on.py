#!/usr/bin/env python3
"""build_on.py - what others build on the installed library: the examples through pkg-config, a static program, a CMake project; and
that the manual pages are complete.

Usage: build_on.py BUILDDIR. Ends with "N passed, N failed, N skipped".
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from installed import ROOT, Fault, Report, Skip, compilers, run

WARNINGS = ["-Wall", "-Wextra", "-Werror"]
# Example, whether it is started as ranks, and what it must say. mpi.c needs an MPI: tests/launch. trouble.c fails on purpose.
EXAMPLES = [
    ("hello.c", True, "rank 1 of 2: the sum is 3"),
    ("hello.cc", True, "rank 1 of 2: the sum is 3"),
    ("persistent.c", True, "on 2 ranks: 0 wrong values"),
    ("user_op.c", True, "all 2 functions in a row"),
    ("threads.c", False, "thread 3 of 4: the sum is 10"),
]


def pkg_config(installed, *words):
    return run(["pkg-config", *words, "abcomm"], env=installed.environment).split()


def compile_example(name, program, flags):
    plus = name.endswith(".cc")
    compiler = compilers("g++", "clang++")[0] if plus else compilers("cc", "gcc", "clang")[0]
    run([compiler, *WARNINGS, *(["-std=c++11"] if plus else []), "-o", program, os.path.join(ROOT, "examples", name), *flags])


def must_say(installed, program, ranks, words, environment=None):
    start = [installed.one("bin/abcomm"), "run", "-n", "2", "--"] if ranks else []
    out = run([*start, program], env=environment or installed.environment)
    if words not in out:
        raise Fault(f"{program} did not say \"{words}\":\n{out}")


def check_example(installed, scratch, name, ranks, words):
    program = os.path.join(scratch, name.replace(".", "-"))
    compile_example(name, program, [*pkg_config(installed, "--cflags", "--libs"), "-pthread"])
    must_say(installed, program, ranks, words)


def check_names(installed):
    """No global name of the archive can clash with a program's own."""
    names = set()
    for line in run(["nm", "-g", "--defined-only", installed.one("libabcomm.a")]).splitlines():
        if len(line.split()) == 3:
            names.add(line.split()[2])
    strangers = sorted(name for name in names if not re.match(r"(abc|abci)_", name))
    if strangers or "abc_allreduce" not in names:
        raise Fault(f"libabcomm.a has global names without our prefix: {', '.join(strangers)}" if strangers else "nm says too little")


def check_static(installed, scratch):
    """A program that carries the library in itself runs where the shared one is not."""
    program = os.path.join(scratch, "static")
    flags = pkg_config(installed, "--static", "--cflags", "--libs")
    flags = ["-l:libabcomm.a" if flag == "-labcomm" else flag for flag in flags]
    compile_example("hello.c", program, flags)
    if "libabcomm" in run(["ldd", program]):
        raise Fault("the static program still needs libabcomm.so")
    environment = {name: value for name, value in installed.environment.items() if name != "LD_LIBRARY_PATH"}
    must_say(installed, program, True, "rank 1 of 2: the sum is 3", environment)


CMAKE_PROJECT = """
cmake_minimum_required(VERSION 3.16)
project(user C)
find_package(abcomm {version} REQUIRED)
add_executable(shared hello.c)
target_link_libraries(shared PRIVATE abcomm::abcomm)
add_executable(static hello.c)
target_link_libraries(static PRIVATE abcomm::abcomm_static)
"""


def configure(installed, source, build, version, fails=False):
    os.makedirs(source, exist_ok=True)
    shutil.copy(os.path.join(ROOT, "examples/hello.c"), source)
    with open(os.path.join(source, "CMakeLists.txt"), "w", encoding="utf-8") as file:
        file.write(CMAKE_PROJECT.format(version=version))
    folder = os.path.dirname(installed.one("abcommConfig.cmake"))
    return run(["cmake", "-S", source, "-B", build, f"-Dabcomm_DIR={folder}"], fails=fails)


def check_cmake(installed, scratch):
    if not shutil.which("cmake"):
        raise Skip("cmake is not installed")
    build = os.path.join(scratch, "cmake-build")
    configure(installed, os.path.join(scratch, "cmake"), build, "0.1")
    run(["cmake", "--build", build])
    for name in ("shared", "static"):
        must_say(installed, os.path.join(build, name), True, "rank 1 of 2: the sum is 3")
    if "libabcomm" in run(["ldd", os.path.join(build, "static")]):
        raise Fault("abcomm::abcomm_static needs libabcomm.so")


def check_cmake_versions(installed, scratch):
    """Another minor version before 1.0, or a newer one, is refused with a text that names both."""
    if not shutil.which("cmake"):
        raise Skip("cmake is not installed")
    for version, fits in (("0.1.0", True), ("0.1...<1.0", True), ("0.0.9", False), ("0.2", False), ("0.1.9", False), ("1", False)):
        place = os.path.join(scratch, "version-" + re.sub(r"\W", "-", version))
        said = configure(installed, place, os.path.join(place, "build"), version, fails=not fits)
        if not fits and "abcomm" not in said:
            raise Fault(f"the refusal of version {version} does not say of what:\n{said}")


def flags_of(text):
    """Flags at the beginning of the lines of --help that explain them."""
    for line in text.splitlines():
        explained = re.match(r"\s+(-\S.*?)(  |$)", line)
        if explained:
            yield from re.findall(r"(?<![\w-])(--[a-z][\w-]*|-[a-z])\b", explained.group(1))


def check_man(installed):
    """Each command has its page, with each flag of its --help."""
    program = installed.one("bin/abcomm")
    installed.one("man1/abcomm.1")
    names = re.findall(r"^  (\w+)  ", run([program, "--help"], env=installed.environment), flags=re.M)
    if len(names) < 5:
        raise Fault(f"abcomm --help tells only these commands: {names}")
    for name in names:
        with open(installed.one(f"man1/abcomm-{name}.1"), encoding="utf-8") as file:
            text = file.read().replace("\\-", "-")
        for flag in sorted(set(flags_of(run([program, name, "--help"], env=installed.environment)))):
            if f"\\fB{flag}" not in text:
                raise Fault(f"abcomm-{name}.1 does not explain {flag}")


def check_roff(installed):
    if not shutil.which("groff"):
        raise Skip("groff is not installed")
    folder = os.path.dirname(installed.one("man1/abcomm.1"))
    for name in sorted(os.listdir(folder)):
        done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-z", os.path.join(folder, name)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0 or done.stderr:
            raise Fault(f"groff has something to say on {name}:\n{done.stderr}")


def main():
    report = Report()
    check, need = report.check, report.need
    with tempfile.TemporaryDirectory() as scratch:
        check("meson install", lambda: report.install(sys.argv[1], os.path.join(scratch, "place")))
        for name, ranks, words in EXAMPLES:
            check(f"examples/{name} through pkg-config", lambda n=name, r=ranks, w=words: check_example(need(), scratch, n, r, w))
        check("names in the archive", lambda: check_names(need()))
        check("a static program", lambda: check_static(need(), scratch))
        check("a CMake project", lambda: check_cmake(need(), scratch))
        check("versions that CMake takes", lambda: check_cmake_versions(need(), scratch))
        check("manual pages have every flag", lambda: check_man(need()))
        check("manual pages are clean roff", lambda: check_roff(need()))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
