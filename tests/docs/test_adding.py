#!/usr/bin/env python3
"""test_adding.py - docs/adding.md does what it says: its algorithm and its commands, applied to a copy of the tree.

Extracts the C file and the shell commands of the page, runs them in a temporary folder, and asserts that the new algorithm is
listed, proved, printed as on the page, and sums rightly. Prints "N passed, N failed, N skipped"; exit 77 without meson or ninja.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
COPIED = ("include", "src", "tools", "package", "docs", "meson.build", "meson_options.txt")


def page():
    with open(os.path.join(ROOT, "docs", "adding.md"), encoding="utf-8") as file:
        return file.read().split("\n## A setting")[0]


def copy_tree(to):
    for name in COPIED:
        source = os.path.join(ROOT, name)
        (shutil.copytree if os.path.isdir(source) else shutil.copy)(source, os.path.join(to, name))


def run(command, where):
    done = subprocess.run(["sh", "-ec", command], cwd=where, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=400)
    return done.returncode, done.stdout


def main():
    for tool in ("meson", "ninja"):
        if not shutil.which(tool):
            print(f"skipped: {tool} is not installed")
            return 77
    text = page()
    source = re.search(r"^```c\n(/\*\n \* (star)\.c - .*?)^```", text, flags=re.M | re.S)
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.M | re.S)
    shown = re.findall(r"^    (allreduce by star.*\n(?:    .*\n)+)", text, flags=re.M)
    assert source and len(blocks) == 3 and len(shown) == 1, "docs/adding.md has lost its code, its commands or its output"
    results, tree = [], tempfile.mkdtemp(prefix="abcomm-adding-")
    try:
        copy_tree(tree)
        with open(os.path.join(tree, "src/algo/star.c"), "w", encoding="utf-8") as file:
            file.write(source.group(1))
        code, build = run(blocks[0], tree)
        results.append(("it builds", code == 0, build))
        outputs = [run(line, tree) if code == 0 else (1, "not built") for line in (blocks[1] + blocks[2]).strip().splitlines()]
        listed, printed, proved, compared, measured = outputs
        expected = [line.strip() for line in shown[0].splitlines()]
        results += [
            ("abcomm plan --list shows it", re.search(r"^star +rank 0 sums", listed[1], flags=re.M), listed[1]),
            ("the plan is the page's", [line.strip() for line in printed[1].splitlines()][: len(expected)] == expected, printed[1]),
            ("--check proves it", proved[0] == 0 and "checked ok" in proved[1], proved[1]),
            ("it is compared with the others", re.search(r"^star .* ok$", compared[1], flags=re.M), compared[1]),
            ("it runs and sums rightly", measured[0] == 0 and "Out of bounds values : 0 OK" in measured[1], measured[1]),
        ]
    finally:
        shutil.rmtree(tree, ignore_errors=True)
    for name, passed, output in results:
        print(f"{'ok  ' if passed else 'FAIL'}  {name}")
        if not passed:
            print(output)
    failed = sum(not passed for _, passed, _ in results)
    print(f"{len(results) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
