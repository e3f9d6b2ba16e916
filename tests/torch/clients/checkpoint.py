"""checkpoint.py - distributed checkpoints of sharded models: save, load, save in the background, load onto another layout."""
import os
import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import common


def model_and_optimizer(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = common.mlp()
    torch.manual_seed(seed)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    fully_shard(model)
    return model, torch.optim.Adam(model.parameters(), 0.01)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: int) -> None:
    images, labels = common.digits()
    common.step(model, optimizer, images[rank:64:size], labels[rank:64:size])


def full(model: torch.nn.Module) -> list[torch.Tensor]:
    return [part.full_tensor() if isinstance(part, DTensor) else part for part in model.parameters()]


def state_of(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    weights, states = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": states}


def load(folder: str, want: list[torch.Tensor]) -> None:
    """What was saved replaces other weights."""
    model, optimizer = model_and_optimizer(77)
    state = state_of(model, optimizer)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for got, expected in zip(full(model), want):
        assert torch.equal(got.detach(), expected.detach())


def shared_folder(rank: int) -> str:
    """One new folder, known to all ranks."""
    name = [tempfile.mkdtemp(prefix="abcomm-client-") if rank == 0 else None]
    dist.broadcast_object_list(name)
    return str(name[0])


def main(rank: int, size: int) -> common.Results:
    folder = shared_folder(rank)
    try:
        model, optimizer = model_and_optimizer(5)
        train(model, optimizer, rank, size)
        first = [part.detach().clone() for part in full(model)]
        dcp.save(state_of(model, optimizer), checkpoint_id=os.path.join(folder, "first"))
        load(os.path.join(folder, "first"), first)

        apart = dist.new_group()  # the writing thread's own: two threads may not take turns on one
        writing = dcp.async_save(state_of(model, optimizer), checkpoint_id=os.path.join(folder, "second"), process_group=apart)
        train(model, optimizer, rank, size)  # while it is written
        writing.result()
        load(os.path.join(folder, "second"), first)
        return {"saved": common.norm(first), "trained": common.norm(full(model))}
    finally:
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    common.run(main)
