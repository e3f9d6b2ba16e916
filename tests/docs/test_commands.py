#!/usr/bin/env python3
"""test_commands.py - the commands in docs/*.md are run, and what they print is on the page.

usage: test_commands.py BUILDDIR PAGE...

In an indented block a line that begins with "$ " is a command, the lines after it are some of its output. Each of them must be in the
real output, in any order, after numbers, host names and addresses are made equal; "..." at the end of a line stands for anything, and
alone for further lines. Also checks that every command and flag that `abcomm --help` tells is in docs/cli.md. Prints what differs,
then "N passed, N failed, N skipped".
"""
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = sys.argv[1]
LIMIT = 60  # seconds for one command


def environment():
    env = {name: value for name, value in os.environ.items() if not name.startswith("ABCOMM_")}
    env["PATH"] = os.pathsep.join([BUILD, os.path.join(BUILD, "examples"), env["PATH"]])
    return env


def run(command):
    with tempfile.TemporaryDirectory(prefix="abcomm-docs-") as where:
        done = subprocess.run(["sh", "-c", command], cwd=where, env=environment(), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT)
        return done.stdout


def alike(line):
    """What two runs have in common of a line."""
    line = re.sub(r"^\[\d+\] ", "", line.strip())  # the launcher's prefix comes once a second rank prints
    line = re.sub(r"^[\w.-]+:\d+:\d+ ", "HOST:PID:TID ", line)
    line = re.sub(r"\bon host [\w.-]+", "on host HOST", line)
    line = re.sub(r"^communicator [0-9a-f]+", "communicator ID", line)
    line = re.sub(r"0x[0-9a-f]+", "ADDRESS", line)
    line = re.sub(r"\d+(\.\d+)?(e[-+]?\d+)?( (ms|us|s|min) ago)?", "N", line)
    line = re.sub(r"\(running\)|\(sleeping\)", "(STATE)", line)
    line = re.sub(r"\b(plain|streamed) staging, process_vm_readv (not )?used", "FINDINGS", line)
    line = re.sub(r"\b(not )?usable( .*?)(: .*)?$", r"PERHAPS\2", line)  # what this machine permits
    return re.sub(r"\s+", " ", line)


def commands(page):
    """(command, expected lines) of the page's indented blocks."""
    found = []
    for line in page.splitlines():
        text = line.strip()
        if line.startswith("    ") and text.startswith("$ "):
            found.append((text[2:], []))
            inside = True
        elif not line.startswith("    ") or not text:
            inside = False
        elif found and inside:
            found[-1][1].append(text)
    return found


def differs(command, expected):
    try:
        output = run(command)
    except subprocess.TimeoutExpired:
        return f"did not end within {LIMIT} s"
    got = {alike(line) for line in output.splitlines()}
    # Which rank is named first depends on which looks first; the page has one of the possibilities.
    for line in expected:
        want = alike(line.removesuffix("..."))
        if line != "..." and not any(g.startswith(want) if line.endswith("...") else g == want for g in got):
            return f"the page has\n    {line}\nwhich is not in\n" + "\n".join("    " + g for g in output.splitlines()[:40])
    return None


def flags_of(text):
    """Flags in the usage lines and at the beginning of the lines that explain them."""
    for line in text.splitlines():
        explained = re.match(r"\s+(-\S.*?)(  |$)", line)
        if re.match(r"(usage:|       )\s*abcomm ", line) or explained:
            yield from re.findall(r"(?<![\w-])(--[a-z][\w-]*|-[a-z])\b", explained.group(1) if explained else line)


def undocumented():
    """Commands and flags of --help that docs/cli.md does not have in their section."""
    with open(os.path.join(ROOT, "docs", "cli.md"), encoding="utf-8") as file:
        parts = re.split(r"^## abcomm (\w+)$", file.read(), flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2]))
    for name in re.findall(r"^  (\w+)  ", run("abcomm --help"), flags=re.M):
        if name not in sections:
            yield f"docs/cli.md has no section of abcomm {name}"
            continue
        for flag in sorted(set(flags_of(run(f"abcomm {name} --help")))):
            if f"`{flag}" not in sections[name]:
                yield f"docs/cli.md says nothing of {flag} of abcomm {name}"


def main():
    passed = failed = 0
    for page in sys.argv[2:]:
        with open(page, encoding="utf-8") as file:
            for command, expected in commands(file.read()):
                fault = differs(command, expected) and differs(command, expected)  # once more: the machine may be busy
                passed, failed = passed + (not fault), failed + bool(fault)
                if fault:
                    print(f"{os.path.basename(page)}: $ {command}\n{fault}")
    missing = list(undocumented())
    print("\n".join(missing), end="\n" if missing else "")
    print(f"{passed + (not missing)} passed, {failed + bool(missing)} failed, 0 skipped")
    return 1 if failed or missing else 0


if __name__ == "__main__":
    sys.exit(main())
