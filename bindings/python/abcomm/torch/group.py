"""group.py - the ProcessGroup: every operation in every form that programs use, as raw calls on one communicator.

torch calls these methods, from Python directly and from C++ through its trampolines, with lists of tensors and an options object; its
own groups have short forms too, which take a tensor and what the options would hold. all_reduce, by which latency is measured, has a
road of its own for what is common.
"""
from __future__ import annotations

from datetime import timedelta
from time import monotonic, perf_counter, sleep
from typing import Any, Sequence, TypeAlias

import torch
import torch._C._distributed_c10d as c10d  # dist has not all of the options' classes
import torch.autograd.profiler as profiler
import torch.distributed as dist

import abcomm
from abcomm.torch import errors, sparse, types
from abcomm.torch.base import BACKEND, NO_TIME, Base
from abcomm.torch.report import Call, Row
from abcomm.torch.work import DONE

Tensors: TypeAlias = Sequence[torch.Tensor]

_ALLREDUCE = abcomm.collectives["allreduce"]
_REDUCE_SCATTER = abcomm.collectives["reduce_scatter"]
_ALLGATHER = abcomm.collectives["allgather"]
_BROADCAST = abcomm.collectives["broadcast"]
_BARRIER = abcomm.collectives["barrier"]
_REDUCE = abcomm.collectives["reduce"]
_GATHER = abcomm.collectives["gather"]
_SCATTER = abcomm.collectives["scatter"]
_ALLTOALL = abcomm.collectives["alltoall"]
_ALLGATHERV = abcomm.collectives["allgatherv"]
_REDUCE_SCATTERV = abcomm.collectives["reduce_scatterv"]
_GATHERV = abcomm.collectives["gatherv"]
_SCATTERV = abcomm.collectives["scatterv"]
_ALLTOALLV = abcomm.collectives["alltoallv"]
_SEND = abcomm.collectives["send"]
_RECV = abcomm.collectives["recv"]
_USUAL = c10d.AllreduceOptions
_PLAIN, _OPS, _STRIDED = types.PLAIN.get, types.OPS.get, torch.strided
_MONITOR_TAG = 2**31 - 1
_LISTS = (None, None, None, None)  # of a call, between the time and the lists: algorithm, tag, preserve, callback
# Lists of tensors up to this size are copied to one piece of memory, because equal blocks there are quicker than blocks anywhere.
_JOINED = 32768


def _one(tensors: Tensors, operation: str) -> torch.Tensor:
    """The tensor of an operation that takes a list of one."""
    if len(tensors) != 1:
        raise ValueError(f"abcomm {operation} takes one tensor, there are {len(tensors)}")
    tensor = tensors[0]
    types.check(tensor)
    return tensor


def _listed(tensors: Any) -> Any:
    """The list of a form that may be given its only tensor."""
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _options(kind: Any, given: tuple[Any, ...], named: dict[str, Any], order: Sequence[str] = ("timeout",)) -> Any:
    """The options object of a call: given, or made from the arguments of a short form."""
    if len(given) == 1 and type(given[0]) is kind:
        return given[0]
    values = dict(zip(("opts", *order) if given and isinstance(given[0], kind) else order, given)) | named
    opts = values.pop("opts", None) or kind()
    for name, value in values.items():
        if name not in order:
            raise TypeError(f"abcomm: there is no argument {name!r}; there are opts, or {', '.join(order)}")
        if value is not None:
            setattr(opts, {"op": "reduceOp", "root": "rootRank"}.get(name, name), value)
    return opts


