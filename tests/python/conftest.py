"""conftest.py - what the tests share: a communicator of one rank, ranks as threads, and jobs of real processes."""
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import abcomm

HERE = Path(__file__).resolve().parent
PROGRAM = Path(os.environ["ABC_BUILDDIR"]) / "abcomm"


@pytest.fixture
def solo():
    """A communicator of one rank: every collective is a copy, every check is the same."""
    with abcomm.Communicator(0, 1) as comm:
        yield comm


class Board:
    """An exchange for ranks that are threads of one process."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def put(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def wait(self, key, timeout):
        with self.changed:
            if not self.changed.wait_for(lambda: key in self.values, timeout):
                raise TimeoutError(f"no value for {key}")

    def get(self, key):
        with self.changed:
            return self.values[key]


def threads(ranks, work, **options):
    """Run work(communicator) on ranks that are threads; the results by rank. The first exception is raised here."""
    board, results, errors = Board(), [None] * ranks, []

    def rank(number):
        try:
            with abcomm.Communicator(number, ranks, exchange=board, **options) as comm:
                results[number] = work(comm)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(ranks)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not any(thread.is_alive() for thread in running), "a rank hangs"
    if errors:
        raise errors[0]
    return results


def job(ranks, *command, timeout=60, **environment):
    """Run a command as the ranks of a job; (exit code, all that it printed)."""
    done = subprocess.run([str(PROGRAM), "run", "-n", str(ranks), "--", *map(str, command)], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout,
                          check=False, env={**os.environ, **environment})
    return done.returncode, done.stdout


def python(*arguments, timeout=60, **environment):
    """Run Python alone; (exit code, all that it printed)."""
    done = subprocess.run([sys.executable, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace", timeout=timeout, check=False,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout
