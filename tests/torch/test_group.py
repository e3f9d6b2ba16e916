"""test_group.py - the backend in jobs of real processes under torchrun, and in processes that spawn started: the cases of ranks.py."""
import pytest

from conftest import HERE, fine, python, torchrun


@pytest.mark.parametrize("ranks, cases", [
    (1, ["reductions", "moves", "lists", "groups", "futures", "kinds"]),
    (2, ["reductions", "moves", "kinds", "sparse", "futures", "again", "observed", "training", "unfinished"]),
    (3, ["timed", "reductions", "moves", "lists", "coalesced", "messages", "groups", "roots", "short_forms"]),
    (3, ["negated", "refused", "destroyed", "monitored"])])
def test_cases(ranks, cases):
    code, said = torchrun(ranks, HERE / "ranks.py", *cases)
    assert fine(code, said) and all(said.count(f"fine {case}") == ranks for case in cases), said


def test_spawned_ranks():
    code, said = python(HERE / "spawned.py")
    assert fine(code, said) and said.count("fine") == 3, said


def test_programs_that_ask_for_gloo():
    code, said = torchrun(2, HERE / "glooed.py", ABCOMM_TORCH_REPLACE_GLOO="1")
    assert fine(code, said) and said.count("fine") == 2 and said.count("groups of backend gloo") >= 2, said
