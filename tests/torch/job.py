"""job.py - runs a command that starts processes of its own, and ends all of them when the time is over.

torchrun's workers have sessions of their own, so a signal to its process group does not reach them. What still runs is first asked by
SIGUSR1 to print where it is, which Python programs do that called `faulthandler.register`; then all is killed.
"""
from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

LAST_WORDS = 1.0  # seconds


def descendants(pid: int) -> list[int]:
    """All processes below this one, the nearest first."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                children.setdefault(int(file.read().rsplit(")", 1)[1].split()[1]), []).append(int(name))
        except (OSError, IndexError):
            pass  # it has just ended
    found, new = [], [pid]
    while new:
        new = [child for parent in new for child in children.get(parent, [])]
        found += new
    return found


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for the signal, so that it does not die of it."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            caught = next(line for line in file if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> number - 1 & 1)


def end(process: subprocess.Popen[str]) -> None:
    """End a job that hangs, with all that it has started."""
    below = descendants(process.pid)
    _signal([pid for pid in below if _catches(pid, signal.SIGUSR1)], signal.SIGUSR1)
    time.sleep(LAST_WORDS)
    _signal([process.pid, *below, *descendants(process.pid)], signal.SIGKILL)


def run(command: Sequence[object], limit: float, environment: Mapping[str, str],
        meanwhile: Callable[[subprocess.Popen[str]], None] | None = None) -> tuple[int | None, str]:
    """(exit code, output); the code is None where the limit was passed. `meanwhile` is called when the job has been started."""
    process = subprocess.Popen([str(word) for word in command], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
    try:
        if meanwhile is not None:
            meanwhile(process)
        said, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        end(process)
        said, _ = process.communicate()
        return None, said
    except BaseException:
        end(process)
        process.communicate()
        raise
    return process.returncode, said
