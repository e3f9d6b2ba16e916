#!/usr/bin/env python3
"""table.py - turns the rows of bench/ompi/compare.c into choices, tables and comparisons. Standard library only.

  table.py choose TUNING.csv                 best setting of the peer for each cell, as CSV
  table.py settings BEST.csv RANKS           the settings that are best somewhere, one a line
  table.py report BEST.csv RUNS.csv OUT.csv  medians over runs as CSV into OUT.csv and as Markdown to stdout
  table.py compare OLD.csv NEW.csv           cells that got worse by more than 10 %; exit code 1 if there are any

A cell is ranks, bytes and place (oop: out of place, ip: in place).
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

RAW = "setting ranks bytes place peer_us ours_us arena_us handoff_us samples wrong_peer wrong_ours".split()
OUT = ("ranks bytes place setting peer_us ours_us ratio ratio_q1 ratio_q3 ratio_lowest arena_us arena_ratio handoff_us mode runs "
       "wrong").split()
NEAR_US = 0.15   # two ranks: cores behind one cache hand a line over in less
TIE = 0.92       # from here to its inverse the difference is noise
WORSE = 1.10


def read(path, fields, with_run=False):
    """Rows of a file without header; what is no complete row, such as a line of a broken run, is dropped."""
    names = (["run"] if with_run else []) + fields
    with open(path, newline="") as f:
        rows = [dict(zip(names, line)) for line in csv.reader(f) if len(line) == len(names)]
    for row in rows:
        for name in ("ranks", "bytes", "samples", "wrong_peer", "wrong_ours"):
            row[name] = int(row[name])
        for name in row:
            if name.endswith("_us"):
                row[name] = float(row[name]) if row[name] else None
    return rows


def cell(row):
    return int(row["ranks"]), int(row["bytes"]), row["place"]


def order(key):
    """Out of place before in place."""
    return key[0], key[1], key[2] != "oop"


def choose(path):
    best = {}
    for row in read(path, RAW):
        key = cell(row)
        if row["wrong_peer"] == 0 and (key not in best or row["peer_us"] < best[key]["peer_us"]):
            best[key] = row
    out = csv.writer(sys.stdout, lineterminator="\n")
    for key in sorted(best, key=order):
        out.writerow([*key, best[key]["setting"], best[key]["peer_us"]])


def read_best(path):
    with open(path, newline="") as f:
        return {(int(r[0]), int(r[1]), r[2]): r[3] for r in csv.reader(f)}


def settings(path, ranks):
    names = {setting for key, setting in read_best(path).items() if key[0] == int(ranks)}
    print("\n".join(sorted(names)))


def quartiles(values):
    if len(values) < 2:
        return values[0], values[0], values[0]
    q1, q2, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, q2, q3


def summarise(best, rows):
    """One output row a cell: ratios are taken inside one process run, then their median over the runs."""
    by_cell = collections.defaultdict(lambda: collections.defaultdict(list))
    for row in rows:
        by_cell[cell(row)][row["setting"]].append(row)
    for key in sorted(by_cell, key=order):
        per_setting = by_cell[key]
        if best.get(key) not in per_setting:
            continue
        chosen = per_setting[best[key]]
        q1, middle, q3 = quartiles([r["peer_us"] / r["ours_us"] for r in chosen])
        medians = [statistics.median(r["peer_us"] / r["ours_us"] for r in some) for some in per_setting.values()]
        column = {n: statistics.median(r[n] for r in chosen) for n in ("peer_us", "ours_us", "arena_us", "handoff_us")}
        everything = [r for some in per_setting.values() for r in some]
        yield {
            "ranks": key[0], "bytes": key[1], "place": key[2], "setting": best[key],
            **{n: round(v, 4) for n, v in column.items()},
            "ratio": round(middle, 3), "ratio_q1": round(q1, 3), "ratio_q3": round(q3, 3),
            "ratio_lowest": round(min(medians), 3),
            "arena_ratio": round(statistics.median(r["peer_us"] / r["arena_us"] for r in chosen), 3),
            "mode": "-" if key[0] != 2 else "near" if column["handoff_us"] < NEAR_US else "far",
            "runs": len(chosen), "wrong": sum(r["wrong_peer"] + r["wrong_ours"] for r in everything),
        }


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
    mpirun = "mpirun.openmpi" if shutil.which("mpirun.openmpi") else "mpirun"
    return [
        ("date", datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")),
        ("CPU", f"{model}, {os.cpu_count()} CPUs"),
        ("kernel", platform.release()),
        ("load at the end", " ".join(f"{x:.1f}" for x in os.getloadavg())),
        ("commit", first_line("git", "describe", "--always", "--dirty")),
        ("peer", first_line(mpirun, "--version")),
    ]


def human(n):
    for unit, size in (("M", 1 << 20), ("K", 1 << 10)):
        if n >= size and n % size == 0:
            return f"{n // size} {unit}B"
    return f"{n} B"


def verdict(ratio):
    return "faster" if ratio > 1 / TIE else "tie" if ratio >= TIE else "**slower**"


def print_rank_table(ranks, rows):
    print(f"\n## {ranks} ranks\n")
    print("| bytes | place | peer's setting | peer us | ours us | peer / ours (quartiles) | lowest | | arena us | peer / arena | hand-off us |")
    print("| ---: | --- | --- | ---: | ---: | ---: | ---: | --- | ---: | ---: | ---: |")
    for r in rows:
        mode = "" if r["mode"] == "-" else f" {r['mode']}"
        print(f"| {human(r['bytes'])} | {r['place']} | {r['setting']} | {r['peer_us']:.2f} | {r['ours_us']:.2f} | "
              f"{r['ratio']:.2f} ({r['ratio_q1']:.2f}-{r['ratio_q3']:.2f}) | {r['ratio_lowest']:.2f} | {verdict(r['ratio'])} | "
              f"{r['arena_us']:.2f} | {r['arena_ratio']:.2f} | {r['handoff_us']:.2f}{mode} |")


def report(best_path, runs_path, out_path):
    rows = list(summarise(read_best(best_path), [r for r in read(runs_path, RAW, True) if r["ours_us"]]))
    if not rows:
        sys.exit("table.py: no complete run; the programs' own words are in ompi.err beside the raw data")
    with open(out_path, "w", newline="") as f:
        out = csv.DictWriter(f, OUT, lineterminator="\n")
        out.writeheader()
        out.writerows(rows)
    print("# Allreduce against Open MPI\n")
    print("Made by `./dev bench ompi`. Float32 sum, private buffers, both libraries alternating in one process; fresh data before and\n"
          "a full check after every call, one rank up to 1 us late, time from the last start to the last end. Microseconds are medians;\n"
          "the ratio is the median over runs of the ratio inside a run, for the peer's setting that a tuning run found best in the cell.\n"
          "`lowest` is the smallest such median over all settings that ran. 0.92-1.08 counts as a tie. Arena: our buffers come from\n"
          "abc_mem_alloc. Hand-off: all ranks exchange one flag; near: two cores behind one cache.\n")
    for name, value in machine():
        print(f"- {name}: {value}")
    print(f"- runs: {min(r['runs'] for r in rows)} to {max(r['runs'] for r in rows)} a cell; wrong results: {sum(r['wrong'] for r in rows)}")
    slower = [r for r in rows if r["ratio"] < TIE]
    print(f"- cells: {len(rows)}, faster {sum(r['ratio'] > 1 / TIE for r in rows)}, "
          f"tie {sum(TIE <= r['ratio'] <= 1 / TIE for r in rows)}, slower {len(slower)}")
    for ranks in sorted({r["ranks"] for r in rows}):
        print_rank_table(ranks, [r for r in rows if r["ranks"] == ranks])


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
                print(f"worse: {key[0]} ranks, {human(key[1])} {key[2]}: {name} {a:.2f} -> {b:.2f}"
                      f" ({old[key]['mode']} -> {new[key]['mode']})")
    for name, lost in (("old", old.keys() - new.keys()), ("new", new.keys() - old.keys())):
        if lost:
            print(f"only in {name}: {len(lost)} cells")
    print(f"{len(old.keys() & new.keys())} cells compared, {worse} worse by more than 10 %")
    return 1 if worse else 0


COMMANDS = {"choose": (choose, 1), "settings": (settings, 2), "report": (report, 3), "compare": (compare, 2)}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS or len(sys.argv) - 2 != COMMANDS[sys.argv[1]][1]:
        sys.exit(__doc__)
    sys.exit(COMMANDS[sys.argv[1]][0](*sys.argv[2:]))
