#!/usr/bin/env python3
"""test_protocol.py - docs/protocol.md against the code.

Every member of the shared structs stands in the section of its struct, nothing stands there that does not exist, and each release
store of the engine names the load that it pairs with. Prints what is missing, then "N passed, N failed, N skipped".
"""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# struct -> header. The section of the page whose title names the struct must have all members.
STRUCTS = {
    "abci_segment_head": "src/transport/segment.h",
    "abci_control": "src/transport/shm.h",
    "abci_header": "src/transport/shm.h",
    "abci_header_slot": "src/transport/shm.h",
    "abci_counter": "src/transport/shm.h",
    "abci_mailbox": "src/transport/mail.h",
    "abci_mail_slot": "src/transport/mail.h",
    "abci_failure": "src/transport/shm.h",
    "abci_call_id": "src/transport/shm.h",
    "abci_event": "src/diag/event.h",
    "abci_event_ring": "src/diag/event.h",
}
RELEASE = re.compile(r"memory_order_(release|acq_rel)")
ABOVE, BELOW = 6, 1  # lines around a release store in which the words "pairs with" must stand


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def without_comments(text):
    return re.sub(r"/\*.*?\*/", "", text, flags=re.S)


def body_of(text, name):
    """The text between the braces of `struct name { ... }`."""
    match = re.search(rf"\bstruct {name} \{{", text)
    if not match:
        return None
    depth, at = 1, match.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[match.end() : at - 1]


def members(body):
    """Names of all members, those of inner unions and structs among them."""
    names = []
    flat = re.sub(r"\b(union|struct)(\s+\w+)?\s*\{", "", body).replace("}", ";")
    flat = re.sub(r"_Alignas\([^)]*\)", "", flat)
    flat = re.sub(r"_Atomic\(([^()]*)\)", r"\1", flat)
    for declaration in flat.split(";"):
        for part in declaration.split(","):
            match = re.search(r"(\w+)\s*(\[[^;]*\])*\s*$", re.sub(r"\[[^\]]*\]", "", part).strip())
            if match:
                names.append(match.group(1))
    return names


def sections(page):
    """{title: text} of the second-level sections."""
    parts = re.split(r"^## (.*)$", page, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2]))


def missing_members(page):
    for struct, header in STRUCTS.items():
        body = body_of(without_comments(read(header)), struct)
        if body is None:
            yield f"{header} has no struct {struct}: correct the table of {os.path.basename(__file__)}"
            continue
        title = next((t for t in sections(page) if re.search(rf"\b{struct}\b", t)), None)
        text = sections(page)[title] if title else page if f"struct {struct}`" in page else ""
        for name in members(body):
            if not re.search(rf"`{name}`", text):
                yield f"docs/protocol.md says nothing of {name}, a member of struct {struct}"


def missing_partners():
    paths = []
    for pattern in ("src/transport/*.[ch]", "src/plan/run*.[ch]", "src/diag/*.[ch]"):
        paths += glob.glob(os.path.join(ROOT, pattern))
    for path in sorted(paths):
        relative = os.path.relpath(path, ROOT)
        lines = read(relative).splitlines()
        for number, line in enumerate(lines):
            if RELEASE.search(line) and "pairs with" not in "\n".join(lines[max(0, number - ABOVE) : number + BELOW + 1]):
                yield f"{relative}:{number + 1}: a release store names no acquire load (\"pairs with ...\"): {line.strip()}"


def self_check():
    """The parser of this test itself, on a struct with everything in it."""
    body = "_Alignas(64) _Atomic uint32_t a; uint8_t b, c[4]; union { uint8_t d[32]; struct { uint64_t e[2]; } f; }; int (*g)[2];"
    got = members(body)
    for name in "abcdef":
        if name not in got:
            yield f"members() does not find {name} in {got}"


def main():
    page = read("docs/protocol.md")
    failed = 0
    checks = (("the parser", self_check()), ("members of shared structs", missing_members(page)), ("partners of release stores", missing_partners()))
    for name, faults in checks:
        faults = list(faults)
        for fault in faults:
            print(fault)
        print(f"{'FAIL' if faults else 'ok'}    {name}")
        failed += bool(faults)
    print(f"{len(checks) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
