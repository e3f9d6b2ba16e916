"""test_bench.py - the PyTorch benchmark works: results of both backends are right, and the tables are made of what the ranks print."""
import json
import sys

from conftest import HERE, torchrun

BENCH = HERE.parent.parent / "bench"
sys.path.insert(0, str(BENCH))
import torch_table  # noqa: E402


def measured(part, ranks):
    """What rank 0 has printed of a short run."""
    code, said = torchrun(ranks, BENCH / "torch_rank.py", part, "0.01", "quick")
    rows = [json.loads(line[4:]) for line in said.splitlines() if line.startswith("row ")]
    assert code == 0 and rows, said
    return rows


def test_operations_and_steps_become_tables():
    rows = measured("operations", 2) + measured("overhead", 2) + measured("ddp", 2)
    assert not any(row["wrong"] for row in rows)
    cells = torch_table.summarise(rows)
    assert len(cells) == len(rows) and all(set(cell) == set(torch_table.COLUMNS) for cell in cells)
    step = next(cell for cell in cells if cell["part"] == "ddp")
    assert step["exposed"] == round(1 - step["alone_us"] / step["peer_us"], 3) and step["goal"] == 1.3
    text = torch_table.markdown(cells, [("machine", "here")])
    assert "No result was wrong." in text and text.count("| all_reduce |") == 5 and "| DDP | 2 ranks, " in text


def test_ratio_is_taken_of_pairs():
    row = {"part": "operations", "what": "all_reduce", "ranks": 2, "bytes": 8, "handoff_us": 0.3, "wrong": 0,
           "gloo": [100000, 300000, 200000], "ours": [10000, 10000, 40000], "arena": [5000, 10000, 20000]}
    cell, = torch_table.summarise([row])
    assert (cell["mode"], cell["ratio"], cell["arena_gain"], cell["pairs"]) == ("far", 10, 2, 3)
    assert (cell["peer_us"], cell["ours_us"]) == (200, 10)
