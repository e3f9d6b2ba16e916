"""types.py - from torch's tensors, element types and reductions to what the library takes: (address, count, type, owner).

Nothing is copied here but what is not contiguous. Whoever takes such a copy for an output copies it back; see Outputs.
"""
from __future__ import annotations

from typing import Any, NamedTuple, Sequence, TypeAlias

import torch
import torch.distributed as dist

import abcomm

Buffer: TypeAlias = tuple[int, int, int, Any]


class Spread(NamedTuple):
    """Blocks for all ranks, wherever they lie: the memory from the first to the last, and where each block is in it."""

    buffer: Buffer
    counts: list[int]
    offsets: list[int]


_NAMES: dict[str, str] = {
    "float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "float8_e4m3fn": "fp8_e4m3", "float8_e5m2": "fp8_e5m2",
    "int8": "i8", "int16": "i16", "int32": "i32", "int64": "i64", "uint8": "u8", "uint16": "u16", "uint32": "u32", "uint64": "u64",
    "bool": "bool", "complex64": "complex64", "complex128": "complex128",
}
# The number of each element type; types that the library does not know can be moved as bytes, but not reduced.
CODES: dict[torch.dtype, int] = {getattr(torch, name): abcomm.types[ours][0] for name, ours in _NAMES.items() if hasattr(torch, name)}
# The same with the bytes of an element, but for complex numbers, which may be conjugated when they are read.
PLAIN: dict[torch.dtype, tuple[int, int]] = {dtype: (code, dtype.itemsize) for dtype, code in CODES.items() if not dtype.is_complex}
BYTE: int = abcomm.types["u8"][0]

_OPS: dict[str, str] = {"SUM": "sum", "AVG": "avg", "PRODUCT": "prod", "MIN": "min", "MAX": "max", "BAND": "band", "BOR": "bor",
                        "BXOR": "bxor"}
# By the hash of torch's ReduceOp, which is its number: many times quicker than comparing.
OPS: dict[int, int] = {hash(dist.ReduceOp(getattr(dist.ReduceOp, name))): abcomm.ops[ours] for name, ours in _OPS.items()}
_PREMUL: int = int(dist.ReduceOp.PREMUL_SUM.value)


def check(tensor: torch.Tensor) -> None:
    """Refuse what no operation takes."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"abcomm takes tensors, this is {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise ValueError(f"abcomm takes dense tensors, this one has the layout {tensor.layout}; make it dense first: x.to_dense(). "
                         "Only all_reduce takes sparse ones, of the layout torch.sparse_coo")
    if not tensor.is_cpu:
        raise ValueError(f"abcomm takes tensors of the CPU, this one is on {tensor.device}; move it first, or give such tensors a "
                         f"backend of their own: init_process_group('cpu:abcomm,{tensor.device.type}:...')")


def reduced_type(tensor: torch.Tensor) -> int:
    """The number of an element type that can be reduced."""
    code = CODES.get(tensor.dtype)
    if code is None:
        raise ValueError(f"abcomm cannot reduce tensors of {tensor.dtype}; convert them first, e.g. x.float()")
    return code


def moved(tensor: torch.Tensor) -> Buffer:
    """A contiguous tensor as what is moved and not reduced."""
    code = CODES.get(tensor.dtype)
    if code is None:
        return tensor.data_ptr(), tensor.numel() * tensor.element_size(), BYTE, tensor
    return tensor.data_ptr(), tensor.numel(), code, tensor


def operation(op: Any, tensor: torch.Tensor) -> Any:
    """The library's operation for a ReduceOp on such a tensor."""
    number = hash(op)
    if number in OPS:
        return OPS[number]
    if number == _PREMUL:
        factor = op.__getstate__()[1]
        scalar = torch.as_tensor(factor, dtype=tensor.dtype).reshape(1).contiguous()
        return abcomm.ScaledSum((scalar.data_ptr(), 1, reduced_type(tensor), scalar))
    raise ValueError(f"abcomm has no reduction {op}; it has {', '.join(_OPS)} and PREMUL_SUM")


