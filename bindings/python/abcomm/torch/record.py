"""record.py - an operation as an event of torch's profiler, with the shapes of its inputs.

An event that ends on another thread than it began on is one of its own, not a part of what the caller does meanwhile: that is how torch
shows operations of process groups. So the end is said on a thread of delivery.py, and waited for, because the profiler may end next.
"""
from __future__ import annotations

import threading
from typing import Any, Sequence

import torch

from abcomm.torch import delivery
from abcomm.torch.report import Call


def inputs_of(calls: Sequence[Call]) -> list[torch.Tensor]:
    """The tensors that raw calls read; of a receive the one that it fills."""
    found: list[torch.Tensor] = []
    for call in calls:
        buffer = call[1] or call[2]
        owner = buffer[3] if buffer else []
        found += [owner] if isinstance(owner, torch.Tensor) else owner
    return found


class Event:
    """One operation, from its start to its end."""

    def __init__(self, name: str, calls: Sequence[Call], shown: Sequence[torch.Tensor] | None) -> None:
        tensors = inputs_of(calls) if shown is None else shown
        self._handle: Any = torch.autograd._record_function_with_args_enter(name.removesuffix("_coalesced"), *tensors)
        self._ended = threading.Event()

    def end(self) -> None:
        """The operation is over."""
        delivery.put(self)
        self._ended.wait(5.0)

    def deliver(self) -> None:
        """On a thread of delivery.py."""
        torch.autograd._record_function_with_args_exit(self._handle)
        self._ended.set()
