#!/usr/bin/env python3
"""regret.py - how much slower is the algorithm that the library chooses than the best one it could have chosen?

usage: regret.py BUILDDIR [--ranks LIST] [--runs N] [--quick] [--out DIR] [--prefix COMMAND]
       regret.py --report RAW.csv [--out DIR]

For each number of ranks, collective and kind of memory `abcomm tune` runs once: the choice and every algorithm with every chunk size in
turn, on fresh data, in one process. The best fixed way is picked by one half of the samples and compared by the other half, both ways
round, so that the luckiest of many candidates does not count as the best. Regret is the choice's time over that one's, less 1. Writes
regret.csv and regret.md; the last line of the output has the median and the worst cases. --prefix is put before each command; a job of
ranks takes some seconds. A case is measured in each of the runs, and the median of its regrets counts; with two ranks near and far are
cases of their own.
"""
import argparse
import collections
import csv
import itertools
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile

COLLECTIVES = ("allreduce", "reduce_scatter", "allgather", "broadcast")
FIELDS = ("collective", "ranks", "memory", "place", "bytes", "name", "kind", "us", "half0", "half1", "samples", "handoff", "before", "after")
SMALL = 2 << 20  # goals differ up to and above it
GOALS = {"median": 0.10, "small": 0.25, "large": 0.40}
NEAR_US, SHARED_US = 0.15, 5.0  # as tools/bench_report.c and tools/tune_file.c say
LIMIT = 300  # seconds for a job
LEFT_OUT = {"moved": "the cores moved between near and far", "disturbed": "other work took a CPU"}


def size_name(count):
    for unit, factor in (("MB", 1 << 20), ("KB", 1 << 10)):
        if count >= factor and count % factor == 0:
            return f"{count // factor} {unit}"
    return f"{count} B"


def measure(args, ranks, collective, memory, raw):
    """One job; None, or why there is no result."""
    sizes = ["-e", "512K", "-f", "16", "--quick"] if args.quick else []
    command = [*shlex.split(args.prefix), os.path.join(args.build, "abcomm"), "tune", "-n", str(ranks), "-c", collective, "--mem", memory,
               "--pin", "--margin", "90", "--out", raw + ".json", "--csv", raw, *sizes]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return f"no end within {LIMIT} s"
    return done.stderr.strip() if done.returncode != 0 else None


def mode_of(row):
    """How far the two cores are from each other, if they stayed so from the job's begin, when the choice was made."""
    if int(row["ranks"]) != 2:
        return "-"
    seen = {"near" if us < NEAR_US else "far" if us < SHARED_US else "disturbed" for us in
            (float(row[when] or row["handoff"]) for when in ("handoff", "before", "after"))}
    return "disturbed" if "disturbed" in seen else seen.pop() if len(seen) == 1 else "moved"


def read_cases(path):
    """{(collective, ranks, memory, place, bytes, mode): [candidates of a run, ...]}, the choice first."""
    cases, last = collections.OrderedDict(), None
    with open(path, encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, FIELDS):
            key = (row["collective"], int(row["ranks"]), row["memory"], row["place"], int(row["bytes"]), mode_of(row))
            if row["kind"] == "chosen" and row["place"] == "oop":
                last = {}
            if row["place"] not in last:  # the places of a candidate stand in neighbouring rows
                last[row["place"]] = []
                cases.setdefault(key, []).append(last[row["place"]])
            last[row["place"]].append(row)
    return cases


def regret_of(candidates):
    """(regret, best fixed way); negative is luck."""
    chosen, total = candidates[0], 0.0
    full = [c for c in candidates if int(c["samples"]) == int(chosen["samples"])]  # the others were left out as far too slow
    for judge, other in (("half0", "half1"), ("half1", "half0")):
        best = min(full, key=lambda c: float(c[judge]))
        total += float(chosen[other]) / float(best[other]) - 1
    return total / 2, min(full, key=lambda c: float(c["us"]))


