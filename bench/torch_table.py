"""torch_table.py - from the samples of torch_rank.py to bench/results/torch.csv and torch.md. Standard library only.

A ratio is taken of each pair of samples that stand side by side in one process, then the median and the quartiles of all pairs of all
runs. With two ranks cells are split by whether the cores were near each other or far when they were measured.
"""
import collections
import statistics

import table

COLUMNS = ["part", "what", "ranks", "bytes", "mode", "peer", "peer_us", "ours_us", "ratio", "ratio_q1", "ratio_q3", "arena_us",
           "arena_gain", "arena_q1", "arena_q3", "dist_us", "alone_us", "exposed", "goal", "pairs", "handoff_us", "wrong"]
NEAR = 0.18  # us that 8 bytes take longer with a peer than alone; the C frame's bare hand-off is a little less


def _mode(row):
    return "-" if row["ranks"] != 2 else "near" if row["handoff_us"] < NEAR else "far"


def _goal(part, what, size):
    """What is to be reached: peer ÷ ours; None: nothing was asked for."""
    if part == "operations":
        if what == "all_reduce":
            return 30 if size <= 4096 else 20 if size <= 32768 else 4 if size <= 1 << 20 else 3
        return 10 if size <= 4096 else 4
    if part == "inference":
        return 1.0 if what.startswith("sum") else None
    return 1.3 if part in ("ddp", "fsdp") else None


def _pairs(rows, over, under):
    return [a / b for row in rows for a, b in zip(row[over], row[under])]


def _middle(rows, name):
    return round(statistics.median([ns for row in rows for ns in row[name]]) / 1000, 2) if name in rows[0] else ""


def _three(values):
    q1, q2, q3 = table.quartiles(values)
    return round(q2, 3), round(q1, 3), round(q3, 3)


def _cell(key, rows):
    part, what, ranks, size, mode = key
    cell = dict.fromkeys(COLUMNS, "") | {"part": part, "what": what, "ranks": ranks, "bytes": size, "mode": mode}
    cell["wrong"] = sum(row["wrong"] for row in rows)
    cell["handoff_us"] = round(statistics.median(row["handoff_us"] for row in rows), 3)
    if part == "overhead":
        low = {name: table.quartiles([ns for row in rows for ns in row[name]])[1] / 1000 for name in ("raw", "torch")}
        cell |= {"peer": "raw call", "peer_us": round(low["raw"], 2), "ours_us": round(low["torch"], 2), "goal": 3.0,
                 "pairs": sum(len(row["raw"]) for row in rows)}
        return cell
    peer = "deepspeed" if part == "inference" else "gloo"
    ratios = _pairs(rows, peer, "ours")
    cell |= {"peer": peer, "peer_us": _middle(rows, peer), "ours_us": _middle(rows, "ours"), "pairs": len(ratios),
             "goal": _goal(part, what, size) or ""}
    cell["ratio"], cell["ratio_q1"], cell["ratio_q3"] = _three(ratios)
    if "arena" in rows[0]:
        cell["arena_us"] = _middle(rows, "arena")
        cell["arena_gain"], cell["arena_q1"], cell["arena_q3"] = _three(_pairs(rows, "ours", "arena"))
    if "dist" in rows[0]:
        cell["dist_us"] = _middle(rows, "dist")
    if "alone" in rows[0]:
        cell["alone_us"] = _middle(rows, "alone")
        cell["exposed"] = round(1 - cell["alone_us"] / cell["peer_us"], 3)
    return cell


def summarise(rows):
    """One cell for each part, operation, number of ranks, size and mode."""
    cells = collections.defaultdict(list)
    for row in rows:
        cells[row["part"], row["what"], row["ranks"], row["bytes"], _mode(row)].append(row)
    return [_cell(key, some) for key, some in sorted(cells.items(), key=lambda one: (one[0][2], one[0][4] == "far"))]


def _ratio(cell):
    """The ratio and whether it reaches its goal: by the lower quartile, or by the median alone."""
    met = "" if cell["goal"] == "" else (" met" if cell["ratio_q1"] >= cell["goal"] else
                                         " by the median only" if cell["ratio"] >= cell["goal"] else " missed")
    return f"{cell['ratio']:.2f} ({cell['ratio_q1']:.2f}-{cell['ratio_q3']:.2f}) | {cell['goal']}{met}"


