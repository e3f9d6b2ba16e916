"""direct.py - an all_reduce for inner loops, past torch.distributed.

A model that is split over ranks sums some kilobytes after each half layer; there what torch.distributed does around a call, 3 us, is
longer than the sum. A reducer does nothing but look at the tensor and call the library. What it reduces is not in report().
"""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist

import abcomm
from abcomm.torch import errors, types
from abcomm.torch.base import Base

_ALLREDUCE = abcomm.collectives["allreduce"]


def reducer(group: dist.ProcessGroup | None = None, op: Any = dist.ReduceOp.SUM) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that reduces a tensor over the ranks of a group in place, at once, and returns it.

    It takes what dist.all_reduce takes, with less around it; all ranks of the group must call it alike, with one reducer or
    dist.all_reduce, as they like. It ends with its group.
    """
    ours: Any = group if group is not None else dist.group.WORLD
    if not isinstance(ours, Base):
        raise ValueError("abcomm.torch.reducer needs a group of abcomm: init_process_group('abcomm') or new_group(backend='abcomm')")
    run, known, number = ours._comm.run, types.PLAIN.get, types.OPS.get(hash(op))
    if number is None:
        raise ValueError(f"abcomm.torch.reducer takes no {op}; call dist.all_reduce")
    strided = torch.strided

    def reduce(tensor: torch.Tensor) -> torch.Tensor:
        kind = known(tensor.dtype)
        if kind is None or tensor.layout is not strided or not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
            dist.all_reduce(tensor, op, group)
            return tensor
        try:
            run(_ALLREDUCE, (tensor.data_ptr(), tensor.numel(), kind[0]), None, number, None, ours._seconds)
        except abcomm.Error as error:
            raise errors.translated(error, "all_reduce", ours.group_name) from error
        return tensor

    return reduce
