"""test_lives.py - groups made 200 times, Ctrl-C, groups of one, gradients to the bit, threads: the cases of lives.py."""
import json

import pytest

from conftest import HERE, python

# The exit code of every rank.
CASES = {"again": 0, "ones": 0, "interrupted": 7, "gradients": 0, "threads": 0}


@pytest.mark.parametrize("case", CASES)
def test_case(case):
    code, said = python("-W", "ignore", HERE / "lives.py", case, timeout=200)
    assert code == 0, said
    for rank, (end, output) in enumerate(json.loads(said.splitlines()[-1])[case]):
        assert end == CASES[case], f"rank {rank} ended with {end}: {output}"
        assert not any(word in output for word in ("terminate called", "Fatal", "Exception ignored")), output
        print(f"rank {rank}: {output}")