def _where(cell):
    return table.title(cell["ranks"], cell["mode"])


def _operations(cells):
    yield "\n## Operations\n"
    yield "float32; bytes of the larger buffer; microseconds from the last rank's start to the last rank's end.\n"
    yield "| operation | ranks | bytes | gloo us | ours us | gloo / ours (quartiles) | goal | arena us | ours / arena (quartiles) | pairs |"
    yield "| --- | --- | ---: | ---: | ---: | --- | --- | ---: | --- | ---: |"
    for c in cells:
        yield (f"| {c['what']} | {_where(c)} | {table.human(c['bytes'])} | {c['peer_us']:.1f} | {c['ours_us']:.1f} | {_ratio(c)} | "
               f"{c['arena_us']:.1f} | {c['arena_gain']:.2f} ({c['arena_q1']:.2f}-{c['arena_q3']:.2f}) | {c['pairs']} |")


def _overhead(cells):
    yield "\n## What torch and Python add\n"
    yield ("all_reduce of 8 bytes, synchronous, a group of one rank: what is above the library's raw call from Python, best"
           " quartile. Goal: 3 us.\n")
    yield "| ranks beside it | raw call us | dist.all_reduce us | above us |\n| --- | ---: | ---: | ---: |"
    for c in cells:
        yield f"| {_where(c)} | {c['peer_us']:.2f} | {c['ours_us']:.2f} | {c['ours_us'] - c['peer_us']:.2f} |"


def _steps(cells):
    yield "\n## Training steps\n"
    yield ("A transformer language model of 13 MB, one step with SGD. Without communication: DDP in no_sync, FSDP2's model not sharded; "
           "exposed is what a step on gloo takes longer than that.\n")
    yield ("| | ranks | without ms | gloo ms | exposed | ours ms | gloo / ours (quartiles) | goal | arena ms | ours / arena (quartiles) | "
           "steps |")
    yield "| --- | --- | ---: | ---: | ---: | ---: | --- | --- | ---: | --- | ---: |"
    for c in cells:
        yield (f"| {c['part'].upper()} | {_where(c)} | {c['alone_us'] / 1000:.1f} | {c['peer_us'] / 1000:.1f} | {100 * c['exposed']:.0f} % | "
               f"{c['ours_us'] / 1000:.1f} | {_ratio(c)} | {c['arena_us'] / 1000:.1f} | "
               f"{c['arena_gain']:.3f} ({c['arena_q1']:.3f}-{c['arena_q3']:.3f}) | {c['pairs']} |")


def _inference(cells):
    yield "\n## Inference, each layer split over two ranks\n"
    yield ("8 layers, 512 wide; the sum of each half layer by DeepSpeed's operation in shared memory (torch.ops.deepspeed), by "
           "abcomm.torch.reducer (ours) and by dist.all_reduce.\n")
    yield ("| | | DeepSpeed us | ours us | DeepSpeed / ours (quartiles) | goal | dist.all_reduce us | pairs |\n"
           "| --- | --- | ---: | ---: | --- | --- | ---: | ---: |")
    for c in cells:
        yield (f"| {c['what']} | {_where(c)} | {c['peer_us']:.1f} | {c['ours_us']:.1f} | {_ratio(c)} | "
               f"{c['dist_us']:.1f} | {c['pairs']} |")


def markdown(cells, facts):
    """All tables, with the machine before them."""
    lines = ["# PyTorch on gloo and on abcomm\n",
             "Made by `./dev bench torch`; docs/benchmarking.md says how to read it. Both backends are groups of the same processes, their",
             "calls alternate in random order, new tensors before each call, each rank on a CPU of its own or, with more ranks, on a shared",
             "one. Times are medians; a ratio is the median over neighbouring pairs. A goal is met when the lower quartile of the pairs is.\n", *(f"- {what}: {text}" for what, text in facts)]
    for parts, make in ((("operations",), _operations), (("overhead",), _overhead), (("ddp", "fsdp"), _steps), (("inference",), _inference)):
        some = [cell for cell in cells if cell["part"] in parts]
        if some:
            lines += make(some)
    wrong = sum(cell["wrong"] for cell in cells)
    lines.append(f"\n{'No result was wrong.' if not wrong else f'**{wrong} results were wrong.**'}")
    return "\n".join(lines) + "\n"
