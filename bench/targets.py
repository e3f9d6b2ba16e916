"""targets.py - the figures that are to be reached, bench/goals.csv, beside what was measured. Standard library only; table.py uses it.

A row of goals.csv selects cells of the results: what is called, against whom, ranks, mode, memory, place (* for any, several with
spaces between) and the sizes from .. to. measure says what of them must reach the goal:

  ratio      lower quartile of peer ÷ ours, in every cell
  median     the median of those lower quartiles over the cells
  share      bound ÷ ours, in every cell; of the bounds that the same runs measured
  above_ns   upper quartile of the nanoseconds above the blocking call, at most the goal
"""
import csv
import os
import statistics

TIE = 0.95  # where the goal is to be no slower than the strongest peer
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "goals.csv")
NAMES = {"ratio": "lower quartile", "median": "median", "share": "share of bound", "above_ns": "ns above blocking"}


def goals():
    with open(PATH, newline="") as f:
        return list(csv.DictReader(f))


def named():
    return {g["against"] for g in goals()}


def selected(goal, rows):
    """Cells that the goal speaks of and that were measured."""
    q1, kind = ("arena_q1", "arena_share") if goal["memory"] == "arena" else ("ratio_q1", "share")
    for r in rows:
        fits = all(goal[name] == "*" or str(r[name]) in goal[name].split() for name in ("what", "against", "ranks", "mode", "place"))
        value = r.get({"share": kind, "above_ns": "above_ns"}.get(goal["measure"], q1))
        if fits and int(goal["from"]) <= int(r["bytes"]) <= int(goal["to"]) and value not in ("", None):
            yield float(value), float(r[q1]), float(r[kind]) if r[kind] not in ("", None) else None, r


def evaluate(goal, rows):
    """(verdict, measured, cells that reach it, cells, median of lower quartiles, median share, row of the worst cell)."""
    cells, wanted = list(selected(goal, rows)), float(goal["goal"])
    if not cells:
        return {"verdict": "not measured", "value": None}
    most = goal["measure"] == "above_ns"
    reached = [value <= wanted if most else value >= wanted for value, *_ in cells]
    worst = (max if most else min)(cells, key=lambda one: one[0])
    middle = statistics.median(q1 for _, q1, _, _ in cells)
    value = middle if goal["measure"] == "median" else worst[0]
    met = value <= wanted if most else value >= wanted
    tie = wanted == 1 and goal["measure"] == "ratio" and value >= TIE
    shares = [share for _, _, share, _ in cells if share is not None]
    return {"verdict": "met" if met else "tie" if tie else "**missed**", "value": value, "reached": sum(reached), "cells": len(cells),
            "median": middle, "share": statistics.median(shares) if shares else None, "row": worst[3]}


def size(n):
    n = int(n)
    return f"{n} B" if n < 1024 else f"{n >> 10} KB" if n < 1 << 20 else f"{n >> 20} MB"


def words(goal):
    ranks = "any" if goal["ranks"] == "*" else goal["ranks"].replace(" ", ", ")
    mode, place = ("" if goal[name] == "*" else " " + goal[name] for name in ("mode", "place"))
    whom = "" if goal["against"] in ("all", "own") else f" against {goal['against']}"
    sizes = size(goal["from"]) if goal["from"] == goal["to"] else f"{size(goal['from'])} - {size(goal['to'])}"
    return f"{goal['what'].replace(' ', ', ')}{whom} | {ranks}{mode} | {goal['memory']}{place} | {sizes}"


def lines(rows):
    yield "\n## Targets\n"
    yield ("Each cell counts by the lower quartile over its runs. Measured is the worst cell, or the median of all where the target is "
           f"one; where the goal is 1, {TIE} and above is a tie.\n")
    yield "| call | ranks | memory, place | sizes | goal | measured | | cells that reach it | worst cell | median | share of bound |"
    yield "| --- | --- | --- | --- | --- | ---: | --- | ---: | --- | ---: | ---: |"
    for goal in goals():
        e = evaluate(goal, rows)
        sign = "≤" if goal["measure"] == "above_ns" else "≥"
        start = f"| {words(goal)} | {NAMES[goal['measure']]} {sign} {goal['goal']}"
        if e["value"] is None:
            yield f"{start} | | not measured | | | | |"
            continue
        r = e["row"]
        where = f"{r['what']} {r['ranks']} ranks{'' if r['mode'] == '-' else ' ' + r['mode']} {size(r['bytes'])} {r['place']}"
        share = "" if e["share"] is None else f"{100 * e['share']:.0f} %"
        yield f"{start} | {e['value']:.2f} | {e['verdict']} | {e['reached']} of {e['cells']} | {where} | {e['median']:.2f} | {share} |"


def summary(rows):
    verdicts = [evaluate(goal, rows)["verdict"] for goal in goals()]
    return ", ".join(f"{verdicts.count(v)} {v.strip('*')}" for v in ("met", "tie", "**missed**", "not measured"))


def lost(old, new):
    """Targets that the old results reach and the new ones miss."""
    for_both = [(goal, evaluate(goal, old), evaluate(goal, new)) for goal in goals()]
    return [f"{words(goal).replace(' |', ',')}: {a['value']:.2f} -> {b['value']:.2f}, goal {goal['goal']}" for goal, a, b in for_both
            if a["verdict"] in ("met", "tie") and b["verdict"] == "**missed**"]
