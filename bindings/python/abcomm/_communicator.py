"""_communicator.py - the collectives with their names, defaults and documentation, over the three raw calls of the extension.

Every collective and every message comes in three forms: `name` blocks, `name_start` returns a started Request, `name_request` returns a Request that
is not started yet. Options are keywords, the same everywhere: see Options and RequestOptions.
"""
from __future__ import annotations

import atexit
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Protocol, Self, SupportsIndex, TypeAlias, TypedDict, Unpack

from abcomm import _abcomm
from abcomm._abcomm import Received, Request, ScaledSum, UserOperation, collectives

# What has the buffer protocol or DLPack, or (address, count, dtype). Python has no type for "any of these".
Array: TypeAlias = Any
# A count or an offset for each rank, in elements.
Counts: TypeAlias = Iterable[SupportsIndex]
Op: TypeAlias = str | int | ScaledSum | UserOperation
Callback: TypeAlias = "_abcomm.Callback"


class Options(TypedDict, total=False):
    """What every collective takes by keyword."""

    timeout: float  # seconds until the operation gives up, which ends the communicator; 0: the communicator's
    algorithm: str | None  # by name, as `abcomm plan --list` shows them; None: chosen by price
    tag: int  # a number that is shown in diagnosis
    preserve: bool  # in-place contents survive an error, for the price of a copy


class RequestOptions(Options, total=False):
    """What every request takes by keyword."""

    # Called with None or the exception when the operation is over, on the thread that drove it. May start operations, not wait.
    callback: Callback | None


class MessageOptions(TypedDict, total=False):
    """What send and recv take by keyword."""

    timeout: float  # as in Options


class MessageRequestOptions(MessageOptions, total=False):
    """What send_start, recv_start and their requests take by keyword."""

    callback: Callback | None  # as in RequestOptions


ANY_SOURCE = -1
ANY_TAG = -1
_ALLREDUCE = collectives["allreduce"]
_REDUCE_SCATTER = collectives["reduce_scatter"]
_ALLGATHER = collectives["allgather"]
_BROADCAST = collectives["broadcast"]
_BARRIER = collectives["barrier"]
_REDUCE = collectives["reduce"]
_GATHER = collectives["gather"]
_SCATTER = collectives["scatter"]
_ALLTOALL = collectives["alltoall"]
_SCAN = collectives["scan"]
_EXSCAN = collectives["exscan"]
_GATHERV = collectives["gatherv"]
_SCATTERV = collectives["scatterv"]
_ALLGATHERV = collectives["allgatherv"]
_REDUCE_SCATTERV = collectives["reduce_scatterv"]
_ALLTOALLV = collectives["alltoallv"]
_SEND = collectives["send"]
_RECV = collectives["recv"]


class Exchange(Protocol):
    """A key-value store over which the ranks of a communicator find each other; used during creation only."""

    def put(self, key: str, value: bytes) -> object:
        """Publish a value."""

    def wait(self, key: str, timeout: float) -> object:
        """Block until the key exists; raise TimeoutError when the seconds are over."""

    def get(self, key: str) -> bytes:
        """The value of a key that exists."""
        ...


class Group:
    """`with abcomm.group():` - the calls of this thread inside the block as one, on however many communicators.

    They are checked at once and started together at the end of the block, which waits for those that block by themselves; their outputs
    are filled then, and recv returns None. Sends and receives of a group never wait for each other. Short allreduces of one kind become
    one operation, so all ranks make the same collectives in the same groups. Requests start at the end and are waited for afterwards.

    When the block raises, or a call of it was refused, nothing of the group is started. Groups nest; only the outermost end starts.
    """

    def __enter__(self) -> Self:
        _abcomm._group_start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            _abcomm._group_end()
        else:
            _abcomm._group_drop()


def group() -> Group:
    """A group of calls, for a `with` statement: see Group."""
    return Group()


