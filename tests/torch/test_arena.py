"""test_arena.py - tensors that peers read where they are: how they are made, how long they live, DDP and FSDP2 on them; reducers."""
import pytest
from conftest import HERE, fine, torchrun


@pytest.mark.parametrize("ranks, cases", [(2, ["tensors", "lifetime", "buckets", "shards"]), (3, ["tensors", "reducers", "buckets", "shards"])])
def test_arena(ranks, cases):
    code, said = torchrun(ranks, HERE / "arena_ranks.py", *cases)
    assert fine(code, said) and all(said.count(f"fine {case}") == ranks for case in cases), said
