"""test_jobs.py - the package in jobs of real processes, started by `abcomm run`: the cases of ranks.py."""
import sys
import time

import pytest

from conftest import HERE, job, python


@pytest.mark.parametrize("ranks, case", [
    (2, "collectives"), (3, "collectives"), (2, "rooted"), (3, "rooted"), (2, "messages"), (3, "messages"), (2, "vectors"),
    (4, "vectors"), (2, "groups"), (3, "groups"), (2, "types"), (2, "pairs"), (3, "scaled"), (3, "operations"), (2, "user_operations"), (4, "user_operations"),
    (2, "requests"), (3, "requests"), (4, "splits"), (2, "several_threads"), (2, "mismatch"), (2, "late"),
    (2, "forked"), (2, "exit_without_close"), (2, "raising")])
def test_case(ranks, case):
    code, said = job(ranks, sys.executable, HERE / "ranks.py", case)
    assert code == 0 and "Traceback" not in said and "Exception ignored" not in said, said


def test_end_of_the_interpreter_while_a_thread_waits():
    start = time.monotonic()
    code, said = job(2, sys.executable, HERE / "ranks.py", "exit_while_a_thread_waits")
    assert said.count("ending") == 2 and "Fatal" not in said and code >= 0, said
    assert time.monotonic() - start < 30


def test_death_of_a_peer():
    code, said = job(3, sys.executable, HERE / "ranks.py", "killed", ABCOMM_RUN_GRACE="10")
    assert code != 0 and "Fatal" not in said, said


def test_outside_of_a_job():
    code, said = python("-c", "import abcomm; abcomm.Communicator()")
    assert code == 1 and "abcomm.LaunchError" in said and "abcomm run" in said, said
