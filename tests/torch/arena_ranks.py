"""arena_ranks.py - tensors in the arena, alone and under DDP and FSDP2: one function a case, run under torchrun as ranks.py is."""
import gc
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import abcomm.torch


def in_arena(tensor):
    """True if a tensor's memory is a mapping of the memfd."""
    with open("/proc/self/maps", encoding="ascii") as maps:
        for line in maps:
            begin, end = (int(number, 16) for number in line.split()[0].split("-"))
            if begin <= tensor.data_ptr() < end:
                return "memfd:abcomm" in line
    return False


def network():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.Tanh(), torch.nn.Linear(300, 10)).double()


def trained(model, steps=4):
    """The losses of a few steps."""
    torch.manual_seed(4 + dist.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(16, 40, dtype=torch.float64)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tensors():
    rank, size = dist.get_rank(), dist.get_world_size()
    made = [abcomm.torch.empty(2, 3), abcomm.torch.zeros((4,), dtype=torch.int32), abcomm.torch.ones(5, requires_grad=True),
            abcomm.torch.full((2, 2), 7), abcomm.torch.empty_like(torch.ones(3, dtype=torch.bfloat16)),
            abcomm.torch.zeros_like(torch.ones(2, 0, 3)), abcomm.torch.empty()]
    shapes = [(2, 3), (4,), (5,), (2, 2), (3,), (2, 0, 3), ()]
    kinds = [torch.float32, torch.int32, torch.float32, torch.int64, torch.bfloat16, torch.float32, torch.float32]
    assert [tuple(t.shape) for t in made] == shapes and [t.dtype for t in made] == kinds
    assert all(in_arena(t) for t in made if t.numel()) and not in_arena(torch.zeros(5))
    assert made[1].tolist() == [0] * 4 and made[2].tolist() == [1] * 5 and made[2].requires_grad and made[3].tolist() == [[7, 7]] * 2
    with abcomm.torch.arena():
        layer = torch.nn.Linear(3, 4)
        inside = [torch.zeros(3), torch.empty_like(layer.weight), torch.ones(2, 2, dtype=torch.int8), layer.bias.new_zeros(6)]
        outside = [torch.empty(2, device="meta"), torch.empty(2, 3, 4, 5, memory_format=torch.channels_last), torch.zeros(3) + 1]
    assert all(in_arena(t) for t in [layer.weight, *inside]) and not any(in_arena(t) for t in outside if t.device.type == "cpu")
    x = abcomm.torch.full((100000,), float(rank))
    dist.all_reduce(x)
    assert x.eq(sum(range(size))).all()


def reducers():
    """The short way past torch.distributed gives what dist.all_reduce gives, and takes turns with it."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.AVG):
        reduce = abcomm.torch.reducer(op=op)
        for dtype in (torch.float32, torch.bfloat16, torch.complex64 if op == dist.ReduceOp.SUM else torch.int32):
            for x in (torch.arange(6 + rank, 12 + rank).to(dtype), torch.arange(12).add(rank).to(dtype).view(3, 4).t()):
                wanted = x.clone()
                dist.all_reduce(wanted, op)
                assert reduce(x) is x and torch.equal(x, wanted), (op, dtype, x, wanted)
    part = dist.new_group([0, size - 1])
    if rank in (0, size - 1):
        assert abcomm.torch.reducer(part)(torch.ones(3)).tolist() == [2] * 3
    for group, op, words in ((dist.new_group(backend="gloo"), dist.ReduceOp.SUM, "group of abcomm"),
                             (None, dist._make_nccl_premul_sum(2.0), "dist.all_reduce")):
        try:
            abcomm.torch.reducer(group, op)
        except ValueError as error:
            assert words in str(error)
        else:
            raise AssertionError("taken")


def lifetime():
    """A storage lives as long as anything refers to it, with and without a group; what is dead is used again."""
    total = float(dist.get_world_size())
    x = abcomm.torch.ones(1 << 20)
    view = x[5:9]
    group = dist.group.WORLD
    pooled = group.allocate_tensor(1 << 20, dtype=torch.float32)
    pooled.fill_(2)
    work = dist.all_reduce(x, async_op=True)
    del x
    work.wait()
    dist.destroy_process_group()
    del group, work
    gc.collect()
    other = [abcomm.torch.zeros(1 << 20) for _ in range(3)]
    assert view.tolist() == [total] * 4 and pooled.eq(2).all() and len(other) == 3
    dist.init_process_group("abcomm")
    group = dist.group.WORLD
    places = set()
    for _ in range(20):
        places.add(group.allocate_tensor(3 << 20, dtype=torch.uint8).data_ptr())
    assert len(places) == 1, places


def buckets():
    """DDP: buckets in the arena, losses as without it."""
    for views in (False, True):
        plain = trained(DistributedDataParallel(network(), gradient_as_bucket_view=views))
        model = abcomm.torch.use_arena(DistributedDataParallel(network(), gradient_as_bucket_view=views))
        assert trained(model) == plain
        assert not views or all(in_arena(p.grad) for p in model.parameters())
        with abcomm.torch.arena():
            model = DistributedDataParallel(network(), gradient_as_bucket_view=views, find_unused_parameters=True)
        assert trained(model) == plain
        assert not views or all(in_arena(p.grad) for p in model.parameters())
    try:
        abcomm.torch.use_arena(network())
    except ValueError as error:
        assert "fully_shard" in str(error)
    else:
        raise AssertionError("a model without anything parallel was taken")


def shards():
    """FSDP2: buffers out of the group's pool, as many as are in use at once, losses as without it."""
    def sharded():
        model = network()
        for layer in (model[0], model[2], model):
            fully_shard(layer)
        return model

    plain = trained(sharded())
    model = abcomm.torch.use_arena(sharded())
    assert trained(model) == plain
    free = dist.group.WORLD._pool._free
    kept = {size: len(blocks) for size, blocks in free.items()}
    assert kept and trained(model, 10) and kept == {size: len(blocks) for size, blocks in free.items()}, kept



if __name__ == "__main__":
    for case in sys.argv[1:]:
        dist.init_process_group("abcomm")
        globals()[case]()
        dist.destroy_process_group()
        print(f"fine {case}\n", end="", flush=True)
