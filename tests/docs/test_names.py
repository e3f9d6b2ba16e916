#!/usr/bin/env python3
"""test_names.py - what docs/*.md and the pages at the top name exists: files and folders, functions, fields, settings, statuses, links
between pages and to their headings.

A name is what stands in single backquotes, or a path below src/, tests/, tools/, ... Prints what does not exist, then
"N passed, N failed, N skipped".
"""
import glob
import os
import re
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOPS = "include src tools tests examples fuzz bench docs data .ci"
PATH = re.compile(r"(?<![\w./-])((?:" + "|".join(re.escape(top) for top in TOPS.split()) + r")/[\w./-]*\w/?)")
CODE = ("include", "src", "bindings", "tools", "examples", "tests", "fuzz", "bench")
# Made on purpose by the text around them, so not in the tree.
INVENTED = {"docs/adding.md": {"star", "src/algo/star.c", "abci_algo_star", "ABCOMM_LINGER"},
            "CONTRIBUTING.md": {"fuzz/fuzz_NAME.c"},
            "STYLE.md": {"abc_noun_verb", "abci_module_verb"}}


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8", errors="replace") as file:
        return file.read()


def words_of_code():
    words = set()
    for top in CODE:
        for where, _, names in os.walk(os.path.join(ROOT, top)):
            for name in names:
                if os.path.relpath(where, ROOT) == "tests/docs":
                    continue  # what only the tests of the pages say does not exist for it
                if name.endswith((".c", ".h", ".def", ".in", ".build", ".py", ".sh")):
                    words.add(name)
                    words.update(re.findall(r"\w+", read(os.path.join(where, name))))
    words.update(re.findall(r"\w+", read("meson_options.txt") + read("meson.build") + read("dev")))
    settings = re.findall(r"^ABCI_SETTING_ENUM\((\w+),", read("src/base/settings.def"), flags=re.M)
    return words | {"ABCOMM_" + name for name in settings}


def without_code(text):
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    return re.sub(r"^    .*$", "", text, flags=re.M)


def missing_paths(name, text):
    for path in sorted(set(PATH.findall(without_code(text)))):
        if path in INVENTED.get(name, ()) or re.search(r"\b[A-Z]+\b", path):  # tools/NAME.c stands for any
            continue
        if not os.path.exists(os.path.join(ROOT, path)) and not glob.glob(os.path.join(ROOT, path) + "*"):
            yield f"{name}: there is no {path}"


def missing_words(name, text, words):
    for quoted in sorted(set(re.findall(r"`([^`\n]+)`", without_code(text)))):
        match = re.fullmatch(r"(?:struct |enum )?([A-Za-z_]\w*)(?:\(\))?", quoted)
        if match and match.group(1) not in words and match.group(1) not in INVENTED.get(name, ()):
            yield f"{name}: `{quoted}` is nowhere in the code"


def anchors(text):
    """What links to the headings of a page say behind the #."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def missing_links(name, text):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
        path = os.path.normpath(os.path.join(os.path.dirname(name), target)) if target else name
        if re.match(r"[a-z]+:", target):
            continue
        if not os.path.exists(os.path.join(ROOT, path)):
            yield f"{name}: the link to {target} leads nowhere"
        elif anchor and path.endswith(".md") and anchor not in anchors(read(path)):
            yield f"{name}: {path} has no heading for #{anchor}"


def main():
    words = words_of_code()
    pages = sorted(os.path.relpath(page, ROOT) for page in glob.glob(os.path.join(ROOT, "docs", "*.md")))
    pages += ["README.md", "CONTRIBUTING.md", "STYLE.md"]
    failed = 0
    for name in pages:
        text = read(name)
        faults = [*missing_paths(name, text), *missing_words(name, text, words), *missing_links(name, text)]
        for fault in faults:
            print(fault)
        failed += bool(faults)
    print(f"{len(pages) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
