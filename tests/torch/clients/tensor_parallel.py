"""tensor_parallel.py - DTensor: layouts changed into each other, a tensor-parallel MLP, sequence and loss parallel, with FSDP in 2-D."""
import copy

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)

import common


class Block(torch.nn.Module):
    """A normalised two-layer block, as in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(64)
        self.up = torch.nn.Linear(64, 96)
        self.down = torch.nn.Linear(96, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def layouts(mesh: object, rank: int, size: int) -> None:
    """Every pair of layouts, also of sizes that ranks do not divide."""
    whole = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    for source in (Replicate(), Shard(0), Shard(1)):
        for target in (Replicate(), Shard(0), Shard(1)):
            tensor = distribute_tensor(whole, mesh, [source]).redistribute(mesh, [target])
            assert torch.equal(tensor.full_tensor(), whole), (source, target)
    for kind, want in (("sum", size * (size - 1) / 2), ("avg", (size - 1) / 2), ("max", size - 1)):
        part = DTensor.from_local(torch.full((4, 3), float(rank)), mesh, [Partial(kind)])
        for target in (Replicate(), Shard(0)):
            assert (part.redistribute(mesh, [target]).full_tensor() == want).all(), (kind, target)


def plain(x: torch.Tensor) -> tuple[torch.nn.Module, torch.Tensor]:
    torch.manual_seed(5)
    block = Block()
    return block, block(x)


def parallel(mesh: object) -> float:
    """Columns, then rows: the same output and gradients as without."""
    torch.manual_seed(6)
    x = torch.randn(8, 64)
    block, want = plain(x)
    want.square().mean().backward()
    tensor = copy.deepcopy(block)
    parallelize_module(tensor, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    tensor.zero_grad()
    got = tensor(x)
    torch.testing.assert_close(got, want)
    got.square().mean().backward()
    torch.testing.assert_close(tensor.up.weight.grad.full_tensor(), block.up.weight.grad)
    return want.norm().item()


def sequence(mesh: object, rank: int, size: int) -> None:
    """The norm works on this rank's part of the rows; its output is gathered for the columns."""
    torch.manual_seed(6)
    x = torch.randn(8, 16, 64)
    block, want = plain(x)
    parallelize_module(block, mesh, {
        "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()})
    torch.testing.assert_close(block(x.chunk(size, 1)[rank]), want)


def losses(mesh: object) -> float:
    """Cross entropy over logits that are split by class."""
    torch.manual_seed(7)
    logits, labels = torch.randn(16, 10, requires_grad=True), torch.randint(10, (16,))
    want = torch.nn.functional.cross_entropy(logits, labels)
    want.backward()
    split = distribute_tensor(logits.detach(), mesh, [Shard(1)]).requires_grad_()
    with loss_parallel():
        loss = torch.nn.functional.cross_entropy(split, labels)
        loss.backward()
    torch.testing.assert_close(loss.full_tensor(), want)
    torch.testing.assert_close(split.grad.full_tensor(), logits.grad)
    return want.item()


def two_dimensions(rank: int, size: int) -> float:
    """Tensor parallel inside, sharded data parallel outside."""
    outer = size // 2 if size % 2 == 0 and size > 2 else 1
    mesh = init_device_mesh("cpu", (outer, size // outer), mesh_dim_names=("data", "tensor"))
    torch.manual_seed(8)
    block = Block()
    parallelize_module(block, mesh["tensor"], {
        "up": ColwiseParallel(), "down": RowwiseParallel(),
        "norm": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Replicate(),), use_local_output=True)})
    fully_shard(block, mesh=mesh["data"])
    optimizer = torch.optim.SGD(block.parameters(), 0.1)
    torch.manual_seed(9 + rank // (size // outer))
    for _ in range(3):
        optimizer.zero_grad()
        loss = block(torch.randn(4, 64)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def main(rank: int, size: int) -> common.Results:
    mesh = init_device_mesh("cpu", (size,))
    layouts(mesh, rank, size)
    sequence(mesh, rank, size)
    return {"block": parallel(mesh), "loss": losses(mesh), "two_dimensions": two_dimensions(rank, size)}


if __name__ == "__main__":
    common.run(main)
