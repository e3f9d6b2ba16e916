"""parallel.py - the buffers through which DistributedDataParallel and fully_shard communicate, in the arena.

DDP makes its buckets twice: when it is constructed, and after the first step, in the order in which gradients became ready. The second
time is when it matters; a hook asks for it a moment before DDP would, in a context that allocates from the arena. FSDP2 asks its
process group for memory once it is told to.
"""
from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from abcomm.torch.base import Base
from abcomm.torch.memory import arena


def _rebuild_in_arena(model: DistributedDataParallel, inputs: Any) -> None:
    """Before each forward of a DDP model, until its buckets have been made again."""
    if model._has_rebuilt_buckets or not torch.is_grad_enabled() or model._join_config.enable:
        return
    with arena():
        model._has_rebuilt_buckets = bool(model.reducer._rebuild_buckets())


def _of_us(group: Any) -> bool:
    return isinstance(group, Base)


def use_arena(model: torch.nn.Module) -> torch.nn.Module:
    """Let DDP and FSDP2 (fully_shard) modules in a model communicate through the arena; returns the model.

    To be called after they are made, on all ranks alike. DDP's buckets lie there from the second step on; with
    gradient_as_bucket_view=True gradients are written right into them. FSDP2's buffers lie there from now on. With
    find_unused_parameters, or training with join, DDP never makes its buckets again: make it inside abcomm.torch.arena() instead.
    """
    found = 0
    for module in model.modules():
        if isinstance(module, DistributedDataParallel):
            if not _of_us(module.process_group):
                raise ValueError(f"abcomm.torch.use_arena: the DDP model runs on {dist.get_backend(module.process_group)}, not on abcomm")
            module.register_forward_pre_hook(_rebuild_in_arena)
            found += 1
        elif hasattr(module, "set_allocate_memory_from_process_group_for_comm"):
            module.set_allocate_memory_from_process_group_for_comm(True)
            found += 1
    if not found:
        raise ValueError("abcomm.torch.use_arena: the model has no DistributedDataParallel and no fully_shard module that can be told "
                         "where its buffers lie; apply them first (of fully_shard some older PyTorch has no "
                         "set_allocate_memory_from_process_group_for_comm)")
    return model
