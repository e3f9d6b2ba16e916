"""zero.py - ZeroRedundancyOptimizer, also overlapped with the backward pass where torch allows it, and the averaging optimizer."""
import torch
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks, post_localSGD_hook
from torch.distributed.algorithms.model_averaging import averagers
from torch.distributed.optim import PostLocalSGDOptimizer, ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import common


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, rank: int, size: int) -> float:
    images, labels = common.digits()
    for number in range(10):
        batch = slice(64 * number, 64 * (number + 1))
        common.step(model, optimizer, images[batch][rank::size], labels[batch][rank::size])
    return common.norm(model.parameters())


def sharded(rank: int, size: int) -> float:
    """Optimizer states in shards, equal to Adam on each rank; the state gathered on rank 0."""
    model = DistributedDataParallel(common.mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, parameters_as_bucket_view=True)
    weights = train(model, optimizer, rank, size)
    plain = DistributedDataParallel(common.mlp())
    want = train(plain, torch.optim.Adam(plain.parameters(), lr=0.01), rank, size)
    assert abs(weights - want) < 1e-5 * want, (weights, want)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        assert len(optimizer.state_dict()["state"]) == len(list(model.parameters()))
    common.same_everywhere(model.parameters())
    return weights


def overlapped(rank: int, size: int) -> None:
    """Steps inside the backward pass; torch refuses them for the name gloo."""
    model = DistributedDataParallel(common.mlp())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
    hook = ddp_zero_hook.hook_with_zero_step(default_hooks.allreduce_hook, model, optimizer)
    model.register_comm_hook(None, hook)
    images, labels = common.digits()
    for _ in range(8):
        common.step(model, optimizer, images[rank:64:size], labels[rank:64:size])
    common.same_everywhere(model.parameters())


def averaging(rank: int, size: int) -> float:
    """Local steps, averaged every second one."""
    model = DistributedDataParallel(common.mlp())
    state = post_localSGD_hook.PostLocalSGDState(None, None, start_localSGD_iter=4, post_local_gradient_allreduce=False)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(torch.optim.SGD(model.parameters(), lr=0.1),
                                      averagers.PeriodicModelAverager(period=2, warmup_steps=4))
    return train(model, optimizer, rank, size)


def main(rank: int, size: int) -> common.Results:
    weights = sharded(rank, size)
    if common.BACKEND != "gloo":
        overlapped(rank, size)
    return {"weights": weights, "averaged": averaging(rank, size)}


if __name__ == "__main__":
    common.run(main)
