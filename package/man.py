#!/usr/bin/env python3
"""man.py - makes the manual pages of `abcomm` out of docs/cli.md: abcomm.1, and abcomm-COMMAND.1 for each section of the page.

usage: man.py CLI.MD VERSION PAGE...

Understands what that page uses: headings, paragraphs, indented blocks (before the first paragraph the usage, else an example), tables
of two columns, `code`, *emphasis*, and links, of which the words stay. A paragraph on "This page" is left out. Anything else ends
with an error rather than with a manual page that lacks something.
"""
import os
import re
import sys


def escape(text):
    """Text that roff prints as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    return "\\&" + text if text.startswith(".") else text


def inline(text):
    """A paragraph or a cell: code is bold, emphasis italic, a link its words and the page's name."""
    text = re.sub(r"\[([^]]*)\]\(([^)]*)\)", r"\1", text)
    pieces = re.split(r"(`[^`]*`|\*[^*]+\*)", text)
    out = ""
    for piece in pieces:
        if piece.startswith("`"):
            out += "\\fB" + escape(piece[1:-1]).removeprefix("\\&") + "\\fP"
        elif piece.startswith("*") and len(piece) > 2:
            out += "\\fI" + escape(piece[1:-1]).removeprefix("\\&") + "\\fP"
        else:
            out += escape(piece)
    return out


def blocks(text):
    """(kind, lines) of a section: "code", "table" or "text"."""
    found = []
    for line in text.splitlines():
        kind = "code" if line.startswith("    ") else "table" if line.startswith("|") else "text" if line.strip() else None
        if line.startswith("#") or line.startswith("```"):
            sys.exit(f"man.py: this page has something that it does not know: {line}")
        if kind and found and found[-1][0] == kind:
            found[-1][1].append(line.strip() if kind != "code" else line[4:])
        else:
            found.append((kind, [line.strip() if kind != "code" else line[4:]]))
    return [block for block in found if block[0]]


def table(lines):
    out = []
    for line in lines[2:]:  # after the heading and its rule
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line.strip("|"))]
        if len(cells) != 2:
            sys.exit(f"man.py: not two columns: {line}")
        out += [".TP", inline(cells[0]), inline(cells[1])]
    return out


def heading_of(lines):
    return "OPTIONS" if "flag" in lines[0] else "COLUMNS"


def body(text):
    """Synopsis, description, options and examples, in this order of sections."""
    synopsis, description, tables, examples = [], [], [], []
    for kind, lines in blocks(text):
        if lines[0].startswith("This page "):
            continue
        if kind == "code" and not synopsis:
            synopsis = [f".B {escape(line)}\n.br" for line in lines]
        elif kind == "code":
            examples += [".PP", ".nf", ".RS", *(escape(line) for line in lines), ".RE", ".fi"]
        elif kind == "table":
            tables += [f".SH {heading_of(lines)}", *table(lines)]
        else:
            target = examples if examples else description
            target += [".PP", inline(" ".join(lines))]
    out = [".SH SYNOPSIS", *synopsis, ".SH DESCRIPTION", *description, *tables]
    return out + ([".SH EXAMPLES", *examples] if examples else [])


def page(name, summary, version, lines, others):
    title = name.upper()
    see = ", ".join(f"\\fB{escape(other)}\\fP(1)" for other in others if other != name)
    return "\n".join([f'.TH "{escape(title)}" 1 "" "abcomm {version}" "User Commands"', ".SH NAME",
                      f"{escape(name)} \\- {escape(summary)}", *lines, ".SH SEE ALSO", see]) + "\n"


def first_sentence(text):
    """What a section says first; for the line that `apropos` searches."""
    for kind, lines in blocks(text):
        if kind == "text":
            words = re.split(r"[.:;](?: |$)|, and ", re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(lines)).replace("`", ""))[0]
            return words[0].lower() + words[1:]
    sys.exit("man.py: a section without words")


def main():
    source, version, *outputs = sys.argv[1:]
    path_of = {os.path.basename(path).removesuffix(".1"): path for path in outputs}
    with open(source, encoding="utf-8") as file:
        parts = re.split(r"^## (abcomm \w+)$", file.read(), flags=re.M)
    overview = re.sub(r"^# .*\n", "", parts[0])
    sections = {name.replace(" ", "-"): text for name, text in zip(parts[1::2], parts[2::2])}
    names = ["abcomm", *sections]
    if sorted(path_of) != sorted(names):
        sys.exit(f"man.py: {source} has sections for {', '.join(names)}, package/meson.build has {', '.join(sorted(path_of))}")
    commands = [".SH COMMANDS"]
    for name, text in sections.items():
        commands += [".TP", f"\\fB{escape(name)}\\fP(1)", escape(first_sentence(text))]
        pages = page(name, first_sentence(text), version, body(text), names)
        with open(path_of[name], "w", encoding="utf-8") as file:
            file.write(pages)
    with open(path_of["abcomm"], "w", encoding="utf-8") as file:
        file.write(page("abcomm", "collectives for data-parallel training", version, body(overview) + commands, names))


if __name__ == "__main__":
    main()
