"""delivery.py - the threads that complete futures and run their callbacks.

The thread that drives an operation to its end may not wait for Python, so it leaves the operation's Work in a queue of the extension.
Threads of this file take it from there. A callback may issue an operation and block on it, so one thread more than those that are
busy always waits for the next Work; threads that have nothing to do for a while end.
"""
from __future__ import annotations

import atexit
import logging
import os
import threading
from typing import Protocol

import abcomm

_log = logging.getLogger("abcomm.torch")
_IDLE = 5.0  # seconds after which a thread ends that is not the only one waiting
_LIMIT = 64  # so many callbacks may block at once


class Deliverable(Protocol):
    """What can be put into the queue."""

    def deliver(self) -> None:
        """Tell whoever waits that the operation is over."""


class _Pool:
    def __init__(self) -> None:
        self.queue = abcomm.Completions()
        self.lock = threading.Lock()
        self.threads: set[threading.Thread] = set()
        self.waiting = 0
        self.ended = False

    def add(self, request: abcomm.Request, work: Deliverable) -> None:
        self.queue.add(request, work)
        if not self.waiting:
            self._reinforce()

    def put(self, work: Deliverable) -> None:
        self.queue.put(work)
        if not self.waiting:
            self._reinforce()

    def _reinforce(self) -> None:
        """See that a thread waits for the next Work."""
        with self.lock:
            if self.waiting or self.ended or len(self.threads) >= _LIMIT:
                return
            thread = threading.Thread(target=self._run, name="abcomm-delivery", daemon=True)
            self.threads.add(thread)
            self.waiting += 1
            thread.start()

    def _take(self) -> Deliverable | None:
        """The next Work, with this thread counted as busy; None: the thread is not needed any more."""
        while True:
            try:
                work: Deliverable | None = self.queue.take(_IDLE)
            except abcomm.TimeoutError:
                with self.lock:
                    if self.waiting > 1 or self.ended:
                        self.waiting -= 1
                        return None
                continue
            with self.lock:
                self.waiting -= 1
            return work

    def _run(self) -> None:
        while (work := self._take()) is not None:
            self._reinforce()
            try:
                work.deliver()
            except BaseException:
                _log.exception("abcomm: the completion of an operation could not be delivered")
            del work
            with self.lock:
                self.waiting += 1
        with self.lock:
            self.threads.discard(threading.current_thread())

    def end(self, seconds: float) -> None:
        """Let the threads end, and wait that long for those that are busy."""
        with self.lock:
            self.ended = True
            threads = list(self.threads)
        for _ in threads:
            self.queue.put(None)
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(seconds)


_pool = _Pool()


def _after_fork() -> None:
    """A forked child has none of the threads."""
    global _pool
    _pool = _Pool()


os.register_at_fork(after_in_child=_after_fork)


@atexit.register
def end() -> None:
    """At the end of the interpreter: no thread may come back to a Python that is not there any more."""
    _pool.end(5.0)


def add(request: abcomm.Request, work: Deliverable) -> None:
    """Let a thread call work.deliver() once the request is over."""
    _pool.add(request, work)


def put(work: Deliverable) -> None:
    """Let a thread call work.deliver() now."""
    _pool.put(work)