def rows_of(cases):
    for (collective, ranks, memory, place, count, mode), runs in cases.items():
        if mode in LEFT_OUT:
            continue
        judged = sorted(((*regret_of(candidates), candidates[0]) for candidates in runs), key=lambda j: j[0])
        _, best, chosen = judged[(len(judged) - 1) // 2]
        yield {"collective": collective, "ranks": ranks, "memory": memory, "place": place, "bytes": count, "mode": mode,
               "chosen": chosen["name"], "chosen_us": float(chosen["us"]), "best": best["name"], "best_us": float(best["us"]),
               "runs": len(runs), "regret": round(statistics.median(j[0] for j in judged), 4)}


def case_name(row):
    return f"{row['collective']} {row['ranks']} ranks {row['memory']} {row['place']} {size_name(row['bytes'])}"


def worst_of(rows):
    return max(rows, key=lambda row: row["regret"]) if rows else None


def summary(rows):
    small, large = ([r for r in rows if (r["bytes"] <= SMALL) == which] for which in (True, False))
    parts = [f"median regret {100 * statistics.median(r['regret'] for r in rows):.0f} % of {len(rows)} cases"]
    for name, group in (("to 2 MB", small), ("above", large)):
        worst = worst_of(group)
        if worst:
            parts.append(f"worst {name} {100 * worst['regret']:.0f} % ({case_name(worst)})")
    return ", ".join(parts)


def quantile_rows(rows):
    """Median, 90 % and worst of each group of cases."""
    groups = collections.OrderedDict()
    for row in rows:
        groups.setdefault((row["collective"], row["ranks"], row["memory"]), []).append(row)
    for (collective, ranks, memory), group in groups.items():
        regrets = sorted(r["regret"] for r in group)
        worst = worst_of(group)
        yield f"| {collective} | {ranks} | {memory} | {100 * statistics.median(regrets):.0f} % | {100 * worst['regret']:.0f} % | " \
              f"{size_name(worst['bytes'])} {worst['place']} | {worst['chosen']} | {worst['best']} |"


def report(rows, skipped, out):
    with open(os.path.join(out, "regret.csv"), "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    limits = {"small": [r for r in rows if r["bytes"] <= SMALL], "large": [r for r in rows if r["bytes"] > SMALL]}
    over = [r for name, group in limits.items() for r in group if r["regret"] > GOALS[name]]
    lines = ["# Regret of the choice", "",
             f"Measured by `./dev bench regret` on {os.cpu_count()} CPUs, Linux {platform.release()}. {summary(rows)}.", "",
             "Regret: how much longer the chosen algorithm and chunk take than the best of all; [performance.md](../../docs/performance.md) "
             "tells how one is chosen.",
             f"Goals: median {100 * GOALS['median']:.0f} %, worst to 2 MB {100 * GOALS['small']:.0f} %, above {100 * GOALS['large']:.0f} %.", "",
             "| collective | ranks | memory | median | worst | where | chosen | best |", "| --- | --- | --- | --- | --- | --- | --- | --- |",
             *quantile_rows(rows), "", f"## Over the goal: {len(over)} of {len(rows)} cases", ""]
    if over:
        lines += ["| case | mode | chosen | us | best | us | regret |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for r in sorted(over, key=lambda r: -r["regret"]):
        lines.append(f"| {case_name(r)} | {r['mode']} | {r['chosen']} | {r['chosen_us']:.2f} | {r['best']} | {r['best_us']:.2f} | "
                     f"{100 * r['regret']:.0f} % |")
    lines += ["", *(f"Not measured: {text}" for text in skipped)]
    with open(os.path.join(out, "regret.md"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines).rstrip() + "\n")


def numbers(text):
    try:
        ranks = [int(word) for word in text.split(",")]
    except ValueError:
        ranks = [0]
    if min(ranks) < 2 or max(ranks) > 64:
        raise argparse.ArgumentTypeError("needs numbers of ranks from 2 to 64, such as 2,4,8")
    return ranks


def parse():
    parser = argparse.ArgumentParser(prog="regret", description="regret of the automatic choice of algorithm and chunk")
    parser.add_argument("build", nargs="?", help="build directory")
    parser.add_argument("--ranks", type=numbers, default=[2, 4, 8])
    parser.add_argument("--runs", type=int, default=5, choices=range(1, 101), metavar="N", help="how often (5)")
    parser.add_argument("--quick", action="store_true", help="few sizes to 512 KB")
    parser.add_argument("--out", default="bench/results", help="folder of regret.csv and regret.md")
    parser.add_argument("--prefix", default="", help="command before each job, for instance taskset -c 2,3")
    parser.add_argument("--report", metavar="RAW", help="no measuring; the raw medians of an earlier run")
    parser.add_argument("--raw", help="keep the raw medians in this file")
    args = parser.parse_args()
    if not args.build and not args.report:
        parser.error("give the build directory or --report")
    return args


def main():
    args, skipped = parse(), []
    with tempfile.TemporaryDirectory(prefix="abcomm-regret-") as place:
        raw = args.report or args.raw or os.path.join(place, "raw.csv")
        if not args.report:
            open(raw, "w", encoding="utf-8").close()
            jobs = itertools.product(range(1, args.runs + 1), args.ranks, COLLECTIVES, ("private", "arena"))
            for run, ranks, collective, memory in jobs:
                why = measure(args, ranks, collective, memory, raw)
                what = f"run {run}, {ranks} ranks, {collective}, {memory}: {why or 'done'}"
                print(what, flush=True)
                skipped += [what] if why else []
        cases = read_cases(raw)
    rows = list(rows_of(cases))
    for mode, why in LEFT_OUT.items():
        count = sum(len(runs) for key, runs in cases.items() if key[-1] == mode)
        skipped += [f"{count} runs of a case, for {why}"] if count else []
    if not rows:
        print("nothing was measured")
        return 1
    os.makedirs(args.out, exist_ok=True)
    report(rows, skipped, args.out)
    print(summary(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
