"""work.py - what an operation returns to torch: a Work that was started, with a Future on demand, or one that is over.

Whoever waits drives the operation inline; nobody has to, for the communicator has a progress thread. A Work may be dropped: the
request keeps the tensors until the operation is over. Only what somebody must be told of, a Future or outputs that are copied back,
costs a thread of delivery.py.
"""
from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any, Callable

import torch
import torch.distributed as dist

import abcomm
from abcomm.torch import delivery, errors, typed, types

Finish = Callable[[Any], None]


def _seconds(timeout: timedelta | None) -> float:
    """0 for none: torch passes 0, or a negative time, where no limit was given."""
    return 0.0 if timeout is None else max(timeout.total_seconds(), 0.0)


class Work(dist._Work):
    """One operation of torch: one or several requests, waited for in their order."""

    def __init__(self, requests: list[abcomm.Request], name: str, group: str, result: Any, finish: Finish | None,
                 record: Any = None) -> None:
        """finish: what is left to do when the requests are over; record: what has an end then."""
        super().__init__()
        self._requests = requests
        self._name = name
        self._group = group
        self._result = result
        self._finish = finish
        self._lock = threading.Lock()
        self._source = -1
        self._over = False
        self._error: Exception | None = None
        self._futures: tuple[Any, Any] | None = None
        self._added = False
        self._record = record
        if finish is not None or record is not None:
            self._need_delivery()

    # ---- for torch

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until the operation is over; raise its error."""
        if not self._over:
            limit = _seconds(timeout)
            if limit and not self._poll(limit):
                raise dist.DistBackendError(f"abcomm {self._name} on group {self._group}: not over after the {limit:g} seconds that "
                                            "wait was given; it goes on, and its tensors must stay alone until it is over")
            self._settle()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """The same as wait: tensors of the CPU have no stream."""
        self.wait()

    def is_completed(self) -> bool:
        """True if the operation is over, whatever its outcome."""
        return self._over or self._look()

    def is_success(self) -> bool:
        """True if the operation is over and has succeeded."""
        if not self.is_completed():
            return False
        self._settle()
        return self._error is None

    def exception(self) -> Exception | None:
        """What the operation has ended with; None while it is in progress, too."""
        if self.is_completed():
            self._settle()
        return self._error

    def result(self) -> Any:
        """The output tensors."""
        self.wait()
        return self._result

    def source_rank(self) -> int:
        """The sender of what was received."""
        self.wait()
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        """A future with the output tensors. Its callbacks run on a thread of this package, or at once if the operation is over."""
        with self._lock:
            if self._futures is None:
                begin = torch.futures.Future()
                # torch has no way to fail a future that C++ can read, but a callback that raises.
                told = begin.then(self._outcome)
                self._futures = begin, typed.future(told, self._result) if typed.wanted(self._result) else told
        if self.is_completed():
            self._settle()
        else:
            self._need_delivery()
        return self._futures[1]

    # ---- for this package

    def deliver(self) -> None:
        """Called by a thread of delivery.py once the last request is over."""
        self._settle()

    def _need_delivery(self) -> None:
        with self._lock:
            if self._added:
                return
            self._added = True
        delivery.add(self._requests[-1], self)

    def _outcome(self, begin: Any) -> Any:
        if self._error is not None:
            raise self._error
        return self._result

    def _look(self) -> bool:
        try:
            return all(request.test() for request in self._requests)
        except abcomm.Error:
            return True

    def _poll(self, limit: float) -> bool:
        end, pause = time.monotonic() + limit, 1e-5
        while not self._look():
            if time.monotonic() > end:
                return False
            time.sleep(pause)
            pause = min(2 * pause, 1e-3)
        return True

    def _settle(self) -> None:
        """See the operation's end, once, whoever comes first; the others wait for that."""
        error: Exception | None = None
        told: Any = None
        for request in self._requests:
            try:
                told = request.wait()
            except abcomm.Error as what:
                error = error or errors.translated(what, self._name, self._group)
        with self._lock:
            if not self._over:
                self._error = error or self._complete(told)
                if self._record is not None:
                    self._record.end()
                self._finish = self._record = None
                self._over = True
            futures, begin = self._futures, None
            if futures is not None and not futures[0].done():
                begin = futures[0]
        if begin is not None:
            try:
                begin.set_result(None)
            except RuntimeError:  # another thread was quicker
                pass

    def _complete(self, told: Any) -> Exception | None:
        """What is left when the requests have succeeded."""
        if isinstance(told, abcomm.Received):
            self._source, wanted = told.source, self._result[0]
            count = wanted.numel() if wanted.dtype in types.CODES else wanted.nbytes
            if told.count != count:
                return dist.DistBackendError(f"abcomm {self._name} on group {self._group}: rank {told.source} has sent {told.count} "
                                             f"elements, the tensor has {count}; both must have the same size")
        try:
            if self._finish is not None:
                self._finish(told)
        except Exception as what:
            return what
        return None


class Together(dist._Work):
    """Operations that were started between the two ends of a batch, as one."""

    def __init__(self, works: list[Work]) -> None:
        super().__init__()
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Block until all are over; the timeout is for each."""
        return all([work.wait(timeout) for work in self._works])

    def synchronize(self) -> None:
        """The same as wait."""
        self.wait()

    def is_completed(self) -> bool:
        """True if all are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """True if all are over and have succeeded."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Exception | None:
        """The first error."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Any:
        """A future with a list of all outputs."""
        def results(futures: Any) -> list[Any]:
            return [future.value() for future in futures.value()]

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(results)


class Done(dist._Work):
    """What a synchronous call returns."""

    def __init__(self) -> None:
        super().__init__()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Nothing is left to wait for."""
        return True

    def synchronize(self) -> None:
        """Nothing is left to wait for."""

    def is_completed(self) -> bool:
        """It was over when the call returned."""
        return True

    is_success = is_completed

    def exception(self) -> None:
        """The call would have raised it."""

    def get_future(self) -> Any:
        """Synchronous calls have no future: their outputs are ready."""
        raise RuntimeError("abcomm: a synchronous operation has no future; call it with async_op=True")


DONE = Done()
