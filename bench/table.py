#!/usr/bin/env python3
"""table.py - turns the rows of bench/compare.c into choices, tables and comparisons. Standard library only; peers.py uses it too.

  table.py choose TUNING.csv BEST.csv                 the best settings of all peers for each cell, two rows: by time, by ratio
  table.py settings BEST.csv RANKS                    the settings that are best somewhere, one a line
  table.py report RUNS.csv NOTES.csv OUT.csv          medians over runs as CSV into OUT.csv and as Markdown to stdout
  table.py compare OLD.csv NEW.csv                    cells that got worse by more than 10 %; exit code 1 if there are any

A cell is what is called, ranks, bytes, place (oop: out of place, ip: in place) and mode: with two ranks near or far, by the bare
hand-off of a cache line that the same program run measured; - with more ranks. A setting is PEER/NAME. Results have a row of each cell
against all peers together, one against each of them, and one against own: our float32, blocking call.
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

import targets

RAW = ("setting what ranks bytes place peer_us ours_us arena_us handoff_us copy_us half_us read_us read_half_us samples wrong_peer wrong_ours").split()
OUT = ("what against ranks bytes place mode setting peer_us ours_us ratio ratio_q1 ratio_q3 bound_us share arena_setting arena_us "
       "arena_ratio arena_q1 arena_q3 arena_bound_us arena_share handoff_us above_ns floor_us arena_floor_us "
       "runs wrong").split()
NEAR_US = 0.15   # two ranks: cores behind one cache hand a line over in less
TIE = 0.92       # from here to its inverse the difference is noise
WORSE = 1.10
INLINE = 512     # bytes in or behind the line of the flag, which whoever waits can fetch together: one hand-off moves them
BELOW = 1.05     # a time this far below what reading alone takes is an error of the benchmark
BELOW_US = 0.03  # if the clock can tell
MEMORIES = (("", "private"), ("arena_", "arena"))


class Empty(Exception):
    """There is nothing to make tables of."""


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


def read_results(path):
    """Rows of a file that make() wrote; the first ones had allreduce alone."""
    with open(path, newline="") as f:
        return [{"what": "allreduce", "against": "all", **row} for row in csv.DictReader(f)]


def cell(row):
    return int(row["ranks"]), int(row["bytes"]), row["place"], row["mode"]


def order(key):
    """Near before far, out of place before in place."""
    return key[0], key[3] == "far", key[1], key[2] != "oop"


def peer_of(row):
    return row["setting"].split("/")[0]


def ratio(row, memory="ours_us"):
    """Of one program run. The clock resolves some nanoseconds; no call takes less."""
    return row["peer_us"] / max(row[memory], 0.005)


def choose(tuning_path, best_path):
    """By its time, and by the ratio to our calls in the same process, which depends less on what else the machine did in that minute.
    Of each peer also the setting that is its best one most often, so that the tables can tell of each peer."""
    measures = {"time": lambda row: row["peer_us"], "ratio": ratio}
    best, of_peer = {}, {}
    for row in read(tuning_path):
        if row["wrong_peer"]:
            continue
        for by, measure in measures.items():
            key = cell(row), by
            if key not in best or measure(row) < measure(best[key]):
                best[key] = row
        key = cell(row), peer_of(row)
        if key not in of_peer or row["peer_us"] < of_peer[key]["peer_us"]:
            of_peer[key] = row
    wins = collections.Counter((row["ranks"], peer_of(row), row["setting"]) for row in of_peer.values())
    with open(best_path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        for (key, by), row in sorted(best.items(), key=lambda one: (order(one[0][0]), one[0][1] != "time")):
            out.writerow([*key, by, row["setting"], row["peer_us"], round(ratio(row), 3)])
        for ranks, peer in sorted({key[:2] for key in wins}):
            most = max((key for key in wins if key[:2] == (ranks, peer)), key=lambda key: (wins[key], key))
            out.writerow([ranks, "", "", "", "peer", most[2], "", ""])


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


def bounds(row, whole="copy_us", half="half_us"):
    """(private, arena) in microseconds, what no library can beat by much; (None, None) where it was not measured.

    Each byte of the other rank must come over once, after one hand-off. In shared memory in place a rank may reduce one half and leave
    the result for the other to fetch later: half of the bytes, two hand-offs.
    """
    if row[whole] is None:
        return None, None
    if row["bytes"] <= INLINE:
        return row["handoff_us"], row["handoff_us"]
    all_of_it = row["handoff_us"] + row[whole]
    return all_of_it, all_of_it if row[half] is None else min(all_of_it, 2 * row["handoff_us"] + row[half])


def floors(row):
    """The same with nothing but reading, which none can beat at all. A simple loop of reads may be slower than a copy."""
    both = zip(bounds(row), bounds(row, "read_us", "read_half_us"))
    return [min((time for time in times if time is not None), default=None) for times in both]


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


def runs_by_mode(path):
    """Mode -> number of runs of two ranks that were mostly in it."""
    modes = collections.defaultdict(list)
    for row in read(path, True):
        if row["ranks"] == 2:
            modes[row["run"]].append(row["mode"])
    return collections.Counter(statistics.mode(some) for some in modes.values())


def memory_columns(rows, prefix, us, index):
    q1, q2, q3 = quartiles([ratio(r, us) for r in rows])
    limits = [bounds(r)[index] for r in rows]
    first, third = ("ratio_q1", "ratio_q3") if not prefix else ("arena_q1", "arena_q3")
    return {prefix + "setting": rows[0]["setting"], us: middle(r[us] for r in rows),
            prefix + "ratio": round(q2, 3), first: round(q1, 3), third: round(q3, 3),
            prefix + "bound_us": middle(limits), prefix + "share": middle((share(b, r[us]) for b, r in zip(limits, rows)), 3)}


def one_row(what, against, key, per_setting):
    """Ratios are taken inside one program run, then their median over the runs against the strongest setting."""
    private = per_setting[strongest(per_setting, "ours_us")]
    least = [floors(r) for some in per_setting.values() for r in some]
    with_arena = {setting: some for setting, some in per_setting.items() if all(r["arena_us"] is not None for r in some)}
    arena = memory_columns(with_arena[strongest(with_arena, "arena_us")], "arena_", "arena_us", 1) if with_arena else {}
    return {
        "what": what, "against": against, **dict(zip(("ranks", "bytes", "place", "mode"), key)),
        "peer_us": middle(r["peer_us"] for r in private), "handoff_us": middle(r["handoff_us"] for r in private),
        **memory_columns(private, "", "ours_us", 0), **{name: "" for name in OUT if name.startswith("arena_")}, **arena,
        "above_ns": round(1000 * quartiles([r["ours_us"] - r["peer_us"] for r in private])[2]),
        "floor_us": middle(f[0] for f in least), "arena_floor_us": middle(f[1] for f in least),
        "runs": len(private), "wrong": sum(r["wrong_peer"] + r["wrong_ours"] for some in per_setting.values() for r in some),
    }


def summarise(rows):
    by_cell = collections.defaultdict(lambda: collections.defaultdict(lambda: collections.defaultdict(list)))
    for row in rows:
        own = peer_of(row) == "own"
        for against in ["own"] if own else ["all", peer_of(row)]:
            by_cell[row["what"], against][cell(row)][row["setting"]].append(row)
    for (what, against), cells in by_cell.items():
        for key in sorted(cells, key=order):
            yield one_row(what, against, key, cells[key])


def make(runs_path, out_path):
    rows = list(summarise(read(runs_path, True)))
    if not rows:
        raise Empty("no complete run; the programs' own words are in peers.err beside the raw data")
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


def first_of(path):
    """First line of a file of the system, or ? where it has no such file."""
    try:
        with open(path) as f:
            return f.readline().strip()
    except OSError:
        return "?"


def machine():
    model, virtual = "?", False
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
            virtual = virtual or line.startswith("flags") and " hypervisor" in line
    pages = "/sys/kernel/mm/transparent_hugepage/"
    return [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("CPU", f"{model}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs{', a virtual machine' if virtual else ''}"),
        ("memory", f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') >> 30} GB; huge pages: {first_of(pages + 'enabled')}, "
                   f"shared: {first_of(pages + 'shmem_enabled')}"),
        ("kernel", f"{platform.release()}, {' '.join(platform.libc_ver())}"),
        ("compiler", first_line("cc", "--version")),
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


def title(ranks, mode):
    return f"{ranks} ranks{'' if mode == '-' else ', ' + mode}"


def groups(rows):
    found = collections.defaultdict(list)
    for r in rows:
        found[r["ranks"], r["mode"]].append(r)
    return sorted(found.items(), key=lambda one: (one[0][0], one[0][1] == "far"))


def arena_text(r):
    if r["arena_us"] == "":
        return " | | | "
    return (f"{r['arena_us']:.2f} | {r['arena_ratio']:.2f} ({r['arena_q1']:.2f}-{r['arena_q3']:.2f}) | {verdict(r['arena_ratio'])} | "
            f"{bound_text(r, 'arena_')}")


def ratio_text(r):
    return f"{r['ratio']:.2f} ({r['ratio_q1']:.2f}-{r['ratio_q3']:.2f})"


def allreduce_tables(rows):
    for key, some in groups(rows):
        yield f"\n## Allreduce, {title(*key)}\n"
        yield ("| bytes | place | strongest peer | peer us | ours us | peer / ours (quartiles) | | bound us (reached) | arena us | "
               "peer / arena (quartiles) | | bound us (reached) | hand-off us | runs |")
        yield "| ---: | --- | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |"
        for r in some:
            yield (f"| {human(r['bytes'])} | {r['place']} | {r['setting']} | {r['peer_us']:.2f} | {r['ours_us']:.2f} | {ratio_text(r)} | "
                   f"{verdict(r['ratio'])} | {bound_text(r, '')} | {arena_text(r)} | {r['handoff_us']:.2f} | {r['runs']} |")


def collective_tables(rows):
    for key, some in groups(rows):
        yield f"\n## Other collectives, {title(*key)}\n"
        yield "| collective | bytes | strongest peer | peer us | ours us | peer / ours (quartiles) | | runs |"
        yield "| --- | ---: | --- | ---: | ---: | ---: | --- | ---: |"
        for r in some:
            yield (f"| {r['what']} | {human(r['bytes'])} | {r['setting']} | {r['peer_us']:.2f} | {r['ours_us']:.2f} | {ratio_text(r)} | "
                   f"{verdict(r['ratio'])} | {r['runs']} |")


def own_table(rows):
    if not rows:
        return
    yield "\n## Our calls among themselves\n"
    yield "Beside each a blocking allreduce of float32 of as many bytes. Above: the upper quartile of what the call takes longer.\n"
    yield "| allreduce | mode | bytes | float32, blocking us | this us | ratio (quartiles) | above ns | runs |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for r in rows:
        yield (f"| {r['what']} | {title(r['ranks'], r['mode'])} | {human(r['bytes'])} | {r['peer_us']:.2f} | {r['ours_us']:.2f} | "
               f"{ratio_text(r)} | {r['above_ns']} | {r['runs']} |")


def peer_table(rows, notes):
    """Peer ÷ ours of each peer by itself. A peer that is left out has its column, which says so."""
    missing = [text.split(":")[0] for what, text in notes if what == "left out" and "/" not in text.split(":")[0]]
    peers = list(dict.fromkeys(r["against"] for r in rows)) + missing
    found = collections.defaultdict(dict)
    for r in rows:
        found[r["ranks"], r["mode"] == "far", r["bytes"], r["mode"]][r["against"]] = f"{r['ratio']:.2f}"
    yield "\n## Each peer\n"
    yield "Peer ÷ ours, allreduce, private, out of place; of the settings of a peer that ran, the strongest in the cell.\n"
    yield "| ranks | bytes | " + " | ".join(p + (" (left out)" if p in missing else "") for p in peers) + " |"
    yield "| --- | ---: |" + " ---: |" * len(peers)
    for key in sorted(found):
        cells = ["left out" if p in missing else found[key].get(p, "") for p in peers]
        yield f"| {title(key[0], key[3])} | {human(key[2])} | " + " | ".join(cells) + " |"


def below_bound(rows):
    """What is faster than possible, in words: then the frame, the data or the bound is wrong."""
    found = []
    for r in rows:
        for who, us, floor in (("ours", "ours_us", "floor_us"), ("the peer's", "peer_us", "floor_us"),
                               ("arena", "arena_us", "arena_floor_us")):
            if r["against"] == "all" and r[floor] != "" and r[us] != "" and r[us] * BELOW < r[floor] - BELOW_US:
                where = f"{title(r['ranks'], r['mode'])}, {human(r['bytes'])} {r['place']}"
                found.append(f"{where}: {who} {r[us]:.2f} us, but hand-off and reading alone {r[floor]:.2f}")
    return found


def last_line(rows):
    """Worst and median ratio and the worst row, over both kinds of memory."""
    found = [(r[prefix + "ratio"], memory, prefix + "setting", r) for r in rows if r["against"] == "all"
             for prefix, memory in MEMORIES if r[prefix + "ratio"] != ""]
    if not found:
        return "no ratio to a peer was measured"
    worst, memory, setting, r = min(found, key=lambda one: one[0])
    mode = "" if r["mode"] == "-" else f" {r['mode']}"
    what = "" if r["what"] == "allreduce" else r["what"] + ", "
    return (f"worst ratio {worst:.2f} ({what}{r['ranks']} ranks{mode}, {human(r['bytes'])} {r['place']}, {memory}, "
            f"against {r[setting]}), median {statistics.median(one[0] for one in found):.2f} of {len(found)} ratios")


def counts(rows, name):
    values = [r[name] for r in rows if r[name] != ""]
    return (f"{len(values)} cells, faster {sum(v > 1 / TIE for v in values)}, tie {sum(TIE <= v <= 1 / TIE for v in values)}, "
            f"slower {sum(v < TIE for v in values)}")


def markdown(rows, notes, name):
    every = [r for r in rows if r["against"] == "all"]
    allreduce = [r for r in every if r["what"] == "allreduce"]
    others = [r for r in every if r["what"] != "allreduce"]
    lines = [
        "# Collectives against other libraries\n",
        f"Made by `./dev bench {name}`; docs/benchmarking.md says how to read it. Float32 sums, both libraries alternating in one process;",
        "fresh data before and a full check after every call, one rank up to 1 us late, time from the last start to the last end. The peer",
        "always has private buffers; ours are private too, or of `abc_mem_alloc` (arena). Microseconds are medians; a ratio is the median",
        "over runs of the ratio inside a run, the smallest of all settings of all peers. 0.92-1.08 counts as a tie.\n",
    ]
    runs = [r["runs"] for r in every or rows]
    facts = [*machine(), *notes, ("runs", f"{min(runs)} to {max(runs)} a cell; wrong results: {sum(r['wrong'] for r in rows)}"),
             *(("**ERROR**, faster than possible", text) for text in below_bound(rows)), ("private", counts(allreduce, "ratio")),
             ("arena", counts(allreduce, "arena_ratio")), ("other collectives", counts(others, "ratio")),
             ("targets", targets.summary(rows))]
    lines += [f"- {what}: {text}" for what, text in facts]
    lines += [*targets.lines(rows), *allreduce_tables(allreduce), *collective_tables(others)]
    lines += own_table([r for r in rows if r["against"] == "own"])
    single = [r for r in rows if r["against"] not in ("all", "own")]
    lines += peer_table([r for r in single if r["what"] == "allreduce" and r["place"] == "oop"], notes)
    return "\n".join([*lines, "", last_line(rows)]) + "\n"


def report(runs_path, notes_path, out_path):
    try:
        rows = make(runs_path, out_path)
    except Empty as reason:
        sys.exit(f"table.py: {reason}")
    print(markdown(rows, read_notes(notes_path), os.path.splitext(os.path.basename(out_path))[0]), end="")


def compare(old_path, new_path):
    """The peer ran in the same process: ratios stand for themselves, microseconds depend on the day. Single peers are compared where a
    target names them."""
    def load(rows):
        return {(r["what"], r["against"], *cell(r)): r for r in rows if r["against"] in ("all", *targets.named())}

    try:
        results = [read_results(path) for path in (old_path, new_path)]
    except OSError as e:
        sys.exit(f"table.py: {e.filename}: {e.strerror}; give the path as seen from the root of the repository, or from /")
    old, new = map(load, results)
    worse = 0
    for key in sorted(old.keys() & new.keys(), key=lambda key: (key[:2], order(key[2:]))):
        for name in ("ratio", "arena_ratio"):
            a, b = (float(table[key][name] or 0) for table in (old, new))
            if a > WORSE * b and (old[key][name] and new[key][name]):
                worse += 1
                what = "" if key[0] == "allreduce" else key[0] + ", "
                whom = "" if key[1] == "all" else f" against {key[1]}"
                print(f"worse: {what}{key[2]} ranks, {human(key[3])} {key[4]} {key[5]}{whom}: {name} {a:.2f} -> {b:.2f}")
    for name, lost in (("old", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        if lost:
            print(f"only in {name}: {len(lost)} cells")
    lost = targets.lost(*results)
    print("".join(f"target lost: {text}\n" for text in lost), end="")
    print(f"{len(old.keys() & new.keys())} cells compared, {worse} worse by more than 10 %, {len(lost)} targets lost")
    return 1 if worse or lost else 0


COMMANDS = {"choose": (choose, 2), "settings": (settings, 2), "report": (report, 3), "compare": (compare, 2)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS or len(sys.argv) - 2 != COMMANDS[sys.argv[1]][1]:
        sys.exit(__doc__)
    sys.exit(COMMANDS[sys.argv[1]][0](*sys.argv[2:]))