class Communicator(_abcomm.Communicator):
    """One rank's end of a communicator; creation is collective and blocks until all ranks have come.

    Without arguments the environment tells rank, size and address, as `abcomm run` sets it up. Else give rank, size and either the
    address of rank 0 ("host:port") or an exchange. The key, 16 bytes or more, authenticates the ranks to each other.

    As a context manager it is closed at the end, and aborted on all ranks when the block raises.
    """

    def __init__(self, rank: int = -1, size: int = 0, address: str | None = None, *, key: bytes | str | None = None,
                 exchange: Exchange | None = None, connect_timeout: float = 0.0, timeout: float = 0.0,
                 progress_thread: bool | None = None) -> None:
        super().__init__(rank, size, address, key, exchange, connect_timeout, timeout,
                         -1 if progress_thread is None else int(progress_thread))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.closed:
            return
        if error is not None and self.status == "ABC_OK":
            self.abort(f"{type(error).__name__}: {error}")
        try:
            self.close()
        except _abcomm.Error:
            if error is None:
                raise

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.status
        return f"<abcomm.Communicator rank {self.rank} of {self.size}, {state}>"

    def group(self) -> Group:
        """A group of calls, for a `with` statement: see abcomm.group, which is the same."""
        return Group()

    # ---- allreduce

    def allreduce(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Reduce over all ranks; every rank gets the result, in `out` or, without it, in `array`. Returns where it is."""
        return self.run(_ALLREDUCE, array, out, op, **options)

    def allreduce_start(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """allreduce, started."""
        return self.start(_ALLREDUCE, array, out, op, **options)

    def allreduce_request(self, array: Array, out: Array = None, op: Op = "sum",
                          **options: Unpack[RequestOptions]) -> Request:
        """allreduce, to be started by the request's start(), any number of times."""
        return self.prepare(_ALLREDUCE, array, out, op, **options)

    # ---- reduce_scatter

    def reduce_scatter(self, array: Array, out: Array, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Reduce `array`, of size blocks, over all ranks; `out` gets this rank's block, and may be that block of `array`."""
        return self.run(_REDUCE_SCATTER, array, out, op, **options)

    def reduce_scatter_start(self, array: Array, out: Array, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """reduce_scatter, started."""
        return self.start(_REDUCE_SCATTER, array, out, op, **options)

    def reduce_scatter_request(self, array: Array, out: Array, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """reduce_scatter, to be started by the request's start()."""
        return self.prepare(_REDUCE_SCATTER, array, out, op, **options)

    # ---- allgather

    def allgather(self, array: Array | None, out: Array, **options: Unpack[Options]) -> Any:
        """Every rank's `array`, one after another by rank, in `out` on all of them. `array` None: it lies in its place of `out`."""
        return self.run(_ALLGATHER, array, out, **options)

    def allgather_start(self, array: Array | None, out: Array, **options: Unpack[RequestOptions]) -> Request:
        """allgather, started."""
        return self.start(_ALLGATHER, array, out, **options)

    def allgather_request(self, array: Array | None, out: Array, **options: Unpack[RequestOptions]) -> Request:
        """allgather, to be started by the request's start()."""
        return self.prepare(_ALLGATHER, array, out, **options)

    # ---- broadcast

    def broadcast(self, array: Array, out: Array = None, root: int = 0, **options: Unpack[Options]) -> Any:
        """The root's `array` on every rank: in `out` or, without it, in `array`. Ranks other than root need not give an input."""
        return self.run(_BROADCAST, array, out, None, root, **options)

    def broadcast_start(self, array: Array, out: Array = None, root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """broadcast, started."""
        return self.start(_BROADCAST, array, out, None, root, **options)

    def broadcast_request(self, array: Array, out: Array = None, root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """broadcast, to be started by the request's start()."""
        return self.prepare(_BROADCAST, array, out, None, root, **options)

    # ---- reduce

    def reduce(self, array: Array, out: Array = None, op: Op = "sum", root: int = 0, **options: Unpack[Options]) -> Any:
        """Reduce over all ranks; root gets the result, in `out` or, without it, in `array`. Others get None."""
        return self.run(_REDUCE, array, out, op, root, **options)

    def reduce_start(self, array: Array, out: Array = None, op: Op = "sum", root: int = 0,
                     **options: Unpack[RequestOptions]) -> Request:
        """reduce, started."""
        return self.start(_REDUCE, array, out, op, root, **options)

    def reduce_request(self, array: Array, out: Array = None, op: Op = "sum", root: int = 0,
                       **options: Unpack[RequestOptions]) -> Request:
        """reduce, to be started by the request's start()."""
        return self.prepare(_REDUCE, array, out, op, root, **options)

    # ---- gather

    def gather(self, array: Array | None, out: Array = None, root: int = 0, **options: Unpack[Options]) -> Any:
        """Every rank's `array`, one after another by rank, in root's `out`. Root's `array` None: it lies in its place there."""
        return self.run(_GATHER, array, out, None, root, **options)

    def gather_start(self, array: Array | None, out: Array = None, root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """gather, started."""
        return self.start(_GATHER, array, out, None, root, **options)

    def gather_request(self, array: Array | None, out: Array = None, root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """gather, to be started by the request's start()."""
        return self.prepare(_GATHER, array, out, None, root, **options)

    # ---- scatter

    def scatter(self, array: Array | None, out: Array, root: int = 0, **options: Unpack[Options]) -> Any:
        """Block r of root's `array` goes to rank r's `out`, which on root may be that block. Others' `array` is ignored."""
        return self.run(_SCATTER, array, out, None, root, **options)

    def scatter_start(self, array: Array | None, out: Array, root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """scatter, started."""
        return self.start(_SCATTER, array, out, None, root, **options)

    def scatter_request(self, array: Array | None, out: Array, root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """scatter, to be started by the request's start()."""
        return self.prepare(_SCATTER, array, out, None, root, **options)

    # ---- alltoall

    def alltoall(self, array: Array, out: Array = None, **options: Unpack[Options]) -> Any:
        """Block r of `array` goes to rank r; block r of `out` or, without it, of `array`, comes from there."""
        return self.run(_ALLTOALL, array, out, **options)

    def alltoall_start(self, array: Array, out: Array = None, **options: Unpack[RequestOptions]) -> Request:
        """alltoall, started."""
        return self.start(_ALLTOALL, array, out, **options)

    def alltoall_request(self, array: Array, out: Array = None, **options: Unpack[RequestOptions]) -> Request:
        """alltoall, to be started by the request's start()."""
        return self.prepare(_ALLTOALL, array, out, **options)

    # ---- scan

    def scan(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Reduce over ranks 0 to this one."""
        return self.run(_SCAN, array, out, op, **options)

    def scan_start(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """scan, started."""
        return self.start(_SCAN, array, out, op, **options)

    def scan_request(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """scan, to be started by the request's start()."""
        return self.prepare(_SCAN, array, out, op, **options)

    # ---- exscan

    def exscan(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Reduce over the ranks before this one; rank 0's output is left alone."""
        return self.run(_EXSCAN, array, out, op, **options)

    def exscan_start(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """exscan, started."""
        return self.start(_EXSCAN, array, out, op, **options)

    def exscan_request(self, array: Array, out: Array = None, op: Op = "sum", **options: Unpack[RequestOptions]) -> Request:
        """exscan, to be started by the request's start()."""
        return self.prepare(_EXSCAN, array, out, op, **options)

    # ---- a count for each rank: arrays of many blocks may be longer than what the counts name

    def allgatherv(self, array: Array | None, out: Array, counts: Counts, offsets: Counts | None = None,
                   **options: Unpack[Options]) -> Any:
        """Rank r's `array`, of counts[r] elements, at offsets[r] of `out` on all ranks; without offsets one after another.

        `array` None: it lies in its place of `out`. All ranks give the same counts; offsets are each rank's own affair.
        """
        return self.run(_ALLGATHERV, array, out, out_counts=counts, out_offsets=offsets, **options)

    def allgatherv_start(self, array: Array | None, out: Array, counts: Counts, offsets: Counts | None = None,
                         **options: Unpack[RequestOptions]) -> Request:
        """allgatherv, started."""
        return self.start(_ALLGATHERV, array, out, out_counts=counts, out_offsets=offsets, **options)

    def allgatherv_request(self, array: Array | None, out: Array, counts: Counts, offsets: Counts | None = None,
                           **options: Unpack[RequestOptions]) -> Request:
        """allgatherv, to be started by the request's start()."""
        return self.prepare(_ALLGATHERV, array, out, out_counts=counts, out_offsets=offsets, **options)

    def reduce_scatterv(self, array: Array, out: Array, counts: Counts, op: Op = "sum", **options: Unpack[Options]) -> Any:
        """Reduce `array` over all ranks; `out` gets this rank's block of counts[rank] elements, and may be that block of `array`.

        All ranks give the same counts; the blocks lie one after another.
        """
        return self.run(_REDUCE_SCATTERV, array, out, op, in_counts=counts, **options)

    def reduce_scatterv_start(self, array: Array, out: Array, counts: Counts, op: Op = "sum",
                              **options: Unpack[RequestOptions]) -> Request:
        """reduce_scatterv, started."""
        return self.start(_REDUCE_SCATTERV, array, out, op, in_counts=counts, **options)

    def reduce_scatterv_request(self, array: Array, out: Array, counts: Counts, op: Op = "sum",
                                **options: Unpack[RequestOptions]) -> Request:
        """reduce_scatterv, to be started by the request's start()."""
        return self.prepare(_REDUCE_SCATTERV, array, out, op, in_counts=counts, **options)

    def gatherv(self, array: Array | None, out: Array = None, counts: Counts | None = None, offsets: Counts | None = None,
                root: int = 0, **options: Unpack[Options]) -> Any:
        """Rank r's `array`, of counts[r] elements, at offsets[r] of root's `out`. Only root gives out, counts and offsets.

        Without offsets blocks lie one after another. Root's `array` None: it lies in its place of `out`.
        """
        return self.run(_GATHERV, array, out, None, root, out_counts=counts, out_offsets=offsets, **options)

    def gatherv_start(self, array: Array | None, out: Array = None, counts: Counts | None = None, offsets: Counts | None = None,
                      root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """gatherv, started."""
        return self.start(_GATHERV, array, out, None, root, out_counts=counts, out_offsets=offsets, **options)

    def gatherv_request(self, array: Array | None, out: Array = None, counts: Counts | None = None, offsets: Counts | None = None,
                        root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """gatherv, to be started by the request's start()."""
        return self.prepare(_GATHERV, array, out, None, root, out_counts=counts, out_offsets=offsets, **options)

    def scatterv(self, array: Array | None, out: Array, counts: Counts | None = None, offsets: Counts | None = None, root: int = 0,
                 **options: Unpack[Options]) -> Any:
        """counts[r] elements from offsets[r] of root's `array` on go to rank r's `out`, which on root may be that block.

        Only root gives array, counts and offsets; without offsets blocks lie one after another.
        """
        return self.run(_SCATTERV, array, out, None, root, in_counts=counts, in_offsets=offsets, **options)

    def scatterv_start(self, array: Array | None, out: Array, counts: Counts | None = None, offsets: Counts | None = None,
                       root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """scatterv, started."""
        return self.start(_SCATTERV, array, out, None, root, in_counts=counts, in_offsets=offsets, **options)

    def scatterv_request(self, array: Array | None, out: Array, counts: Counts | None = None, offsets: Counts | None = None,
                         root: int = 0, **options: Unpack[RequestOptions]) -> Request:
        """scatterv, to be started by the request's start()."""
        return self.prepare(_SCATTERV, array, out, None, root, in_counts=counts, in_offsets=offsets, **options)

    def alltoallv(self, array: Array | None, out: Array, in_counts: Counts | None, out_counts: Counts,
                  in_offsets: Counts | None = None, out_offsets: Counts | None = None, **options: Unpack[Options]) -> Any:
        """in_counts[r] elements of `array` go to rank r, out_counts[r] of `out` come from there. Offsets as in allgatherv.

        `array` None: it lies in `out`, with its counts and offsets; in_counts is not looked at.
        """
        return self.run(_ALLTOALLV, array, out, in_counts=in_counts, in_offsets=in_offsets, out_counts=out_counts,
                        out_offsets=out_offsets, **options)

    def alltoallv_start(self, array: Array | None, out: Array, in_counts: Counts | None, out_counts: Counts,
                        in_offsets: Counts | None = None, out_offsets: Counts | None = None,
                        **options: Unpack[RequestOptions]) -> Request:
        """alltoallv, started."""
        return self.start(_ALLTOALLV, array, out, in_counts=in_counts, in_offsets=in_offsets, out_counts=out_counts,
                          out_offsets=out_offsets, **options)

    def alltoallv_request(self, array: Array | None, out: Array, in_counts: Counts | None, out_counts: Counts,
                          in_offsets: Counts | None = None, out_offsets: Counts | None = None,
                          **options: Unpack[RequestOptions]) -> Request:
        """alltoallv, to be started by the request's start()."""
        return self.prepare(_ALLTOALLV, array, out, in_counts=in_counts, in_offsets=in_offsets, out_counts=out_counts,
                            out_offsets=out_offsets, **options)

    # ---- send

    def send(self, array: Array, dest: int, tag: int = 0, **options: Unpack[MessageOptions]) -> None:
        """Send to a rank. Returns when `array` may be written again, which says nothing about the receiver."""
        self.run(_SEND, array, None, None, dest, tag=tag, **options)

    def send_start(self, array: Array, dest: int, tag: int = 0, **options: Unpack[MessageRequestOptions]) -> Request:
        """send, started."""
        return self.start(_SEND, array, None, None, dest, tag=tag, **options)

    def send_request(self, array: Array, dest: int, tag: int = 0, **options: Unpack[MessageRequestOptions]) -> Request:
        """send, to be started by the request's start()."""
        return self.prepare(_SEND, array, None, None, dest, tag=tag, **options)

    # ---- recv

    def recv(self, array: Array, source: int = ANY_SOURCE, tag: int = ANY_TAG, **options: Unpack[MessageOptions]) -> Received:
        """Receive a message of at most the length of `array`; tells its source, tag and number of elements."""
        received: Received = self.run(_RECV, None, array, None, source, tag=tag, **options)
        return received

    def recv_start(self, array: Array, source: int = ANY_SOURCE, tag: int = ANY_TAG,
                   **options: Unpack[MessageRequestOptions]) -> Request:
        """recv, started."""
        return self.start(_RECV, None, array, None, source, tag=tag, **options)

    def recv_request(self, array: Array, source: int = ANY_SOURCE, tag: int = ANY_TAG,
                     **options: Unpack[MessageRequestOptions]) -> Request:
        """recv, to be started by the request's start()."""
        return self.prepare(_RECV, None, array, None, source, tag=tag, **options)

    def sendrecv(self, array: Array, dest: int, out: Array, source: int = ANY_SOURCE, send_tag: int = 0, recv_tag: int = ANY_TAG,
                 **options: Unpack[MessageOptions]) -> Received:
        """Send `array` and receive into `out`, in any order, so that ranks that exchange do not wait for each other."""
        if _abcomm._in_group():
            self.send(array, dest, send_tag, **options)
            return self.recv(out, source, recv_tag, **options)
        send = self.send_request(array, dest, send_tag, **options)  # both are checked before one is under way
        recv = self.recv_request(out, source, recv_tag, **options).start()
        send.start().wait()
        received: Received = recv.wait()
        return received

    # ---- barrier

    def barrier(self, **options: Unpack[Options]) -> None:
        """Return when all ranks have called it."""
        self.run(_BARRIER, **options)

    def barrier_start(self, **options: Unpack[RequestOptions]) -> Request:
        """barrier, started."""
        return self.start(_BARRIER, **options)

    def barrier_request(self, **options: Unpack[RequestOptions]) -> Request:
        """barrier, to be started by the request's start()."""
        return self.prepare(_BARRIER, **options)


# Before the interpreter takes threads and modules apart: progress threads and callbacks need it whole.
atexit.register(_abcomm._end_all)
