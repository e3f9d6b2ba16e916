#!/usr/bin/env python3
"""packaging.py - installs the library into an empty place and uses it as a stranger would.

Usage: packaging.py BUILDDIR. Checks the public headers in C11 and C++11, the exported symbols, the installed files, the pkg-config
file, and README.md's program: compiled against the installed library and run on two ranks. Ends with "N passed, N failed,
N skipped".
"""
import os
import re
import sys
import tempfile

from installed import ROOT, Fault, Report, compilers, run

STRICT = ["-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Werror", "-fsyntax-only"]
PROGRAM_LINES = 15


def check_headers(language, standard, names, scratch):
    """Each public header, alone and twice, is a clean translation unit."""
    for header in ("abcomm/abcomm.h", "abcomm/status.h"):
        source = os.path.join(scratch, "header.c")
        with open(source, "w", encoding="utf-8") as file:
            file.write(f"#include <{header}>\n#include <{header}>\nint main(void);\nint main(void) {{ return ABC_OK; }}\n")
        for compiler in compilers(*names):
            run([compiler, "-x", language, f"-std={standard}", *STRICT, "-I", os.path.join(ROOT, "include"), source])


def check_files(installed):
    for name in ("abcomm.h", "status.h", "libabcomm.so.0", "abcomm.pc"):
        installed.one(name)
    program = installed.one("bin/abcomm")
    if not os.access(program, os.X_OK):
        raise Fault(f"{program} is not executable")


def check_symbols(installed):
    out = run(["nm", "-D", "--defined-only", installed.library])
    names = [line.split()[-1] for line in out.splitlines() if line.split()[-2:-1] != ["A"]]
    strangers = [name for name in names if not name.startswith("abc_")]
    if strangers:
        raise Fault(f"the library exports {', '.join(strangers)}")
    unversioned = [name for name in names if "@@ABCOMM_" not in name]
    if unversioned:
        raise Fault(f"symbols without a version: {', '.join(unversioned)}")
    with open(os.path.join(ROOT, "include/abcomm/abcomm.h"), encoding="utf-8") as file:
        declared = set(re.findall(r"^ABC_API [^(]*?\b(abc_\w+)\(", file.read(), flags=re.M))
    exported = {name.split("@")[0] for name in names}
    with open(os.path.join(ROOT, "src/libabcomm.map"), encoding="utf-8") as file:
        listed = re.findall(r"^    (abc_\w+);$", file.read(), flags=re.M)
    if sorted(listed) != sorted(declared):
        raise Fault(f"src/libabcomm.map differs from abcomm.h: it lacks {sorted(declared - set(listed))}, and has in vain or twice "
                    f"{sorted(set(listed) - declared) or [name for name in listed if listed.count(name) > 1]}")
    if declared != exported:
        raise Fault(f"declared, not exported: {sorted(declared - exported)}; exported, not declared: {sorted(exported - declared)}")


def check_soname(installed):
    if "libabcomm.so.0" not in run(["objdump", "-p", installed.library]).split("SONAME")[-1].split("\n")[0]:
        raise Fault("the SONAME is not libabcomm.so.0")


def check_readme(installed, scratch):
    with open(os.path.join(ROOT, "README.md"), encoding="utf-8") as file:
        programs = re.findall(r"^```c\n(.*?)^```", file.read(), flags=re.M | re.S)
    if not programs:
        raise Fault("README.md shows no C program")
    lines = [line for line in programs[0].splitlines() if line.strip()]
    if len(lines) > PROGRAM_LINES:
        raise Fault(f"README.md's program has {len(lines)} lines, over {PROGRAM_LINES}")
    source, program = os.path.join(scratch, "readme.c"), os.path.join(scratch, "readme")
    with open(source, "w", encoding="utf-8") as file:
        file.write(programs[0])
    flags = run(["pkg-config", "--cflags", "--libs", "abcomm"], env=installed.environment).split()
    run([compilers("cc", "gcc", "clang")[0], "-Wall", "-Wextra", "-Werror", "-o", program, source, *flags])
    out = run([installed.one("bin/abcomm"), "run", "-n", "2", "--", program], env=installed.environment)
    for rank in (0, 1):
        if f"rank {rank} of 2: the sum is 3" not in out:
            raise Fault(f"README.md's program did not print rank {rank}'s sum:\n{out}")


def main():
    report = Report()
    check, need = report.check, report.need
    with tempfile.TemporaryDirectory() as scratch:
        check("headers are C11", lambda: check_headers("c", "c11", ("gcc", "clang"), scratch))
        check("headers are C++11", lambda: check_headers("c++", "c++11", ("g++", "clang++"), scratch))
        check("meson install", lambda: report.install(sys.argv[1], os.path.join(scratch, "place")))
        check("installed files", lambda: check_files(need()))
        check("exported symbols", lambda: check_symbols(need()))
        check("SONAME", lambda: check_soname(need()))
        check("README.md's program", lambda: check_readme(need(), scratch))
    return report.end()


if __name__ == "__main__":
    sys.exit(main())
