"""memory.py - tensors in the arena, the memory that peers of this machine read and write where it is, so that nothing is staged.

A tensor is a view of an abcomm.Memory, which lives as long as the tensor's storage, with or without a process group. Buffers that come
and go, as FSDP's do, are taken from a pool: fresh pages cost more than what the arena saves.
"""
from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, Callable, Sequence, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import abcomm

Size: TypeAlias = "int | Sequence[int]"
Memory: TypeAlias = abcomm.Memory


def _shape(size: tuple[Any, ...]) -> tuple[int, ...]:
    """From empty(2, 3) or empty((2, 3)) to (2, 3)."""
    given = size[0] if len(size) == 1 and not isinstance(size[0], int) else size
    return tuple(int(n) for n in given)


def _over(buffer: Any, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(buffer, dtype=dtype, count=math.prod(shape)).view(shape)


def _make(shape: Sequence[int], dtype: torch.dtype | None) -> torch.Tensor:
    """A tensor with undefined contents; one of no elements needs no arena."""
    kind = dtype or torch.get_default_dtype()
    nbytes = math.prod(shape) * kind.itemsize
    return _over(memoryview(Memory(nbytes)), shape, kind) if nbytes else torch.empty(shape, dtype=kind, device="cpu")


def empty(*size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of the CPU with undefined contents in the arena; size as for torch.empty."""
    return _make(_shape(size), dtype).requires_grad_(requires_grad)


def full(size: Size, value: Any, *, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """A tensor in the arena with one value everywhere; without dtype the type that torch.full would take."""
    kind = dtype or torch.full((), value).dtype
    return _make(_shape((size,)), kind).fill_(value).requires_grad_(requires_grad)


def zeros(*size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of zeros in the arena; size as for torch.zeros."""
    return _make(_shape(size), dtype).zero_().requires_grad_(requires_grad)


def ones(*size: Any, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of ones in the arena; size as for torch.ones."""
    return _make(_shape(size), dtype).fill_(1).requires_grad_(requires_grad)


def empty_like(like: torch.Tensor, *, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """A contiguous tensor in the arena, of the shape and type of another; its contents are undefined."""
    return empty(like.shape, dtype=dtype or like.dtype, requires_grad=requires_grad)


def zeros_like(like: torch.Tensor, *, dtype: torch.dtype | None = None, requires_grad: bool = False) -> torch.Tensor:
    """A contiguous tensor of zeros in the arena, of the shape and type of another."""
    return zeros(like.shape, dtype=dtype or like.dtype, requires_grad=requires_grad)


# ---- what torch itself allocates

_ATEN = torch.ops.aten
_FILLED: dict[Any, Any] = {  # factories of torch, and what they fill with; None: nothing
    _ATEN.empty.memory_format: None, _ATEN.empty_like.default: None, _ATEN.new_empty.default: None,
    _ATEN.zeros.default: 0, _ATEN.zeros_like.default: 0, _ATEN.new_zeros.default: 0,
    _ATEN.ones.default: 1, _ATEN.ones_like.default: 1, _ATEN.new_ones.default: 1,
}
_DENSE = (None, torch.contiguous_format, torch.preserve_format)


class _Arena(TorchDispatchMode):
    """Answers what it can and leaves the rest to torch: other devices, layouts and orders, and what is empty."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = kwargs or {}
        if func not in _FILLED or options.get("layout") not in (None, torch.strided) or options.get("memory_format") not in _DENSE:
            return func(*args, **options)
        like = args[0] if isinstance(args[0], torch.Tensor) else None
        if like is not None and not (type(like) in (torch.Tensor, torch.nn.Parameter) and like.layout is torch.strided
                                     and like.is_contiguous()):
            return func(*args, **options)
        device = options.get("device") or (like.device if like is not None else torch.get_default_device())
        dtype = options.get("dtype") or (like.dtype if like is not None else torch.get_default_dtype())
        if torch.device(device).type != "cpu":
            return func(*args, **options)
        shape = args[0] if like is None else args[1] if len(args) > 1 else like.shape
        made, value = _make([int(n) for n in shape], dtype), _FILLED[func]
        return made if value is None else made.fill_(value)


def arena() -> TorchDispatchMode:
    """A context in which the tensors that torch makes of nothing lie in the arena: empty, zeros, ones, their _like and new_ forms.

    Also those that torch makes inside, such as the parameters of a module or the buckets of DDP. For making things, not for running
    them: each operation of torch costs more inside.
    """
    return _Arena()


class Pool:
    """Buffers of the arena that come and go: what a dead tensor had is given to the next one of the same size."""

    def __init__(self) -> None:
        self._free: dict[int, list[Memory]] = {}

    def empty(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A flat tensor with undefined contents."""
        nbytes = count * dtype.itemsize
        if not nbytes:
            return torch.empty(count, dtype=dtype, device="cpu")
        kept = self._free.setdefault(nbytes, [])
        memory = kept.pop() if kept else Memory(nbytes)
        view = (ctypes.c_char * nbytes).from_buffer(memory)  # dies with the storage, and can be watched
        back: Callable[..., Any] = kept.append
        weakref.finalize(view, back, memory).atexit = False
        return _over(view, (count,), dtype)
