"""test_failures.py - a rank that dies, hangs, errs or stays away: all the others are told, with names, and nobody hangs."""
import json

import pytest

from conftest import HERE, python

# How the culprit, rank 1, ends.
CASES = {"killed": -9, "killed_in_backward": -9, "hung": 0, "mismatched": 0, "raising": 3, "missing": 0, "aborted": 0}


@pytest.fixture(scope="module")
def done():
    code, said = python("-W", "ignore", HERE / "failing.py", *CASES, timeout=400)
    assert code == 0, said
    return json.loads(said.splitlines()[-1])


@pytest.mark.parametrize("case", CASES)
def test_case(done, case):
    for rank, (code, said) in enumerate(done[case]):
        assert code == (CASES[case] if rank == 1 else 0), f"rank {rank} ended with {code}: {said}"
        assert rank == 1 or "told" in said, said
        assert not any(word in said for word in ("terminate called", "Fatal", "Exception ignored")), said
