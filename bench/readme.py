#!/usr/bin/env python3
"""readme.py - the figures of README.md and docs/pytorch.md, made from bench/results/. Standard library only.

  readme.py           rewrite the text between the marks on both pages
  readme.py --check   exit code 1 if a page does not say what the results say
"""
import csv
import pathlib
import re
import statistics
import sys

import table
import targets

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN = "<!-- figures: begin; the text between these marks is written by `./dev bench readme` -->"
END = "<!-- figures: end -->"
TIE = 0.92  # as in table.py
SIZES = [8, 512, 8192, 131072, 2097152, 8388608]
UNITS = {"ratio": "", "calls": "", "count": "", "percent": " %"}
SHOWN = {
    "create-8": "creating a communicator of 8 ranks",
    "create-touched-8": "memory that creation touches, a rank",
    "pss-beyond-buffers-8": "memory in use, 8 ranks, 2 communicators, 32 MB messages, a rank",
    "python-8B-above-c-2": "allreduce of 8 B from Python, above the same from C",
    "strict-over-default-2-8192B": "sum of 8 KB that adds in rank order (`ABCOMM_DETERMINISTIC=strict`) ÷ the default",
    "waiting-cpu-2": "CPU of a rank that waits 10 s",
    "syscalls-other-8B-in-100000": "system calls beside sched_yield and futex in 100 000 operations",
    "allocations-8B-in-100000": "memory allocations in 100 000 operations",
    "chain-over-default-8-8B": "chain of 14 hops ÷ default algorithm, 8 ranks, 8 B",
    "chain-hop-over-handoff-4": "chain, 4 ranks: a hop ÷ bare hand-off",
    "chain-hop-over-handoff-2": "chain, 2 ranks: a hop ÷ bare hand-off",
}


def size_text(n):
    return f"{n} B" if n < 1024 else f"{n >> 10} KB" if n < 1 << 20 else f"{n >> 20} MB"


def us_text(text):
    value = float(text)
    return f"{value:.2f}" if value < 10 else f"{value:.0f}"


def rows(name):
    with open(ROOT / "bench/results" / name, newline="") as f:
        return list(csv.DictReader(f))


def newest_comparison():
    """(name, what is compared with, rows by (ranks, mode, bytes, place)): with all peers if that was measured."""
    name, whom = "ompi", "Open MPI 4.1 in its best setting for the cell"
    if (ROOT / "bench/results/peers.csv").exists():
        name, whom = "peers", "the strongest of all peers and settings in the cell"
    cells = {}
    for r in rows(name + ".csv"):
        if r.get("what", "allreduce") == "allreduce" and r.get("against", "all") == "all":
            cells[int(r["ranks"]), r["mode"], int(r["bytes"]), r["place"]] = r
    return name, whom, cells


def cell_text(row, who="ours", ratio="ratio"):
    return f"{us_text(row[who + '_us'])} ({float(row[ratio]):.2f})" if row else ""


def allreduce_table():
    """Near and far are different machines: never in one column."""
    name, whom, measured = newest_comparison()
    columns = sorted({(ranks, mode) for ranks, mode, _, _ in measured}, key=lambda c: (c[0], c[1] != "near"))
    runs = [int(r["runs"]) for r in measured.values()]
    yield f"Allreduce of float32 in microseconds: ours ({whom} ÷ ours). Arena: in place, from `abc_mem_alloc`; the rest private memory."
    yield (f"Fresh data before and a full check after every call, one rank late, slowest rank counts; {min(runs)} to {max(runs)} runs a cell. 2 CPUs, "
           f"so 4 and 8 ranks share them; near and far: the two cores share a cache or not. `./dev bench {name}`")
    yield ""
    heads = [f"{ranks}{' ' + mode if mode in ('near', 'far') else ''}" for ranks, mode in columns]
    yield "| bytes | " + " | ".join(f"{h}, out of place | in place | arena" for h in heads) + " |"
    yield "| ---: |" + " ---: |" * (3 * len(columns))
    for size in SIZES:
        cells = [size_text(size)]
        for column in columns:
            out, place = (measured.get((*column, size, where)) for where in ("oop", "ip"))
            cells += [cell_text(out), cell_text(place), cell_text(place, "arena", "arena_ratio")]
        yield "| " + " | ".join(cells) + " |"
    ratios = [float(r["ratio"]) for r in measured.values()]
    hand_off = {mode: measured[2, mode, 8, "oop"]["handoff_us"] for ranks, mode in columns if ranks == 2}
    yield ""
    if (ROOT / f"bench/results/{name}.svg").exists():
        yield f"![time of the strongest peer ÷ ours by size; above 1 ours is faster](bench/results/{name}.svg)"
        yield ""
    yield (f"Of {len(ratios)} private cells {sum(r > 1 / TIE for r in ratios)} are faster, {sum(TIE <= r <= 1 / TIE for r in ratios)} ties, "
           f"{sum(r < TIE for r in ratios)} slower; all of them with quartiles in [bench/results/{name}.md](bench/results/{name}.md). The bound of "
           f"8 B with 2 ranks is the bare hand-off of a cache line: {', '.join(f'{us_text(us)} us {mode}' for mode, us in hand_off.items())}.")


