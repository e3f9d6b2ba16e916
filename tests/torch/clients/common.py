"""common.py - what the client programs share: they start on the backend that CLIENT_BACKEND names and end with a line of results.

A client is a function of rank and size that returns its results, figures by name, for comparison between backends. `run` makes the
group, calls it, checks that the operations ran on the backend and that no other code has made a Gloo group, and ends the group:
behind a barrier on Gloo, which needs one, and without any on ours.
"""
from __future__ import annotations

import csv
import faulthandler
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import torch.distributed as dist

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from watch import GlooWatch  # noqa: E402

BACKEND = os.environ.get("CLIENT_BACKEND", "abcomm")
DIGITS = HERE.parent.parent.parent / "data" / "digits" / "digits.csv"
Results = dict[str, float]


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images of 64 pixels, and their labels."""
    with open(DIGITS, encoding="utf-8", newline="") as file:
        rows = torch.tensor([[float(value) for value in row] for row in csv.reader(file)])
    return rows[:, :64] / 16, rows[:, 64].long()


def mlp(width: int = 48, *, batch_norm: bool = False) -> torch.nn.Sequential:
    """The same small classifier on every rank."""
    torch.manual_seed(1)
    norm = [torch.nn.BatchNorm1d(width)] if batch_norm else []
    return torch.nn.Sequential(torch.nn.Linear(64, width), *norm, torch.nn.ReLU(), torch.nn.Linear(width, 10))


def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    """One step of training; the loss before it."""
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def same_everywhere(tensors: Iterable[torch.Tensor]) -> None:
    """All ranks hold the same bits."""
    for tensor in tensors:
        others = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
        dist.all_gather(others, tensor.detach().contiguous())
        assert all(torch.equal(other, tensor) for other in others), "ranks differ"


def norm(tensors: Iterable[torch.Tensor]) -> float:
    """One figure that stands for many parameters."""
    return sum(tensor.detach().double().square().sum().item() for tensor in tensors) ** 0.5


def register() -> None:
    """Make the backend known to torch, and let the process say where it hangs when clients.py asks."""
    faulthandler.register(signal.SIGUSR1)
    if BACKEND != "gloo":
        importlib.import_module(f"{BACKEND}.torch")


def watch_gloo() -> GlooWatch:
    """Note from now on who makes Gloo groups; where Gloo is the backend, keep them to be counted."""
    watch = GlooWatch(keep=BACKEND == "gloo")
    watch.install()
    return watch


def check_calls(watch: GlooWatch, allowed: tuple[str, ...]) -> None:
    """The backend has worked, and nobody made a Gloo group but who may."""
    if BACKEND == "gloo":
        assert watch.calls() > 0, "nothing ran on the backend"
        watch.kept.clear()
        return
    strangers = set(watch.made) - set(allowed)
    assert not strangers, f"Gloo groups were made by {strangers}"
    operations = importlib.import_module(f"{BACKEND}.torch").report(as_dict=True)["operations"]
    assert sum(row["calls"] for row in operations.values()) > 0, "nothing ran on the backend"


def finish(results: Results) -> None:
    """Print the results and end the group."""
    rank = dist.get_rank()
    if BACKEND == "gloo":
        dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        print("results " + json.dumps({name: float(value) for name, value in results.items()}), flush=True)


def run(main: Callable[[int, int], Results], gloo_groups: tuple[str, ...] = ()) -> None:
    """The life of a client; `gloo_groups` names the code (file:function) of torch that makes Gloo groups whatever the backend."""
    register()
    watch = watch_gloo()
    dist.init_process_group(BACKEND)
    results = main(dist.get_rank(), dist.get_world_size())
    check_calls(watch, gloo_groups)
    finish(results)
