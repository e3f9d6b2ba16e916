"""forks.py - ranks that are forked from a process which has torch imported: a job of them starts in milliseconds.

`run` gives each rank the variables that torch's env:// rendezvous reads, a file for its output, and a time limit for all.
"""
from __future__ import annotations

import faulthandler
import os
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import IO

LAST_WORDS = 1.0  # seconds for a rank that hangs to print where


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _live(work: Callable[[], None], output: IO[str]) -> None:
    """The life of a rank, up to the end of the interpreter; does not return."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    faulthandler.register(signal.SIGUSR1)
    code = 1
    try:
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(running: dict[int, tuple[int, int]], codes: dict[int, object], seconds: float) -> None:
    """Reap ranks until all have ended or the time is over. running: {descriptor of the process: (rank, process id)}."""
    end = time.monotonic() + seconds
    while running and time.monotonic() < end:
        for descriptor in select.select(list(running), [], [], max(0.0, end - time.monotonic()))[0]:
            rank, pid = running.pop(descriptor)
            codes[rank] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
            os.close(descriptor)


def run(work: Callable[[], None], ranks: int, limit: float = 60,
        meanwhile: Callable[[list[int]], None] | None = None) -> list[tuple[object, str]]:
    """(exit code, output) of each rank; the code is "hangs" for one that did not end. `meanwhile` gets the process ids."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(ranks))
    outputs = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(ranks)]
    running: dict[int, tuple[int, int]] = {}
    codes: dict[int, object] = {}
    sys.stdout.flush()
    for rank, output in enumerate(outputs):
        os.environ["RANK"] = os.environ["LOCAL_RANK"] = str(rank)
        pid = os.fork()
        if pid == 0:
            _live(work, output)
        running[os.pidfd_open(pid)] = rank, pid
    if meanwhile is not None:
        meanwhile([pid for _, pid in running.values()])
    _wait(running, codes, limit)
    hung = {rank for rank, _ in running.values()}
    for number, seconds in ((signal.SIGUSR1, LAST_WORDS), (signal.SIGKILL, 30.0)):
        for _, pid in running.values():
            os.kill(pid, number)
        _wait(running, codes, seconds)
    done = []
    for rank, output in enumerate(outputs):
        output.seek(0)
        done.append(("hangs" if rank in hung else codes[rank], output.read()))
        output.close()
    return done