def other_lines():
    """What newer results have beside allreduce: the other collectives and the targets."""
    name, _, _ = newest_comparison()
    results = table.read_results(ROOT / "bench/results" / (name + ".csv"))
    for collective in ("reduce_scatter", "allgather", "broadcast", "alltoall"):
        cells = [r for r in results if r["what"] == collective and r["against"] == "all"]
        ratios = [float(r["ratio"]) for r in cells]
        ranks = ", ".join(sorted({r["ranks"] for r in cells}, key=int))
        if ratios:
            yield (f"- {collective} of 8 B to 8 MB against Intel MPI and Open MPI 5, {ranks} ranks: peer ÷ ours "
                   f"{statistics.median(ratios):.2f} at the median of {len(ratios)} cells, {min(ratios):.2f} at the worst")
    if any(r["against"] == "own" for r in results):
        yield f"- targets: {targets.summary(results)}; each with its figure in [bench/results/{name}.md](bench/results/{name}.md)"


def figure_table():
    found = {r["name"]: r for r in rows("figures.csv")}
    yield "| other figures: `./dev bench figures` | measured | goal |"
    yield "| --- | ---: | ---: |"
    for name, text in SHOWN.items():
        if name in found:
            r = found[name]
            yield f"| {text} | {float(r['value']):.3g}{UNITS.get(r['unit'], ' ' + r['unit'])} | {r['goal'].replace('<=', '≤ ').replace('>=', '≥ ')} |"


def torch_columns():
    """(the cells of torch.csv by part, what, bytes and (ranks, mode); the columns: ranks and mode, near before far)."""
    path = ROOT / "bench/results/torch.csv"
    cells = {(r["part"], r["what"], int(r["bytes"]), (int(r["ranks"]), r["mode"])): r for r in (rows("torch.csv") if path.exists() else [])}
    return cells, sorted({key[3] for key in cells}, key=lambda c: (c[0], c[1] != "near"))


def torch_line():
    cells, columns = torch_columns()
    for what, part in (("DDP", "ddp"), ("FSDP2", "fsdp")):
        some = [cells[key] for column in columns for key in cells if key[0] == part and key[3] == column]
        if some:
            told = ", ".join(f"{table.title(int(r['ranks']), r['mode'])} {float(r['ratio']):.2f} ({100 * float(r['exposed']):.0f} % of it is "
                             "waiting)" for r in some)
            yield f"- a training step in PyTorch under {what}, on gloo ÷ on abcomm: {told}; [more](docs/pytorch.md#figures)"


def torch_table():
    """The ratios of torch.csv."""
    cells, columns = torch_columns()
    parts = ("operations", "ddp", "fsdp", "inference")
    names = sorted({key[:3] for key in cells if key[0] in parts and not key[1].startswith("pass")}, key=lambda k: (parts.index(k[0]), k[1] != "all_reduce", k[1:]))
    yield ("Time on the other ÷ time on abcomm, in brackets microseconds on abcomm; the other is gloo, for inference DeepSpeed's sum in shared "
           "memory. Arena: ordinary tensors ÷ tensors in the arena. All of it: [bench/results/torch.md](../bench/results/torch.md).\n")
    yield "| | bytes | " + " | ".join(f"{table.title(*column)} | arena" for column in columns) + " |"
    yield "| --- | ---: |" + " ---: | ---: |" * len(columns)
    for name in names:
        line = []
        for column in columns:
            r = cells.get((*name, column))
            line += [f"{float(r['ratio']):.1f} ({us_text(r['ours_us'])})" if r else "",
                     f"{float(r['arena_gain']):.2f}" if r and r["arena_gain"] else ""]
        title = {"ddp": "DDP, a step", "fsdp": "FSDP2, a step", "inference": f"inference, {name[1]}"}.get(name[0], name[1])
        yield f"| {title} | {table.human(name[2])} | " + " | ".join(line) + " |"


def main():
    others = [*other_lines(), *torch_line()]
    pages = {"README.md": [*allreduce_table(), "", *others, *([""] if others else []), *figure_table()], "docs/pytorch.md": torch_table()}
    stale = False
    for name, lines in pages.items():
        old = (ROOT / name).read_text()
        text = "\n".join(lines)
        new = re.sub(r"<!-- figures: begin.*?figures: end -->", lambda _, text=text: f"{BEGIN}\n{text}\n{END}", old, flags=re.S)
        if sys.argv[1:] == ["--check"]:
            print(f"{name} says what bench/results says" if new == old else f"{name} is out of date: run ./dev bench readme")
            stale = stale or new != old
        else:
            (ROOT / name).write_text(new)
    return int(stale)


sys.exit(main())