class Group(Base):
    """One rank's end of a process group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(store, rank, size, timeout, name)
        self._reduced: Row = self._usage.row("all_reduce")

    # ---- reductions

    def allreduce(self, tensors: Any, opts: Any = None, timeout: timedelta | None = None, op: Any = None) -> dist._Work:
        """Reduce a tensor over all ranks, in place."""
        # The usual call comes first and is written for speed: synchronous, one contiguous tensor of the CPU, the group's timeout.
        if (type(opts) is _USUAL and not opts.asyncOp and type(tensors) is list and len(tensors) == 1
                and (plain := _PLAIN(tensors[0].dtype)) and (number := _OPS(hash(opts.reduceOp))) is not None
                and opts.timeout < NO_TIME and not profiler._is_profiler_enabled):
            tensor, row = tensors[0], self._reduced
            if (tensor.is_cpu and tensor.layout is _STRIDED and tensor.is_contiguous() and not tensor.is_neg()
                    and self._batch is None):
                # Beyond the first 16 calls, among which are slow ones, one in 16 is timed, for all of them.
                begin = 0.0 if row.calls & 15 and row.calls > 15 else perf_counter()
                count = tensor.numel()
                buffer = (tensor.data_ptr(), count, plain[0])
                try:
                    self._run(_ALLREDUCE, buffer, None, number, None, self._seconds)
                except abcomm.Error as error:
                    raise errors.translated(error, "all_reduce", self._name) from error
                row.calls += 1
                row.bytes += (size := count * plain[1])
                if begin:
                    row.seconds += (perf_counter() - begin) * (16 if row.calls > 16 else 1)
                if size > row.largest:
                    row.largest, row.call = size, (_ALLREDUCE, buffer, None, number, None)
                return DONE
        named = {} if op is timeout is None else {"op": op, "timeout": timeout}
        return self._allreduce(_listed(tensors), _options(_USUAL, () if opts is None else (opts,), named, ("op", "timeout")))

    def _allreduce(self, tensors: Tensors, opts: Any) -> dist._Work:
        if len(tensors) == 1 and getattr(tensors[0], "is_sparse", False):
            return self._allreduce_sparse(tensors[0], opts)
        tensor = _one(tensors, "all_reduce")
        outputs = types.Outputs()
        return self._execute("all_reduce", [self._reduce_in_place(tensor, opts.reduceOp, outputs)], opts, list(tensors),
                             outputs.copy_back if outputs else None)

    def _allreduce_sparse(self, tensor: torch.Tensor, opts: Any) -> dist._Work:
        try:
            calls, add = sparse.calls(self._run, self._size, tensor, opts.reduceOp)
        except abcomm.Error as error:
            raise errors.translated(error, "sparse_all_reduce", self._name) from error
        return self._execute("sparse_all_reduce", calls, opts, [tensor], add, shown=[tensor])

    def _reduce_in_place(self, tensor: torch.Tensor, op: Any, outputs: types.Outputs) -> Call:
        buffer = outputs.one(tensor, reads=True)
        return (_ALLREDUCE, (buffer.data_ptr(), buffer.numel(), types.reduced_type(buffer), buffer), None,
                types.operation(op, buffer), None)

    def allreduce_coalesced(self, tensors: Tensors, *given: Any, **named: Any) -> dist._Work:
        """all_reduce of several tensors as one operation."""
        opts = _options(c10d.AllreduceCoalescedOptions, given, named, ("op", "timeout"))
        outputs = types.Outputs()
        calls = [self._reduce_in_place(tensor, opts.reduceOp, outputs) for tensor in tensors]
        return self._execute("all_reduce_coalesced", calls, opts, list(tensors), outputs.copy_back if outputs else None)

    def reduce(self, tensors: Any, *given: Any, **named: Any) -> dist._Work:
        """Reduce a tensor over all ranks; the root's gets the result."""
        opts = _options(c10d.ReduceOptions, given, named, ("root", "op", "timeout"))
        tensors = _listed(tensors)
        tensor = _one(tensors, "reduce")
        outputs = types.Outputs()
        buffer = outputs.one(tensor, reads=True) if self._rank == opts.rootRank else types.inputs(tensor)
        call = (_REDUCE, (buffer.data_ptr(), buffer.numel(), types.reduced_type(buffer), buffer), None,
                types.operation(opts.reduceOp, buffer), opts.rootRank)
        return self._execute("reduce", [call], opts, list(tensors), outputs.copy_back if outputs else None)

    def _scatter_sum(self, output: torch.Tensor, source: torch.Tensor, op: Any, outputs: types.Outputs) -> Call:
        """reduce_scatter of one contiguous tensor."""
        target = outputs.one(output)
        if source.dtype != target.dtype:
            raise ValueError(f"abcomm reduce_scatter: the input is {source.dtype}, the output {target.dtype}; they must be the same")
        code = types.reduced_type(target)
        return (_REDUCE_SCATTER, (source.data_ptr(), source.numel(), code, source), (target.data_ptr(), target.numel(), code, target),
                types.operation(op, target), None)

    def reduce_scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist._Work:
        """Reduce a list of tensors, one for each rank; the output gets this rank's."""
        opts = _options(c10d.ReduceScatterOptions, given, named, ("op", "timeout"))
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        output = _one(outputs, "reduce_scatter")
        sources = inputs[0]
        types.check_list("abcomm reduce_scatter", sources, output, self._size)
        stand_ins = types.Outputs()
        if types.alike(sources) and output.nbytes <= _JOINED:
            call = self._scatter_sum(output, types.flat_inputs(sources), opts.reduceOp, stand_ins)
        else:
            target, blocks = stand_ins.one(output), types.spread_inputs(sources)
            call = (_REDUCE_SCATTERV, blocks.buffer, (target.data_ptr(), target.numel(), types.reduced_type(target), target),
                    types.operation(opts.reduceOp, target), None, *_LISTS, blocks.counts, blocks.offsets)
        return self._execute("reduce_scatter", [call], opts, list(outputs), stand_ins.copy_back if stand_ins else None, shown=sources)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, *given: Any, **named: Any) -> dist._Work:
        """Reduce a tensor of one block for each rank; the output gets this rank's block."""
        opts = _options(c10d.ReduceScatterOptions, given, named, ("op", "timeout"))
        stand_ins = types.Outputs()
        call = self._scatter_sum(output, types.inputs(source), opts.reduceOp, stand_ins)
        return self._execute("reduce_scatter_single", [call], opts, [output], stand_ins.copy_back if stand_ins else None)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, *given: Any, **named: Any) -> dist._Work:
        """reduce_scatter of several tensors as one operation."""
        opts = _options(c10d.ReduceScatterOptions, given, named, ("op", "timeout"))
        stand_ins = types.Outputs()
        calls = [self._scatter_sum(output, types.inputs(source), opts.reduceOp, stand_ins)
                 for output, source in zip(outputs, inputs, strict=True)]
        return self._execute("reduce_scatter_single_coalesced", calls, opts, list(outputs),
                             stand_ins.copy_back if stand_ins else None)

    # ---- moving

    def broadcast(self, tensors: Any, *given: Any, **named: Any) -> dist._Work:
        """The root's tensor on every rank."""
        opts = _options(c10d.BroadcastOptions, given, named, ("root", "timeout"))
        tensors = _listed(tensors)
        tensor = _one(tensors, "broadcast")
        stand_ins = types.Outputs()
        root = opts.rootRank
        buffer = types.inputs(tensor) if self._rank == root else stand_ins.one(tensor)
        return self._execute("broadcast", [(_BROADCAST, types.moved(buffer), None, None, root)], opts, list(tensors),
                             stand_ins.copy_back if stand_ins else None)

    def _gather_into(self, output: torch.Tensor, source: torch.Tensor, stand_ins: types.Outputs) -> Call:
        target, source = stand_ins.one(output), types.inputs(source)
        if source.dtype != target.dtype:
            raise ValueError(f"abcomm all_gather: the input is {source.dtype}, the output {target.dtype}; they must be the same")
        return _ALLGATHER, types.moved(source), types.moved(target), None, None

    def allgather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist._Work:
        """Every rank's tensor in a list on all of them."""
        opts = _options(c10d.AllgatherOptions, given, named)
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        source = _one(inputs, "all_gather")
        stand_ins = types.Outputs()
        call = self._gather_list("all_gather", outputs[0], source, stand_ins)
        return self._execute("all_gather", [call], opts, [list(outputs[0])], stand_ins.copy_back if stand_ins else None)

    def _gather_list(self, name: str, targets: Tensors, source: torch.Tensor, stand_ins: types.Outputs) -> Call:
        types.check_list(f"abcomm {name}", targets, source, self._size)
        if types.alike(targets) and source.nbytes <= _JOINED:
            return self._gather_into(stand_ins.flat(targets), source, stand_ins)
        blocks = stand_ins.spread(targets)
        return (_ALLGATHERV, types.moved(types.inputs(source)), blocks.buffer, None, None, *_LISTS, None, None, blocks.counts,
                blocks.offsets)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, *given: Any, **named: Any) -> dist._Work:
        """all_gather of several tensors as one operation; outputs[rank][i] gets inputs[i] of that rank."""
        opts = _options(c10d.AllgatherOptions, given, named)
        stand_ins = types.Outputs()
        calls = []
        for i, source in enumerate(inputs):
            calls.append(self._gather_list("all_gather_coalesced", [of_rank[i] for of_rank in outputs], source, stand_ins))
        return self._execute("all_gather_coalesced", calls, opts, [list(of_rank) for of_rank in outputs],
                             stand_ins.copy_back if stand_ins else None)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, *given: Any, **named: Any) -> dist._Work:
        """Every rank's tensor, one behind another, on all of them."""
        opts = _options(c10d.AllgatherOptions, given, named)
        stand_ins = types.Outputs()
        call = self._gather_into(output, source, stand_ins)
        return self._execute("all_gather_single", [call], opts, [output], stand_ins.copy_back if stand_ins else None)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, *given: Any, **named: Any) -> dist._Work:
        """all_gather into tensors, several as one operation."""
        opts = _options(c10d.AllgatherOptions, given, named)
        stand_ins = types.Outputs()
        calls = [self._gather_into(output, source, stand_ins) for output, source in zip(outputs, inputs, strict=True)]
        return self._execute("all_gather_single_coalesced", calls, opts, list(outputs),
                             stand_ins.copy_back if stand_ins else None)

    def gather(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist._Work:
        """Every rank's tensor in a list on the root."""
        opts = _options(c10d.GatherOptions, given, named, ("root", "timeout"))
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        source = types.inputs(_one(inputs, "gather"))
        stand_ins = types.Outputs()
        call: Call
        if self._rank == opts.rootRank:
            types.check_list("abcomm gather", outputs[0], source, self._size)
            types.check_sizes("abcomm gather", outputs[0], source)
        if source.nbytes <= _JOINED:  # every rank knows that, for all have as much
            target = types.moved(stand_ins.flat(outputs[0])) if self._rank == opts.rootRank else None
            call = (_GATHER, types.moved(source), target, None, opts.rootRank)
        elif self._rank == opts.rootRank:
            blocks = stand_ins.spread(outputs[0])
            call = (_GATHERV, types.moved(source), blocks.buffer, None, opts.rootRank, *_LISTS, None, None, blocks.counts,
                    blocks.offsets)
        else:
            call = (_GATHERV, types.moved(source), None, None, opts.rootRank)
        return self._execute("gather", [call], opts, [list(tensors) for tensors in outputs],
                             stand_ins.copy_back if stand_ins else None)

    def scatter(self, outputs: Any, inputs: Any, *given: Any, **named: Any) -> dist._Work:
        """The root's list of tensors, one to each rank."""
        opts = _options(c10d.ScatterOptions, given, named, ("root", "timeout"))
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        output = _one(outputs, "scatter")
        stand_ins = types.Outputs()
        target = types.moved(stand_ins.one(output))
        call: Call
        if self._rank == opts.rootRank:
            types.check_list("abcomm scatter", inputs[0], output, self._size)
            types.check_sizes("abcomm scatter", inputs[0], output)
        if output.nbytes <= _JOINED:
            source = types.moved(types.flat_inputs(inputs[0])) if self._rank == opts.rootRank else None
            call = (_SCATTER, source, target, None, opts.rootRank)
        elif self._rank == opts.rootRank:
            blocks = types.spread_inputs(inputs[0])
            call = (_SCATTERV, blocks.buffer, target, None, opts.rootRank, *_LISTS, blocks.counts, blocks.offsets)
        else:
            call = (_SCATTERV, None, target, None, opts.rootRank)
        return self._execute("scatter", [call], opts, list(outputs), stand_ins.copy_back if stand_ins else None,
                             shown=inputs[0] if inputs else [])

    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int], *given: Any, **named: Any) -> dist._Work:
        """Block r of the input goes to rank r; block r of the output comes from there."""
        opts = _options(c10d.AllToAllOptions, given, named)
        stand_ins = types.Outputs()
        target, source = stand_ins.one(output), types.inputs(source)
        call: Call = (_ALLTOALL, types.moved(source), types.moved(target), None, None)
        if output_splits or input_splits:
            call = (_ALLTOALLV, *call[1:], *_LISTS, self._counts("input", source, input_splits), None,
                    self._counts("output", target, output_splits), None)
        return self._execute("all_to_all_single", [call], opts, [output], stand_ins.copy_back if stand_ins else None)

    def _counts(self, what: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """From rows of a tensor for each rank to what is moved."""
        size, rows = self._size, tensor.shape[0] if tensor.dim() else 1
        if not splits and rows % size == 0:
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise ValueError(f"abcomm all_to_all_single: the {what} has {rows} rows, split as {list(splits)}; give {size} sizes whose "
                             "sum that is")
        unit = types.moved(tensor)[1] // rows if rows else 0
        return [rows_of_rank * unit for rows_of_rank in splits]

    def alltoall(self, outputs: Tensors, inputs: Tensors, *given: Any, **named: Any) -> dist._Work:
        """A list of tensors, one to each rank; a list of what comes from each."""
        opts = _options(c10d.AllToAllOptions, given, named)
        types.check_list("abcomm all_to_all", inputs, None, self._size)
        types.check_list("abcomm all_to_all", outputs, inputs[0], self._size)
        stand_ins = types.Outputs()
        source, target = types.spread_inputs(inputs), stand_ins.spread(outputs)
        call = (_ALLTOALLV, source.buffer, target.buffer, None, None, *_LISTS, source.counts, source.offsets, target.counts,
                target.offsets)
        return self._execute("all_to_all", [call], opts, list(outputs), stand_ins.copy_back if stand_ins else None)

    def barrier(self, *given: Any, **named: Any) -> dist._Work:
        """Return when all ranks have called."""
        return self._execute("barrier", [(_BARRIER, None, None, None, None)], _options(c10d.BarrierOptions, given, named), [])

    def monitored_barrier(self, timeout: timedelta | None = None, wait_all_ranks: bool = False) -> None:
        """A barrier that tells which ranks have not come: the first of them, or all. It ends the group then."""
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        token = torch.zeros(1, dtype=torch.uint8)
        end = monotonic() + seconds
        if self._rank != 0:
            end += seconds  # rank 0 may come that late and wait as long: it knows who is missing
            self.send([token], 0, _MONITOR_TAG)
            answer = self.recv([token.clone()], 0, _MONITOR_TAG)
            while not answer.is_completed() and monotonic() < end:
                sleep(0.0001)
            if not answer.is_completed():
                self._miss(f"Rank {self._rank} timed out in monitoredBarrier after {2 * seconds:g} seconds: Rank 0 has not answered")
            answer.wait()
            return
        waiting = {rank: self.recv([token.clone()], rank, _MONITOR_TAG) for rank in range(1, self._size)}
        while waiting and (monotonic() < end):
            waiting = {rank: work for rank, work in waiting.items() if not work.is_completed()}
            sleep(0.001 if waiting else 0)
        missing = sorted(waiting)[:None if wait_all_ranks else 1]
        if missing:
            names = ", ".join(f"Rank {rank}" for rank in missing)
            self._miss(f"Rank 0 timed out in monitoredBarrier after {seconds:g} seconds: {names} failed to pass monitoredBarrier")
        for work in [self.send([token], rank, _MONITOR_TAG) for rank in range(1, self._size)]:
            work.wait()

    def _miss(self, text: str) -> None:
        """End the group, because a rank has not come to a monitored_barrier."""
        self._comm.abort(text)
        raise dist.DistBackendError(f"abcomm monitored_barrier on group {self._name}: {text}")

    # ---- messages

    def send(self, tensors: Tensors, destination: int, tag: int) -> dist._Work:
        """Send a tensor to a rank of the group."""
        tensor = _one(tensors, "send")
        call: Call = (_SEND, types.moved(types.inputs(tensor)), None, None, destination, None, tag)
        return self._execute("send", [call], None, [tensor], asynchronous=True)

    def recv(self, tensors: Tensors, source: int, tag: int) -> dist._Work:
        """Receive a tensor from a rank of the group."""
        tensor = _one(tensors, "recv")
        stand_ins = types.Outputs()
        target = types.moved(stand_ins.one(tensor))
        return self._execute("recv" if source >= 0 else "recvAnySource", [(_RECV, None, target, None, source, None, tag)], None,
                             [tensor], stand_ins.copy_back if stand_ins else None, asynchronous=True)

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist._Work:
        """Receive a tensor from whoever sends one; the Work tells who."""
        return self.recv(tensors, abcomm.ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    # ---- newer names of the same operations

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base


def _create(options: Any, backend_options: object) -> Group:
    """Called by torch for init_process_group and new_group."""
    timeout = options.timeout
    if not isinstance(timeout, timedelta):
        timeout = timedelta(seconds=float(timeout))
    return Group(options.store, options.group_rank, options.group_size, timeout, options.group_id)


def register() -> None:
    """Make the name known to torch.distributed."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, _create, extended_api=True, devices=["cpu"])
