#!/usr/bin/env python3
"""table.py - turns the rows of bench/compare.c into choices, tables and comparisons. Standard library only; peers.py uses it too.

  table.py choose TUNING.csv BEST.csv                 the best settings of all peers for each cell, two rows: by time, by ratio
  table.py settings BEST.csv RANKS                    the settings that are best somewhere, one a line
  table.py report RUNS.csv NOTES.csv OUT.csv          medians over runs as CSV into OUT.csv and as Markdown to stdout
  table.py compare OLD.csv NEW.csv                    cells that got worse by more than 10 %; exit code 1 if there are any

A cell is ranks, bytes, place (oop: out of place, ip: in place) and mode: with two ranks near or far, by the bare hand-off of a cache
line that the same program run measured; - with more ranks. A setting is PEER/NAME.
"""
import collections
import csv
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys

RAW = ("setting ranks bytes place peer_us ours_us arena_us handoff_us copy_us half_us samples wrong_peer wrong_ours").split()
OUT = ("ranks bytes place mode setting peer_us ours_us ratio ratio_q1 ratio_q3 bound_us share arena_setting arena_us arena_ratio "
       "arena_q1 arena_q3 arena_bound_us arena_share handoff_us runs wrong").split()
NEAR_US = 0.15   # two ranks: cores behind one cache hand a line over in less
TIE = 0.92       # from here to its inverse the difference is noise
WORSE = 1.10
INLINE = 56      # bytes that can travel in the line of the flag, so that one hand-off moves them
MEMORIES = (("", "private"), ("arena_", "arena"))


def read(path, with_run=False):
    """Rows of a file without header; what is no complete row, such as a line of a broken run, is dropped."""
    names = (["run"] if with_run else []) + RAW
    with open(path, newline="") as f:
        rows = [dict(zip(names, line)) for line in csv.reader(f) if len(line) == len(names)]
    for row in rows:
        for name in ("ranks", "bytes", "samples", "wrong_peer", "wrong_ours"):
            row[name] = int(row[name])
        for name in row:
            if name.endswith("_us"):
                row[name] = float(row[name]) if row[name] else None
        row["mode"] = "-" if row["ranks"] != 2 else "near" if row["handoff_us"] < NEAR_US else "far"
    return rows


def cell(row):
    return int(row["ranks"]), int(row["bytes"]), row["place"], row["mode"]


def order(key):
    """Near before far, out of place before in place."""
    return key[0], key[3] == "far", key[1], key[2] != "oop"


def ratio(row, memory="ours_us"):
    """Of one program run. The clock resolves some nanoseconds; no call takes less."""
    return row["peer_us"] / max(row[memory], 0.005)


