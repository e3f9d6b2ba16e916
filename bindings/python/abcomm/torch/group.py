"""group.py - the ProcessGroup: every operation in every form that programs use, on one communicator.

torch calls the methods of this class, from Python directly and from C++ through its trampolines, with lists of tensors and an options
object. Each method says which raw calls of the extension the operation consists of; Group._execute runs them: at once in the calling
thread where the caller is synchronous (opts.asyncOp is false), else started, with a Work for the end. all_reduce, the one that latency
is measured by, has a road of its own.
"""
from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any, Callable, Sequence, TypeAlias

import torch
import torch.autograd.profiler as profiler
import torch.distributed as dist

import abcomm
from abcomm.torch import errors, store as start_up, types
from abcomm.torch.work import DONE, Finish, Work

BACKEND = "abcomm"
Tensors: TypeAlias = Sequence[torch.Tensor]
Call: TypeAlias = tuple[Any, ...]

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
_NO_TIME = timedelta(0)
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


class Group(dist.ProcessGroup):
    """One rank's end of a process group."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta, name: str) -> None:
        super().__init__(rank, size)
        self._name, self._description = name, "undefined"
        self._sequence = 0
        self._comm = start_up.communicator(store, rank, size, timeout.total_seconds(), name)
        self._run: Callable[..., Any] = self._comm.run
        self._start: Callable[..., abcomm.Request] = self._comm.start

    # ---- running calls

    def _execute(self, name: str, calls: list[Call], opts: Any, result: Any, finish: Finish | None = None) -> dist._Work:
        """Run or start what an operation consists of."""
        self._sequence += 1
        limit = opts.timeout
        seconds = None if limit < _NO_TIME else limit.total_seconds()
        with profiler.record_function(f"{BACKEND}:{name}") if profiler._is_profiler_enabled else contextlib.nullcontext():
            try:
                if opts.asyncOp:
                    requests = [self._start(*call[:5], seconds, *call[5:]) for call in calls]
                    return Work(requests, name, self._name, result, finish)
                for call in calls:
                    self._run(*call[:5], seconds, *call[5:])
            except abcomm.Error as error:
                raise errors.translated(error, name, self._name) from error
        if finish is not None:
            finish(None)
        return DONE

    # ---- reductions

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist._Work:
        """Reduce a tensor over all ranks, in place."""
        if opts is None:
            opts = dist.AllreduceOptions()
        tensor = _one(tensors, "all_reduce")
        outputs = types.Outputs()
        return self._execute("all_reduce", [self._reduce_in_place(tensor, opts.reduceOp, outputs)], opts, list(tensors),
                             outputs.copy_back if outputs else None)

    def _reduce_in_place(self, tensor: torch.Tensor, op: Any, outputs: types.Outputs) -> Call:
        buffer = outputs.one(tensor, reads=True)
        return (_ALLREDUCE, (buffer.data_ptr(), buffer.numel(), types.reduced_type(buffer), buffer), None,
                types.operation(op, buffer), None)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist._Work:
        """all_reduce of several tensors as one operation."""
        opts = opts or dist.AllreduceCoalescedOptions()
        outputs = types.Outputs()
        calls = [self._reduce_in_place(tensor, opts.reduceOp, outputs) for tensor in tensors]
        return self._execute("all_reduce_coalesced", calls, opts, list(tensors), outputs.copy_back if outputs else None)

    def reduce(self, tensors: Tensors, opts: Any) -> dist._Work:
        """Reduce a tensor over all ranks; the root's gets the result."""
        tensor = _one(tensors, "reduce")
        outputs = types.Outputs()
        buffer = outputs.one(tensor, reads=True) if self.rank() == opts.rootRank else types.inputs(tensor)
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

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> dist._Work:
        """Reduce a list of tensors, one for each rank; the output gets this rank's."""
        opts = opts or dist.ReduceScatterOptions()
        output = _one(outputs, "reduce_scatter")
        sources = inputs[0]
        types.check_list("abcomm reduce_scatter", sources, output, self.size())
        stand_ins = types.Outputs()
        if types.alike(sources) and output.nbytes <= _JOINED:
            call = self._scatter_sum(output, types.flat_inputs(sources), opts.reduceOp, stand_ins)
        else:
            target, blocks = stand_ins.one(output), types.spread_inputs(sources)
            call = (_REDUCE_SCATTERV, blocks.buffer, (target.data_ptr(), target.numel(), types.reduced_type(target), target),
                    types.operation(opts.reduceOp, target), None, *_LISTS, blocks.counts, blocks.offsets)
        return self._execute("reduce_scatter", [call], opts, list(outputs), stand_ins.copy_back if stand_ins else None)

    def _reduce_scatter_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> dist._Work:
        """Reduce a tensor of one block for each rank; the output gets this rank's block."""
        opts = opts or dist.ReduceScatterOptions()
        stand_ins = types.Outputs()
        call = self._scatter_sum(output, types.inputs(source), opts.reduceOp, stand_ins)
        return self._execute("_reduce_scatter_base", [call], opts, [output], stand_ins.copy_back if stand_ins else None)

    def reduce_scatter_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist._Work:
        """reduce_scatter of several tensors as one operation."""
        opts = opts or dist.ReduceScatterOptions()
        stand_ins = types.Outputs()
        calls = [self._scatter_sum(output, types.inputs(source), opts.reduceOp, stand_ins)
                 for output, source in zip(outputs, inputs, strict=True)]
        return self._execute("reduce_scatter_tensor_coalesced", calls, opts, list(outputs),
                             stand_ins.copy_back if stand_ins else None)

    # ---- moving

    def broadcast(self, tensors: Tensors, opts: Any = None) -> dist._Work:
        """The root's tensor on every rank."""
        opts = opts or dist.BroadcastOptions()
        tensor = _one(tensors, "broadcast")
        stand_ins = types.Outputs()
        root = opts.rootRank
        buffer = types.inputs(tensor) if self.rank() == root else stand_ins.one(tensor)
        return self._execute("broadcast", [(_BROADCAST, types.moved(buffer), None, None, root)], opts, list(tensors),
                             stand_ins.copy_back if stand_ins else None)

    def _gather_into(self, output: torch.Tensor, source: torch.Tensor, stand_ins: types.Outputs) -> Call:
        target, source = stand_ins.one(output), types.inputs(source)
        if source.dtype != target.dtype:
            raise ValueError(f"abcomm all_gather: the input is {source.dtype}, the output {target.dtype}; they must be the same")
        return _ALLGATHER, types.moved(source), types.moved(target), None, None

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist._Work:
        """Every rank's tensor in a list on all of them."""
        opts = opts or dist.AllgatherOptions()
        source = _one(inputs, "all_gather")
        stand_ins = types.Outputs()
        call = self._gather_list("all_gather", outputs[0], source, stand_ins)
        return self._execute("all_gather", [call], opts, [list(outputs[0])], stand_ins.copy_back if stand_ins else None)

    def _gather_list(self, name: str, targets: Tensors, source: torch.Tensor, stand_ins: types.Outputs) -> Call:
        types.check_list(f"abcomm {name}", targets, source, self.size())
        if types.alike(targets) and source.nbytes <= _JOINED:
            return self._gather_into(stand_ins.flat(targets), source, stand_ins)
        blocks = stand_ins.spread(targets)
        return (_ALLGATHERV, types.moved(types.inputs(source)), blocks.buffer, None, None, *_LISTS, None, None, blocks.counts,
                blocks.offsets)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> dist._Work:
        """all_gather of several tensors as one operation; outputs[rank][i] gets inputs[i] of that rank."""
        opts = opts or dist.AllgatherOptions()
        stand_ins = types.Outputs()
        calls = []
        for i, source in enumerate(inputs):
            calls.append(self._gather_list("all_gather_coalesced", [of_rank[i] for of_rank in outputs], source, stand_ins))
        return self._execute("all_gather_coalesced", calls, opts, [list(of_rank) for of_rank in outputs],
                             stand_ins.copy_back if stand_ins else None)

    def _allgather_base(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> dist._Work:
        """Every rank's tensor, one behind another, on all of them."""
        opts = opts or dist.AllgatherOptions()
        stand_ins = types.Outputs()
        call = self._gather_into(output, source, stand_ins)
        return self._execute("_all_gather_base", [call], opts, [output], stand_ins.copy_back if stand_ins else None)

    def allgather_into_tensor_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist._Work:
        """all_gather into tensors, several as one operation."""
        opts = opts or dist.AllgatherOptions()
        stand_ins = types.Outputs()
        calls = [self._gather_into(output, source, stand_ins) for output, source in zip(outputs, inputs, strict=True)]
        return self._execute("all_gather_into_tensor_coalesced", calls, opts, list(outputs),
                             stand_ins.copy_back if stand_ins else None)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> dist._Work:
        """Every rank's tensor in a list on the root."""
        source = types.inputs(_one(inputs, "gather"))
        stand_ins = types.Outputs()
        call: Call
        if self.rank() == opts.rootRank:
            types.check_list("abcomm gather", outputs[0], source, self.size())
        if source.nbytes <= _JOINED:  # every rank knows that, for all have as much
            target = types.moved(stand_ins.flat(outputs[0])) if self.rank() == opts.rootRank else None
            call = (_GATHER, types.moved(source), target, None, opts.rootRank)
        elif self.rank() == opts.rootRank:
            blocks = stand_ins.spread(outputs[0])
            call = (_GATHERV, types.moved(source), blocks.buffer, None, opts.rootRank, *_LISTS, None, None, blocks.counts,
                    blocks.offsets)
        else:
            call = (_GATHERV, types.moved(source), None, None, opts.rootRank)
        return self._execute("gather", [call], opts, [list(tensors) for tensors in outputs],
                             stand_ins.copy_back if stand_ins else None)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> dist._Work:
        """The root's list of tensors, one to each rank."""
        output = _one(outputs, "scatter")
        stand_ins = types.Outputs()
        target = types.moved(stand_ins.one(output))
        call: Call
        if self.rank() == opts.rootRank:
            types.check_list("abcomm scatter", inputs[0], output, self.size())
        if output.nbytes <= _JOINED:
            source = types.moved(types.flat_inputs(inputs[0])) if self.rank() == opts.rootRank else None
            call = (_SCATTER, source, target, None, opts.rootRank)
        elif self.rank() == opts.rootRank:
            blocks = types.spread_inputs(inputs[0])
            call = (_SCATTERV, blocks.buffer, target, None, opts.rootRank, *_LISTS, blocks.counts, blocks.offsets)
        else:
            call = (_SCATTERV, None, target, None, opts.rootRank)
        return self._execute("scatter", [call], opts, list(outputs), stand_ins.copy_back if stand_ins else None)

    def alltoall_base(self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int],
                      input_splits: Sequence[int], opts: Any = None) -> dist._Work:
        """Block r of the input goes to rank r; block r of the output comes from there."""
        opts = opts or dist.AllToAllOptions()
        stand_ins = types.Outputs()
        target, source = stand_ins.one(output), types.inputs(source)
        call: Call = (_ALLTOALL, types.moved(source), types.moved(target), None, None)
        if output_splits or input_splits:
            call = (_ALLTOALLV, *call[1:], *_LISTS, self._counts("input", source, input_splits), None,
                    self._counts("output", target, output_splits), None)
        return self._execute("all_to_all", [call], opts, [output], stand_ins.copy_back if stand_ins else None)

    def _counts(self, what: str, tensor: torch.Tensor, splits: Sequence[int]) -> list[int]:
        """From rows of a tensor for each rank to what is moved."""
        size, rows = self.size(), tensor.shape[0] if tensor.dim() else 1
        if not splits and rows % size == 0:
            splits = [rows // size] * size
        if len(splits) != size or sum(splits) != rows:
            raise ValueError(f"abcomm all_to_all_single: the {what} has {rows} rows, split as {list(splits)}; give {size} sizes whose "
                             "sum that is")
        unit = types.moved(tensor)[1] // rows if rows else 0
        return [rows_of_rank * unit for rows_of_rank in splits]

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist._Work:
        """A list of tensors, one to each rank; a list of what comes from each."""
        opts = opts or dist.AllToAllOptions()
        types.check_list("abcomm all_to_all", inputs, inputs[0], self.size())
        types.check_list("abcomm all_to_all", outputs, inputs[0], self.size())
        stand_ins = types.Outputs()
        source, target = types.spread_inputs(inputs), stand_ins.spread(outputs)
        call = (_ALLTOALLV, source.buffer, target.buffer, None, None, *_LISTS, source.counts, source.offsets, target.counts,
                target.offsets)
        return self._execute("all_to_all", [call], opts, list(outputs), stand_ins.copy_back if stand_ins else None)

    def barrier(self, opts: Any = None) -> dist._Work:
        """Return when all ranks have called."""
        return self._execute("barrier", [(_BARRIER, None, None, None, None)], opts or dist.BarrierOptions(), [])

    # ---- messages

    def _message(self, name: str, call: Call, tensor: torch.Tensor, finish: Finish | None, always: bool = False) -> Work:
        with profiler.record_function(f"{BACKEND}:{name}") if profiler._is_profiler_enabled else contextlib.nullcontext():
            try:
                return Work([self._start(*call)], name, self._name, [tensor], finish, always)
            except abcomm.Error as error:
                raise errors.translated(error, name, self._name) from error

    def send(self, tensors: Tensors, destination: int, tag: int) -> Work:
        """Send a tensor to a rank of the group."""
        tensor = _one(tensors, "send")
        call = (_SEND, types.moved(types.inputs(tensor)), None, None, destination, None, None, tag)
        return self._message("send", call, tensor, None)

    def recv(self, tensors: Tensors, source: int, tag: int) -> Work:
        """Receive a tensor from a rank of the group."""
        tensor = _one(tensors, "recv")
        stand_ins = types.Outputs()
        target = types.moved(stand_ins.one(tensor))

        def finish(received: abcomm.Received) -> None:
            if received.count != target[1]:
                raise dist.DistBackendError(
                    f"abcomm recv on group {self._name}: rank {received.source} has sent {received.count} elements, the tensor has "
                    f"{target[1]}; both must have the same size")
            stand_ins.copy_back()

        return self._message("recv", (_RECV, None, target, None, source, None, None, tag), tensor, finish, bool(stand_ins))

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        """Receive a tensor from whoever sends one; the Work tells who."""
        return self.recv(tensors, abcomm.ANY_SOURCE, tag)

    recvAnysource = recv_anysource

    # ---- newer names of the same operations

    all_gather_single = _allgather_base
    all_gather_single_coalesced = allgather_into_tensor_coalesced
    reduce_scatter_single = _reduce_scatter_base
    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced
    all_to_all_single = alltoall_base

    # ---- what the group is

    def getBackendName(self) -> str:
        """For torch's C++ side."""
        return BACKEND

    def name(self) -> str:
        """The name of the backend, as torch's own groups tell it."""
        return BACKEND

    def getGroupName(self) -> str:
        """The name that torch has given the group."""
        return self._name

    def setGroupName(self, name: str) -> None:
        """Called by torch."""
        self._name = name

    def getGroupDesc(self) -> str:
        """What the program has said that the group is for."""
        return self._description

    def setGroupDesc(self, description: str) -> None:
        """Called by torch."""
        self._description = description

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

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence

    def _set_sequence_number_for_group(self) -> None:
        """Numbers start with the group."""

    # ---- the end

    def shutdown(self) -> None:
        """Complete what is in flight and release the communicator; called by destroy_process_group."""
        try:
            self._comm.close()
        except abcomm.Error as error:
            raise errors.translated(error, "shutdown", self._name) from error

    def abort(self) -> None:
        """End the group on all ranks now."""
        with contextlib.suppress(abcomm.HandleError):
            self._comm.abort(f"rank {self.rank()} has aborted group {self._name}")


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
