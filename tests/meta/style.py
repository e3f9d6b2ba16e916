#!/usr/bin/env python3
"""style.py - the rules of STYLE.md that a program can check.

Every C file opens with a purpose comment and stays below 900 lines; no function is longer than 100 lines and 95 of 100 functions
have 50 or fewer; getenv is called in src/base/settings.c alone; the library does not print; every setting has its row in
docs/settings.md. Prints what breaks a rule, then "N passed, N failed, N skipped".
"""
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOPS = ("include", "src", "bindings", "tools", "tests", "examples", "fuzz", "bench")
FUNCTION_LIMIT, FUNCTION_P95, FILE_LIMIT, LINE_LIMIT = 100, 50, 900, 132


def c_files():
    for top in TOPS:
        for where, _, names in os.walk(os.path.join(ROOT, top)):
            for name in sorted(names):
                if name.endswith((".c", ".h")):
                    path = os.path.relpath(os.path.join(where, name), ROOT)
                    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                        yield path, file.read()


def functions(text):
    """(first line, lines) of each function: a body opens with { in the first column and ends with } there."""
    lines = text.splitlines()
    start = None
    for number, line in enumerate(lines):
        if line == "{":
            start = number
            while start > 0 and lines[start - 1] and not re.match(r"[}#/]|.*[;}]$|.*\*/$", lines[start - 1]):
                start -= 1
        elif line == "}" and start is not None:
            yield start + 1, number - start + 1
            start = None


def without_comments(text):
    text = re.sub(r"/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def lines_with(pattern, text):
    for number, line in enumerate(without_comments(text).splitlines(), 1):
        if re.search(pattern, re.sub(r'"(\\.|[^"\\])*"', '""', line)):
            yield number


def rule_purpose(files):
    for path, text in files:
        name = re.escape(os.path.basename(path))
        if not re.match(r"(#!.*\n)?/\*\s*(\*\s*)?" + name + r" - \S", text):
            yield f"{path}: does not open with a comment \"{os.path.basename(path)} - what it is for\""


def rule_sizes(files):
    lengths = []
    for path, text in files:
        if text.count("\n") > FILE_LIMIT:
            yield f"{path}: {text.count(chr(10))} lines, over {FILE_LIMIT}"
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > LINE_LIMIT:
                yield f"{path}:{number}: {len(line)} columns, over {LINE_LIMIT}"
        for line, length in functions(text):
            if path.startswith(("src/", "tools/")):
                lengths.append(length)
            if length > FUNCTION_LIMIT:
                yield f"{path}:{line}: a function of {length} lines, over {FUNCTION_LIMIT}"
    lengths.sort()
    p95 = lengths[int(0.95 * (len(lengths) - 1))] if lengths else 0
    if p95 > FUNCTION_P95:
        yield f"95 % of the functions have up to {p95} lines, over {FUNCTION_P95}"


def rule_getenv(files):
    for path, text in files:
        if path.startswith(("src/", "tools/")) and path != "src/base/settings.c":
            for number in lines_with(r"\b(secure_)?getenv\s*\(", text):
                yield f"{path}:{number}: getenv outside src/base/settings.c; add a row to src/base/settings.def"


def rule_printing(files):
    for path, text in files:
        if path.startswith("src/"):
            for number in lines_with(r"\b(printf|puts|putchar|perror|abort|exit)\s*\(", text):
                yield f"{path}:{number}: the library neither prints nor ends the process"


def rule_settings(files):
    with open(os.path.join(ROOT, "src/base/settings.def"), encoding="utf-8") as file:
        names = ["ABCOMM_" + name for name in re.findall(r"^ABCI_SETTING_ENUM\((\w+),", file.read(), flags=re.M)]
    page = os.path.join(ROOT, "docs/settings.md")
    if not os.path.exists(page):
        yield "docs/settings.md is missing; ./dev docs writes it"
        return
    with open(page, encoding="utf-8") as file:
        text = file.read()
    for name in names:
        if not re.search(name + r"\b", text):
            yield f"docs/settings.md does not mention {name}; ./dev docs writes it"


def main():
    files = list(c_files())
    rules = [("purpose comments", rule_purpose), ("lengths of functions, files and lines", rule_sizes),
             ("getenv in one file", rule_getenv), ("no printing in the library", rule_printing),
             ("settings are documented", rule_settings)]
    failed = 0
    for name, rule in rules:
        faults = list(rule(files))
        for fault in faults:
            print(fault)
        print(f"{'FAIL' if faults else 'ok'}    {name}")
        failed += bool(faults)
    print(f"{len(rules) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
