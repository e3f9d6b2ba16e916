"""base.py - what every group is before it has operations: its communicator, how calls are run, what torch asks about it, its end.

A synchronous call runs inline in the calling thread; an asynchronous one is started and becomes a Work. Both are counted for report(),
and recorded where torch's profiler runs.
"""
from __future__ import annotations

import contextlib
import logging
import os
from datetime import timedelta
from time import perf_counter
from typing import Any, Callable, Sequence

import torch
import torch.autograd.profiler as profiler
import torch.distributed as dist

import abcomm
from abcomm.torch import errors, memory, record, report, store as start_up
from abcomm.torch.work import DONE, Finish, Together, Work

BACKEND = "abcomm"
_log = logging.getLogger("abcomm.torch")
NO_TIME = timedelta(0)  # below it: the caller has given no limit
_SIZES: dict[int, int] = {number: size for number, size, _ in abcomm.types.values()}  # of an element
_advised = False


def bytes_of(call: report.Call) -> int:
    """The larger buffer of a raw call."""
    return max((buffer[1] * _SIZES[buffer[2]] for buffer in call[1:3] if buffer is not None), default=0)


def advise(ranks: int) -> None:
    """Say once if the ranks' threads are more than the CPUs: waiting and computing threads then take turns on them."""
    global _advised
    threads, cpus = torch.get_num_threads(), len(os.sched_getaffinity(0))
    if not _advised and ranks > 1 and threads > 1 and threads * ranks > cpus:
        _log.info("abcomm: %d ranks with %d threads each have %d CPUs; set OMP_NUM_THREADS=%d, or each rank waits for the others' threads",
                  ranks, threads, cpus, max(cpus // ranks, 1))
        _advised = True


class Base(dist.ProcessGroup):
    """One rank's end of a process group, without operations."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self._name, self._description = name, "undefined"
        self._rank, self._size = rank, size
        self._timeout = timeout.total_seconds()
        self._comm = start_up.communicator(store, rank, size, self._timeout, name)
        self._pool = memory.Pool()
        self._usage = report.Usage(name, rank, size, self._comm)
        self._before = sum(row.calls for row in self._usage.rows.values())  # of earlier groups of this name
        self._run: Callable[..., Any] = self._comm.run
        self._start: Callable[..., abcomm.Request] = self._comm.start
        self._seconds: float | None = None  # limit of operations: None: the communicator's
        self._batch: list[Work] | None = None  # between _start_coalescing and _end_coalescing: what was started
        if rank == 0:
            advise(size)

    # ---- running calls

    def _execute(self, name: str, calls: list[report.Call], opts: Any, result: Any, finish: Finish | None = None,
                 asynchronous: bool | None = None, shown: Sequence[torch.Tensor] | None = None) -> dist._Work:
        """Run or start the raw calls that an operation consists of.

        finish: what is left to do when they are over; asynchronous: in place of options; shown: the inputs, where the calls have others.
        """
        seconds = self._seconds
        if opts is not None:
            asynchronous = opts.asyncOp
            seconds = seconds if opts.timeout < NO_TIME else opts.timeout.total_seconds()
        asynchronous = asynchronous or self._batch is not None
        event = record.Event(f"{BACKEND}:{name}", calls, shown) if profiler._is_profiler_enabled else None
        begin = perf_counter()
        try:
            if asynchronous:
                requests = [self._start(*call[:5], seconds, *call[5:]) for call in calls]
            else:
                for call in calls:
                    self._run(*call[:5], seconds, *call[5:])
        except abcomm.Error as error:
            self._usage.row(name).count(bool(asynchronous), finish is not None, 0, None, perf_counter() - begin)
            if event is not None:
                event.end()
            raise errors.translated(error, name, self._name) from error
        work = Work(requests, name, self._name, result, finish, event) if asynchronous else None
        if work is not None and self._batch is not None:
            self._batch.append(work)
        if work is None and finish is not None:
            finish(None)
        if work is None and event is not None:
            event.end()
        self._usage.row(name).count(bool(asynchronous), finish is not None, sum(map(bytes_of, calls)), calls[0] if calls else None,
                                    perf_counter() - begin)
        return work or DONE

    def _start_coalescing(self, device: torch.device) -> None:
        """What is called from now on is only started, whatever the caller wants, and is over with the Work of _end_coalescing."""
        self._batch = []

    def _end_coalescing(self, device: torch.device) -> dist._Work:
        works, self._batch = self._batch, None
        return Together(works or [])

    # ---- what the group is

    def getBackendName(self) -> str:
        """For torch's C++ side."""
        return BACKEND

    def name(self) -> str:
        """The name of the backend, as torch's own groups tell it."""
        return BACKEND

    _get_backend_name = name

    def getGroupName(self) -> str:
        """The name that torch has given the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch."""
        self._name = name

    _set_group_name = setGroupName

    def getGroupDesc(self) -> str:
        """What the program has said that the group is for."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Called by torch."""
        self._description = description

    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        """The name that torch has given the group."""
        return self._name

    @property
    def group_desc(self) -> str:
        """What the program has said that the group is for."""
        return self._description

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def supports_splitting(self) -> bool:
        """Groups are made over the Store, not out of each other."""
        return False

    @property
    def supports_coalescing(self) -> bool:
        """Messages of a batch need no order among each other, so torch may start them one by one."""
        return False

    def _get_backend(self, device: torch.device) -> Base:
        """The group is its own backend, for the CPU."""
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"abcomm has no backend for {device}, only for cpu; init_process_group('cpu:abcomm,...') cannot mix it "
                               "with others, make a second group for the device")
        return self

    def supports_tensor_alloc(self, device: Any) -> bool:
        """True where allocate_tensor works; FSDP asks."""
        return torch.device(device).type == "cpu"

    def allocate_tensor(self, size: int, *, dtype: torch.dtype, device: Any = "cpu") -> torch.Tensor:
        """A flat tensor in the arena, out of the group's pool."""
        if not self.supports_tensor_alloc(device):
            raise ValueError(f"abcomm allocates tensors of the CPU, not of {device}")
        return self._pool.empty(size, dtype)

    def set_timeout(self, timeout: timedelta) -> None:
        """The limit of the operations that are called from now on."""
        self._timeout = self._seconds = timeout.total_seconds()

    _set_default_timeout = set_timeout

    def _get_sequence_number_for_group(self) -> int:
        return sum(row.calls for row in self._usage.rows.values()) - self._before

    def _set_sequence_number_for_group(self) -> None:
        """Numbers start with the group."""

    # ---- the end

    def shutdown(self) -> None:
        """Complete what is in flight and release the communicator; called by destroy_process_group.

        What has ended the group earlier is logged, not raised: the program is cleaning up, and torch has more groups to destroy.
        """
        self._usage.close()
        try:
            self._comm.close()
        except abcomm.Error as error:
            _log.warning("%s", errors.translated(error, "shutdown", self._name))

    def abort(self) -> None:
        """End the group on all ranks now."""
        with contextlib.suppress(abcomm.HandleError):
            self._comm.abort(f"rank {self._rank} has aborted group {self._name}")
