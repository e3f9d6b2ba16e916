"""gloo.py - programs that ask for "gloo" by name get abcomm: replace_gloo(), or ABCOMM_TORCH_REPLACE_GLOO=1.

torch makes its Gloo groups by one class of torch.distributed.distributed_c10d, and asks by the same class whether a group is one. A
stand-in takes its place. So a program sees a group whose backend is called gloo, as it has asked for; report() tells what it runs on.
"""
from __future__ import annotations

import logging
import types
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from abcomm.torch.group import Group

_log = logging.getLogger("abcomm.torch")
_DEFAULT = timedelta(minutes=30)
_real: Any = getattr(c10d, "ProcessGroupGloo", None)


class GlooGroup(Group):
    """A group that answers to the name gloo."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(store, rank, size, timeout, "gloo")
        # torch writes into it what it knows of the group.
        self.options = types.SimpleNamespace(backend="gloo", _timeout=timeout, group_name="", global_ranks_in_group=[])

    def name(self) -> str:
        """As the program knows it. Not getBackendName: torch's C++ side looks for parts of the real Gloo if that is gloo."""
        return "gloo"

    _get_backend_name = name


class _StandIn(type):
    """The class of the class that takes Gloo's place."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, (GlooGroup, _real))

    def __getattr__(cls, name: str) -> Any:
        return getattr(_real, name)


class ProcessGroupGloo(metaclass=_StandIn):
    """Called as torch's class of that name: makes a group of abcomm, or of Gloo where devices beside the CPU may be meant."""

    def __new__(cls, store: dist.Store, rank: int, size: int, *given: Any, timeout: Any = _DEFAULT, **wishes: Any) -> Any:
        """given: a timeout or an options object, as torch's own takes them; wishes: what newer ones take besides."""
        limit = getattr(given[0], "_timeout", given[0]) if given else timeout
        wanted = [name for name, value in wishes.items() if value]
        if wanted or torch.accelerator.is_available():
            why = f"it has no {', '.join(wanted)}" if wanted else "it has no room for the device beside the CPU"
            _log.warning("abcomm: leaves a group to Gloo, for %s. Ask for abcomm by its name for tensors of the CPU", why)
            return _real(store, rank, size, *given, **wishes) if given else _real(store, rank, size, timeout=timeout, **wishes)
        return GlooGroup(store, rank, size, limit)


def replace_gloo() -> None:
    """Let abcomm make the groups of all programs that ask for "gloo". For the rest of the process; says so once in the log."""
    if _real is None:
        raise RuntimeError("abcomm: this PyTorch was built without Gloo, so no program can ask for it; ask for abcomm by its name")
    if c10d.ProcessGroupGloo is ProcessGroupGloo:
        return
    c10d.ProcessGroupGloo = dist.ProcessGroupGloo = ProcessGroupGloo
    _log.warning("abcomm: makes the groups of backend gloo in this process")