class Outputs:
    """Contiguous stand-ins of outputs, to be copied back when the operation is over."""

    def __init__(self) -> None:
        self._pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def one(self, tensor: torch.Tensor, reads: bool = False) -> torch.Tensor:
        """The tensor itself if it is contiguous, else a stand-in; reads: with the contents."""
        check(tensor)
        if as_it_lies(tensor):
            return tensor
        stand_in = inputs(tensor) if reads else torch.empty(tensor.shape, dtype=tensor.dtype)
        self._pairs.append((tensor, stand_in))
        return stand_in

    def flat(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One tensor for all of them: their own memory if they lie one behind another there, else a stand-in."""
        joined = adjacent(tensors)
        if joined is not None:
            return joined
        first = tensors[0]
        stand_in = torch.empty(sum(t.numel() for t in tensors), dtype=first.dtype)
        at = 0
        for tensor in tensors:
            self._pairs.append((tensor, stand_in[at:at + tensor.numel()].view(tensor.shape)))
            at += tensor.numel()
        return stand_in

    def spread(self, tensors: Sequence[torch.Tensor]) -> Spread:
        """The tensors as blocks, without a copy if they are contiguous."""
        targets = [self.one(tensor) for tensor in tensors]
        blocks = spread(targets)
        return blocks if blocks is not None else spread_flat(self.flat(tensors), tensors)

    def copy_back(self, told: object = None) -> None:
        """Fill what the caller has passed."""
        with torch.no_grad():
            for tensor, stand_in in self._pairs:
                tensor.detach().copy_(stand_in)

    def __bool__(self) -> bool:
        return bool(self._pairs)


def as_it_lies(tensor: torch.Tensor) -> bool:
    """True if the memory of a tensor is what the tensor shows: torch conjugates and negates when it reads."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def inputs(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself if it is contiguous, else a copy that is."""
    check(tensor)
    return tensor if as_it_lies(tensor) else tensor.resolve_conj().resolve_neg().contiguous()


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The memory of tensors that lie one behind another, e.g. chunks of one tensor; None if they do not."""
    first = tensors[0]
    at = first.data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at or not as_it_lies(tensor):
            return None
        at += tensor.numel() * tensor.element_size()
    storage = first.untyped_storage()
    if at > storage.data_ptr() + storage.nbytes():
        return None
    return first.detach().as_strided((sum(t.numel() for t in tensors),), (1,))


def flat_inputs(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One tensor with the contents of all of them, one behind another."""
    joined = adjacent(tensors)
    return joined if joined is not None else torch.cat([t.detach().reshape(-1) for t in tensors])


def spread(tensors: Sequence[torch.Tensor]) -> Spread | None:
    """Contiguous tensors as blocks where they are; None if they do not lie whole elements apart."""
    code = CODES.get(tensors[0].dtype)
    unit = 1 if code is None else tensors[0].element_size()
    at = [tensor.data_ptr() for tensor in tensors]
    counts = [tensor.numel() * tensor.element_size() // unit for tensor in tensors]
    base = min((address for address, count in zip(at, counts) if count), default=0)
    if any((address - base) % unit for address, count in zip(at, counts) if count):
        return None
    offsets = [(address - base) // unit if count else 0 for address, count in zip(at, counts)]
    whole = max(offset + count for offset, count in zip(offsets, counts))
    return Spread((base, whole, BYTE if code is None else code, tensors), counts, offsets)


def spread_flat(flat: torch.Tensor, tensors: Sequence[torch.Tensor]) -> Spread:
    """Blocks of the tensors' sizes, one behind another in one tensor."""
    unit = 1 if flat.dtype in CODES else flat.element_size()
    counts = [tensor.numel() * unit for tensor in tensors]
    return Spread(moved(flat), counts, [sum(counts[:r]) for r in range(len(counts))])


def spread_inputs(tensors: Sequence[torch.Tensor]) -> Spread:
    """The contents of tensors as blocks, without a copy if they are contiguous."""
    sources = [inputs(tensor) for tensor in tensors]
    blocks = spread(sources)
    return blocks if blocks is not None else spread_flat(flat_inputs(sources), sources)


def alike(tensors: Sequence[torch.Tensor]) -> bool:
    """True if all have the same number of elements."""
    return all(tensor.numel() == tensors[0].numel() for tensor in tensors)


def check_list(what: str, tensors: Sequence[torch.Tensor], like: torch.Tensor | None, ranks: int) -> None:
    """Refuse a list that is not one tensor for each rank, of one type: that of another tensor, or without one of the first."""
    if len(tensors) != ranks:
        raise ValueError(f"{what} needs one tensor for each of the {ranks} ranks, there are {len(tensors)}")
    for tensor in tensors:
        check(tensor)
        like = tensor if like is None else like
        if tensor.dtype != like.dtype:
            raise ValueError(f"{what}: all tensors must have one dtype, there are {tensor.dtype} and {like.dtype}")


def check_sizes(what: str, tensors: Sequence[torch.Tensor], like: torch.Tensor) -> None:
    """Refuse a list whose tensors are not all of one tensor's size: joined in one piece, the blocks would lie elsewhere."""
    for rank, tensor in enumerate(tensors):
        if tensor.numel() != like.numel():
            raise ValueError(f"{what}: the tensor for rank {rank} has {tensor.numel()} elements, that of this rank {like.numel()}; all "
                             "must have the same size")
