"""compile_ddp.py - torch.compile over DistributedDataParallel, and functional collectives inside a compiled function."""
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

import common


def train(model: torch.nn.Module, rank: int, size: int) -> float:
    images, labels = common.digits()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for number in range(6):
        batch = slice(64 * number, 64 * (number + 1))
        common.step(model, optimizer, images[batch][rank::size], labels[batch][rank::size])
    return common.norm(model.parameters())


def collectives(rank: int, size: int) -> None:
    """In a compiled graph a group is found by its name."""
    group = dist.group.WORLD

    @torch.compile(fullgraph=True)
    def work(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        total = functional.all_reduce(x * 2, "sum", group)
        mean = functional.all_reduce(x, "avg", group)
        return total + 1, functional.all_gather_tensor(x, 0, group) * 1, mean * 1

    x = torch.full((4,), float(rank))
    total, gathered, mean = work(x)
    assert (total == size * (size - 1) + 1).all() and (mean == (size - 1) / 2).all()
    assert torch.equal(gathered, torch.arange(size, dtype=torch.float32).repeat_interleave(4))


def main(rank: int, size: int) -> common.Results:
    want = train(DistributedDataParallel(common.mlp()), rank, size)
    model = DistributedDataParallel(common.mlp())
    weights = train(torch.compile(model), rank, size)
    assert abs(weights - want) < 1e-5 * want, (weights, want)
    common.same_everywhere(model.parameters())
    collectives(rank, size)
    return {"weights": weights}


if __name__ == "__main__":
    common.run(main)
