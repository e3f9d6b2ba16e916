#!/usr/bin/env python3
"""edges.py - checks who may include and who may call whom; the architecture as a table.

Usage: edges.py [BUILDDIR]. Reads the sources; with a build directory it also reads the symbols of the folders' static libraries,
which shows calls that no include gives away. Prints each edge that is not allowed, then "N passed, N failed, N skipped".
"""
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Folder -> folders that it may include, beside itself and the public header.
ALLOWED = {
    "base": set(),
    "reduce": {"base"},
    "codec": {"base"},
    "transport": {"base", "plan"},
    "topo": {"base"},
    "diag": {"base"},
    "plan": {"base"},
    "algo": {"plan", "topo"},
    "tune": {"base", "plan", "topo"},
    "bucket": {"base", "comm", "plan", "codec"},
    "comm": {"base", "plan", "topo", "tune", "diag"},
    "api": {"base", "comm", "plan"},
    "tools": {"base", "plan", "diag", "tune"},
}
# Files that may include more: the executor, run.c and run_*.c, is the only mover of bytes.
EXECUTOR = re.compile(r"^src/plan/run(_\w+)?\.[ch]$")
EXECUTOR_MAY = {"base", "plan", "reduce", "transport", "codec", "diag"}
# Headers that a folder may see of another one, where it is not all of them.
ONLY_HEADERS = {
    ("algo", "plan"): {"plan/plan.h"},
    ("algo", "topo"): {"topo/topo.h"},
    ("transport", "plan"): {"plan/plan.h"},
}
# Single files that may see more, each with its reason.
EXCEPTIONS = {
    ("tools/info.c", "reduce/reduce.h"): "prints the kernel family",
    ("tools/inspect.h", "transport/shm.h"): "reads the shared words of a rank from outside",
}
# Calls that move or combine a user's bytes.
MOVERS = re.compile(r"\babci_(reduce|copy)\s*\(")
# Calls that the table of includes does not show, each with its reason.
CALLS_ALLOWED = {
    "plan": {"abci_algos"},  # the generated list of algorithms
}


def folder_of(path):
    parts = path.split("/")
    return parts[1] if parts[0] == "src" else parts[0]


def sources():
    for top in ("src", "tools"):
        for where, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    yield os.path.relpath(os.path.join(where, name), ROOT)


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)


def included(path, text):
    """Project headers that a file includes, as "folder/name.h"."""
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, flags=re.M):
        beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
        if os.path.exists(os.path.join(ROOT, beside)):
            yield beside.removeprefix("src/")
        else:
            yield name


def may_see(path):
    folder = folder_of(path)
    return EXECUTOR_MAY if EXECUTOR.match(path) else ALLOWED[folder] | {folder}


def check_includes(path, text):
    folder = folder_of(path)
    if folder not in ALLOWED:
        yield f"{path}: folder {folder} is not in the table of tests/meta/edges.py"
        return
    for header in included(path, text):
        other = header.split("/")[0] if "/" in header else folder
        if other not in ALLOWED or (path, header) in EXCEPTIONS:
            continue
        if other != folder and other not in may_see(path):
            yield f"{path} includes {header}: {folder} may include {', '.join(sorted(ALLOWED[folder])) or 'nobody'}"
        elif header not in ONLY_HEADERS.get((folder, other), {header}):
            yield f"{path} includes {header}: {folder} sees only {', '.join(sorted(ONLY_HEADERS[folder, other]))}"


def check_movers(path, text):
    if folder_of(path) == "reduce" or EXECUTOR.match(path):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if MOVERS.search(line):
            yield f"{path}:{number}: only src/plan/run*.c moves bytes: {line.strip()}"


def symbols(archive, folder):
    """{source file: (defined, undefined)} of a folder's static library."""
    out = subprocess.run(["nm", "-A", archive], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout
    table = {}
    for line in out.splitlines():
        match = re.match(r"(?:.*:)?([^:/]*\.o):\s*[0-9a-f]*\s+(\w) (\w+)", line)
        if not match:
            continue
        name = match.group(1).removesuffix(".o").removeprefix(folder + "_")  # meson: plan_run.c.o
        defined, undefined = table.setdefault(name, (set(), set()))
        if match.group(2) == "U":
            undefined.add(match.group(3))
        elif match.group(2).isupper():
            defined.add(match.group(3))
    return table


def check_symbols(build):
    """Calls between folders, from the object files: the same table, and the movers of bytes."""
    tables = {}
    for folder in ALLOWED:
        archive = os.path.join(build, "src", f"libpart_{folder}.a")
        if os.path.exists(archive):
            tables[folder] = symbols(archive, folder)
    owner = {s: folder for folder, table in tables.items() for defined, _ in table.values() for s in defined}
    for folder, table in tables.items():
        for name, (_, undefined) in sorted(table.items()):
            path = f"src/{folder}/{name}"
            for symbol in sorted(undefined):
                other = owner.get(symbol)
                if other is None or other == folder or other in may_see(path):
                    continue
                if symbol in CALLS_ALLOWED.get(folder, ()):
                    continue
                yield f"{path} uses {symbol} of {other}"


def report(name, faults, totals):
    faults = list(faults)
    for fault in faults:
        print(fault)
    print(f"{'FAIL' if faults else 'ok'}    {name}")
    totals["failed" if faults else "passed"] += 1


def main():
    texts = {}
    for path in sources():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            texts[path] = without_comments(file.read())
    totals = {"passed": 0, "failed": 0}
    report("includes", (f for p, t in texts.items() for f in check_includes(p, t)), totals)
    report("movers of bytes", (f for p, t in texts.items() for f in check_movers(p, t)), totals)
    if len(sys.argv) > 1:
        report("symbols between folders", check_symbols(sys.argv[1]), totals)
    print(f"{totals['passed']} passed, {totals['failed']} failed, 0 skipped")
    return 1 if totals["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
