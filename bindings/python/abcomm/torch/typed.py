"""typed.py - futures whose value C++ knows to be a list of tensors.

A future that Python completes holds a Python object, and most of torch takes one. Its built-in fp16 hook of DistributedDataParallel does
not: it insists on a list of tensors. Only a TorchScript function makes a future of that type which is not over yet: one that waits for
another future. That takes a tenth of a millisecond, so it is done for 16-bit floats alone, which that hook sends.
"""
from __future__ import annotations

import functools
from typing import Any

import torch

_SOURCE = """
def waiting(go: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(go)
    return tensors

def follow(go: Future[int], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(waiting, go, tensors)
"""


@functools.cache
def _unit() -> Any:
    return torch.jit.CompilationUnit(_SOURCE)


def wanted(result: Any) -> bool:
    """Whether somebody may insist on the type."""
    return type(result) is list and len(result) == 1 and isinstance(result[0], torch.Tensor) and result[0].dtype is torch.float16


def future(go: Any, tensors: list[torch.Tensor]) -> Any:
    """A future with these tensors, over when `go` is, and failed when `go` has failed."""
    return _unit().follow(go, tensors)