def choose(tuning_path, best_path):
    """By its time, and by the ratio to our calls in the same process, which depends less on what else the machine did in that minute."""
    measures = {"time": lambda row: row["peer_us"], "ratio": ratio}
    best = {}
    for row in read(tuning_path):
        for by, measure in measures.items():
            key = cell(row), by
            if row["wrong_peer"] == 0 and (key not in best or measure(row) < measure(best[key])):
                best[key] = row
    with open(best_path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        for (key, by), row in sorted(best.items(), key=lambda one: (order(one[0][0]), one[0][1] != "time")):
            out.writerow([*key, by, row["setting"], row["peer_us"], round(ratio(row), 3)])


def best_somewhere(path, ranks):
    with open(path, newline="") as f:
        return sorted({r[5] for r in csv.reader(f) if int(r[0]) == int(ranks)})


def settings(path, ranks):
    print("\n".join(best_somewhere(path, ranks)))


def read_notes(path):
    with open(path, newline="") as f:
        return [(r[0], r[1]) for r in csv.reader(f) if len(r) == 2]


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    q1, q2, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, q2, q3


def bounds(row):
    """(private, arena) in microseconds, what no library can beat by much; (None, None) where it was not measured.

    Each byte of the other rank must come over once, after one hand-off. In shared memory in place a rank may reduce one half and leave
    the result for the other to fetch later: half of the bytes, two hand-offs.
    """
    if row["copy_us"] is None:
        return None, None
    if row["bytes"] <= INLINE:
        return row["handoff_us"], row["handoff_us"]
    whole = row["handoff_us"] + row["copy_us"]
    return whole, whole if row["half_us"] is None else min(whole, 2 * row["handoff_us"] + row["half_us"])


def middle(values, digits=4):
    """Median of what was measured, or an empty cell."""
    known = [v for v in values if v is not None]
    return round(statistics.median(known), digits) if known else ""


def share(bound, us):
    return None if bound is None else bound / max(us, 0.005)


def strongest(per_setting, us):
    """The setting with the smallest median ratio, so that chance works against us; rare ones, of few runs in this mode, do not count."""
    most = max(len(some) for some in per_setting.values())
    return min((setting for setting, some in per_setting.items() if 2 * len(some) >= most),
               key=lambda setting: statistics.median(ratio(r, us) for r in per_setting[setting]))


def memory_columns(rows, prefix, us, index):
    q1, q2, q3 = quartiles([ratio(r, us) for r in rows])
    limits = [bounds(r)[index] for r in rows]
    first, third = ("ratio_q1", "ratio_q3") if not prefix else ("arena_q1", "arena_q3")
    return {prefix + "setting": rows[0]["setting"], us: middle(r[us] for r in rows),
            prefix + "ratio": round(q2, 3), first: round(q1, 3), third: round(q3, 3),
            prefix + "bound_us": middle(limits), prefix + "share": middle((share(b, r[us]) for b, r in zip(limits, rows)), 3)}


def summarise(rows):
    """One output row a cell: ratios are taken inside one program run, then their median over the runs against the strongest setting."""
    by_cell = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        by_cell[cell(row)][row["setting"]].append(row)
    for key in sorted(by_cell, key=order):
        per_setting = by_cell[key]
        private, arena = (per_setting[strongest(per_setting, us)] for us in ("ours_us", "arena_us"))
        yield {
            **dict(zip(("ranks", "bytes", "place", "mode"), key)),
            "peer_us": middle(r["peer_us"] for r in private), "handoff_us": middle(r["handoff_us"] for r in private),
            **memory_columns(private, "", "ours_us", 0), **memory_columns(arena, "arena_", "arena_us", 1),
            "runs": len(private), "wrong": sum(r["wrong_peer"] + r["wrong_ours"] for some in per_setting.values() for r in some),
        }


def make(runs_path, out_path):
    rows = list(summarise(r for r in read(runs_path, True) if r["arena_us"] is not None))
    if not rows:
        sys.exit("table.py: no complete run; the programs' own words are in peers.err beside the raw data")
    with open(out_path, "w", newline="") as f:
        out = csv.DictWriter(f, OUT, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    return rows


def first_line(*command):
    if not shutil.which(command[0]):
        return "?"
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return text.splitlines()[0] if text else "?"


def machine():
    model = "?"
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
    return [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("CPU", f"{model}, {os.cpu_count()} CPUs"),
        ("kernel", platform.release()),
        ("load at the end", " ".join(f"{x:.1f}" for x in os.getloadavg())),
        ("commit", first_line("git", "describe", "--always", "--dirty")),
    ]


def human(n):
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if n >= size and n % size == 0:
            return f"{n // size} {unit}B"
    return f"{n} B"


def verdict(value):
    return "faster" if value > 1 / TIE else "tie" if value >= TIE else "**slower**"


def bound_text(row, prefix):
    return "" if row[prefix + "share"] == "" else f"{row[prefix + 'bound_us']:.2f} ({100 * row[prefix + 'share']:.0f} %)"


def rank_table(ranks, mode, rows):
    yield f"\n## {ranks} ranks{'' if mode == '-' else ', ' + mode}\n"
    yield ("| bytes | place | strongest peer | peer us | ours us | peer / ours (quartiles) | | bound us (reached) | arena us | "
           "peer / arena (quartiles) | | bound us (reached) | hand-off us | runs |")
    yield "| ---: | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |"
    for r in rows:
        yield (f"| {human(r['bytes'])} | {r['place']} | {r['setting']} | {r['peer_us']:.2f} | {r['ours_us']:.2f} | "
               f"{r['ratio']:.2f} ({r['ratio_q1']:.2f}-{r['ratio_q3']:.2f}) | {verdict(r['ratio'])} | {bound_text(r, '')} | "
               f"{r['arena_us']:.2f} | {r['arena_ratio']:.2f} ({r['arena_q1']:.2f}-{r['arena_q3']:.2f}) | {verdict(r['arena_ratio'])} | "
               f"{bound_text(r, 'arena_')} | {r['handoff_us']:.2f} | {r['runs']} |")


def last_line(rows):
    """Worst and median ratio and the worst row, over both kinds of memory."""
    found = [(r[prefix + "ratio"], memory, prefix + "setting", r) for r in rows for prefix, memory in MEMORIES]
    worst, memory, setting, r = min(found, key=lambda one: one[0])
    mode = "" if r["mode"] == "-" else f" {r['mode']}"
    return (f"worst ratio {worst:.2f} ({r['ranks']} ranks{mode}, {human(r['bytes'])} {r['place']}, {memory}, against {r[setting]}), "
            f"median {statistics.median(one[0] for one in found):.2f} of {len(found)} ratios")


def counts(rows, name):
    values = [r[name] for r in rows]
    return (f"{len(values)} cells, faster {sum(v > 1 / TIE for v in values)}, tie {sum(TIE <= v <= 1 / TIE for v in values)}, "
            f"slower {sum(v < TIE for v in values)}")


def markdown(rows, notes, name):
    lines = [
        "# Allreduce against other MPI libraries\n",
        f"Made by `./dev bench {name}`; docs/benchmarking.md says how to read it. Float32 sum, both libraries alternating in one process;",
        "fresh data before and a full check after every call, one rank up to 1 us late, time from the last start to the last end. The peer",
        "always has private buffers; ours are private too, or of `abc_mem_alloc` (arena). Microseconds are medians; a ratio is the median",
        "over runs of the ratio inside a run, the smallest of all settings of all peers. 0.92-1.08 counts as a tie.\n",
    ]
    runs = [r["runs"] for r in rows]
    facts = [*machine(), *notes, ("runs", f"{min(runs)} to {max(runs)} a cell; wrong results: {sum(r['wrong'] for r in rows)}"),
             ("private", counts(rows, "ratio")), ("arena", counts(rows, "arena_ratio"))]
    lines += [f"- {what}: {text}" for what, text in facts]
    groups = collections.defaultdict(list)
    for r in rows:
        groups[r["ranks"], r["mode"]].append(r)
    for (ranks, mode), some in groups.items():
        lines += rank_table(ranks, mode, some)
    return "\n".join([*lines, "", last_line(rows)]) + "\n"


def report(runs_path, notes_path, out_path):
    rows = make(runs_path, out_path)
    print(markdown(rows, read_notes(notes_path), os.path.splitext(os.path.basename(out_path))[0]), end="")


def compare(old_path, new_path):
    def load(path):
        with open(path, newline="") as f:
            return {cell(r): r for r in csv.DictReader(f)}

    old, new = load(old_path), load(new_path)
    worse = 0
    for key in sorted(old.keys() & new.keys(), key=order):
        # The peer ran in the same process: ratios stand for themselves, microseconds depend on the day.
        for name in ("ratio", "arena_ratio"):
            a, b = float(old[key][name]), float(new[key][name])
            if a > WORSE * b:
                worse += 1
                print(f"worse: {key[0]} ranks, {human(key[1])} {key[2]} {key[3]}: {name} {a:.2f} -> {b:.2f}")
    for name, lost in (("old", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        if lost:
            print(f"only in {name}: {len(lost)} cells")
    print(f"{len(old.keys() & new.keys())} cells compared, {worse} worse by more than 10 %")
    return 1 if worse else 0


COMMANDS = {"choose": (choose, 2), "settings": (settings, 2), "report": (report, 3), "compare": (compare, 2)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS or len(sys.argv) - 2 != COMMANDS[sys.argv[1]][1]:
        sys.exit(__doc__)
    sys.exit(COMMANDS[sys.argv[1]][0](*sys.argv[2:]))
