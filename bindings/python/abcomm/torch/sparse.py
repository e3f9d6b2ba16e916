"""sparse.py - all_reduce of sparse tensors (COO), as embeddings with sparse=True give DDP: the sum of what all ranks have anywhere.

Ranks have different numbers of entries, so they tell each other how many first; that is done before the call returns, also when it is
asynchronous, because operations must be started in one order on all ranks. Then indices and values are gathered and added in rank
order by torch.
"""
from __future__ import annotations

from typing import Any, Callable

import torch
import torch.distributed as dist

import abcomm
from abcomm.torch import types
from abcomm.torch.report import Call

_ALLGATHER = abcomm.collectives["allgather"]
_ALLGATHERV = abcomm.collectives["allgatherv"]
_SUM = hash(dist.ReduceOp(dist.ReduceOp.SUM))


def _counted(tensor: torch.Tensor, counts: list[int]) -> tuple[torch.Tensor, list[int]]:
    """Room for all ranks' rows, and how many elements each rank has."""
    row = tensor[:1].numel() if tensor.shape[0] else torch.empty(tensor.shape[1:]).numel()
    return torch.empty((sum(counts), *tensor.shape[1:]), dtype=tensor.dtype), [count * row for count in counts]


def _gather(tensor: torch.Tensor, counts: list[int]) -> tuple[Call, torch.Tensor]:
    target, elements = _counted(tensor, counts)
    return (_ALLGATHERV, types.moved(tensor), types.moved(target), None, None, None, None, None, None, None, None, elements,
            None), target


def calls(run: Callable[..., Any], size: int, tensor: torch.Tensor, op: Any) -> tuple[list[Call], Callable[[object], None]]:
    """The raw calls that gather all entries, and what makes the sum of them."""
    if tensor.layout != torch.sparse_coo or not tensor.is_cpu:
        types.check(tensor)
    if hash(op) != _SUM:
        raise ValueError("abcomm all_reduce of sparse tensors knows SUM only; divide or make them dense (x.to_dense()) yourself")
    entries = tensor.detach().coalesce()
    indices, values = entries.indices().t().contiguous(), entries.values().contiguous()
    types.reduced_type(values)
    mine, counts = torch.tensor([values.shape[0]]), torch.empty(size, dtype=torch.int64)
    run(_ALLGATHER, types.moved(mine), types.moved(counts))
    first, all_indices = _gather(indices, counts.tolist())
    second, all_values = _gather(values, counts.tolist())

    def add(told: object) -> None:
        with torch.no_grad():
            total = torch.sparse_coo_tensor(all_indices.t(), all_values, tensor.shape, check_invariants=False).coalesce()
            tensor.copy_(total)  # not to a detached one: that would get indices of its own

    return [first, second], add
