"""ranks.py - what the ranks of a test do: one function a case, run under torchrun as `ranks.py CASE...`, each in a group of its own."""
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

import abcomm.torch  # noqa: F401  registers the backend


def mine(rank, count=10, dtype=torch.float32):
    """What a rank puts in: small whole numbers, the same in every type."""
    return ((torch.arange(count) + 3 * rank) % 7).to(dtype)


def every(size, count=10, dtype=torch.float32):
    return [mine(rank, count, dtype) for rank in range(size)]


def same(got, wanted):
    assert got.dtype == wanted.dtype and torch.equal(got, wanted), (got, wanted)


def run(call, asynchronous):
    work = call(async_op=asynchronous)
    if asynchronous:
        assert work.wait() and work.is_completed() and work.is_success() and work.exception() is None
    else:
        assert work is None


def both(case):
    """Run a case with synchronous and with asynchronous calls."""
    def twice():
        for asynchronous in (False, True):
            case(dist.get_rank(), dist.get_world_size(), asynchronous)
    twice.__name__ = case.__name__
    return twice


@both
def reductions(rank, size, asynchronous):
    total = sum(every(size))
    x = mine(rank)
    run(lambda **o: dist.all_reduce(x, **o), asynchronous)
    same(x, total)
    y = mine(rank)
    run(lambda **o: dist.reduce(y, size - 1, **o), asynchronous)
    same(y, total if rank == size - 1 else mine(rank))
    blocks = [mine(rank, 4) + block for block in range(size)]
    wanted = sum(mine(r, 4) + rank for r in range(size))
    z = torch.empty(4)
    run(lambda **o: dist.reduce_scatter(z, blocks, **o), asynchronous)
    same(z, wanted)
    z.zero_()
    run(lambda **o: dist.reduce_scatter_tensor(z, torch.cat(blocks), **o), asynchronous)
    same(z, wanted)


@both
def moves(rank, size, asynchronous):
    x = mine(rank)
    run(lambda **o: dist.broadcast(x, size - 1, **o), asynchronous)
    same(x, mine(size - 1))
    outputs = [torch.empty(10) for _ in range(size)]
    run(lambda **o: dist.all_gather(outputs, mine(rank), **o), asynchronous)
    same(torch.cat(outputs), torch.cat(every(size)))
    flat = torch.empty(10 * size)
    run(lambda **o: dist.all_gather_into_tensor(flat, mine(rank), **o), asynchronous)
    same(flat, torch.cat(every(size)))
    outputs = [torch.zeros(10) for _ in range(size)] if rank == size - 1 else None
    run(lambda **o: dist.gather(mine(rank), outputs, dst=size - 1, **o), asynchronous)
    if rank == size - 1:
        same(torch.cat(outputs), torch.cat(every(size)))
    y = torch.empty(10)
    run(lambda **o: dist.scatter(y, every(size) if rank == 0 else None, src=0, **o), asynchronous)
    same(y, mine(rank))
    flat = torch.empty(3 * size)
    run(lambda **o: dist.all_to_all_single(flat, torch.arange(3. * size) + 100 * rank, **o), asynchronous)
    same(flat, torch.cat([torch.arange(3.) + 3 * rank + 100 * r for r in range(size)]))
    outputs = [torch.empty(3) for _ in range(size)]
    run(lambda **o: dist.all_to_all(outputs, list((torch.arange(3. * size) + 100 * rank).chunk(size)), **o), asynchronous)
    same(torch.cat(outputs), flat)
    run(lambda **o: dist.barrier(**o), asynchronous)


def lists():
    """Blocks of different sizes, large ones, and tensors that are not contiguous."""
    rank, size = dist.get_rank(), dist.get_world_size()
    sizes = [3 * r for r in range(size)]
    flat = torch.empty(sum(rank + r for r in range(size)), 2)
    dist.all_to_all_single(flat, torch.full((sum(rank + r for r in range(size)), 2), float(rank)),
                           [rank + r for r in range(size)], [rank + r for r in range(size)])
    same(flat, torch.cat([torch.full((rank + r, 2), float(r)) for r in range(size)]))
    for count in (1, 100000):
        outputs = [torch.empty(count * n) for n in sizes]
        dist.all_gather(outputs, mine(rank, count * sizes[rank]))
        for r, output in enumerate(outputs):
            same(output, mine(r, count * sizes[r]))
        output = torch.empty(count * sizes[rank])
        dist.reduce_scatter(output, [mine(rank, count * n) for n in sizes])
        same(output, sum(mine(r, count * sizes[rank]) for r in range(size)))
        outputs = [torch.empty(count * (rank + r)) for r in range(size)]
        dist.all_to_all(outputs, [torch.full((count * (rank + r),), float(rank)) for r in range(size)])
        for r, output in enumerate(outputs):
            same(output, torch.full((count * (rank + r),), float(r)))
        outputs = [torch.zeros(count) for _ in range(size)] if rank == 0 else None
        dist.gather(mine(rank, count), outputs)
        if rank == 0:
            same(torch.cat(outputs), torch.cat(every(size, count)))
        output = torch.empty(count)
        dist.scatter(output, every(size, count) if rank == 0 else None)
        same(output, mine(rank, count))
    for asynchronous in (False, True):
        turned = mine(rank, 12).reshape(3, 4).t()
        run(lambda **o: dist.all_reduce(turned, **o), asynchronous)
        same(turned, sum(every(size, 12)).reshape(3, 4).t())
        wide = [torch.zeros(10, 2)[:, 0] for _ in range(size)]
        run(lambda **o: dist.all_gather(wide, mine(rank), **o), asynchronous)
        same(torch.cat(wide), torch.cat(every(size)))


def coalesced():
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [mine(rank, 3), mine(rank, 5)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor, count in zip(tensors, (3, 5)):
        same(tensor, sum(every(size, count)))
    outputs = [torch.empty(3 * size), torch.empty(5 * size)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for output, count in zip(outputs, (3, 5)):
            dist.all_gather_into_tensor(output, mine(rank, count))
    manager.wait()
    for output, count in zip(outputs, (3, 5)):
        same(output, torch.cat(every(size, count)))
    outputs = [torch.empty(3), torch.empty(5)]
    with dist._coalescing_manager():
        for output, count in zip(outputs, (3, 5)):
            dist.reduce_scatter_tensor(output, mine(rank, count * size))
    for output, count in zip(outputs, (3, 5)):
        same(output, sum(every(size, count * size))[rank * count:(rank + 1) * count])


def messages():
    rank, size = dist.get_rank(), dist.get_world_size()
    right, left = (rank + 1) % size, (rank - 1) % size
    x, y = torch.full((4,), float(rank)), torch.empty(4)
    work = dist.isend(x, right, tag=3)
    dist.recv(y, left, tag=3)
    work.wait()
    same(y, torch.full((4,), float(left)))
    operations = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y.zero_(), left)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    same(y, torch.full((4,), float(left)))
    if rank == 0:
        senders = set()
        for _ in range(size - 1):
            sender = dist.recv(y)
            same(y, torch.full((4,), float(sender)))
            senders.add(sender)
        assert senders == set(range(1, size))
    else:
        dist.send(x, 0)
    table = [None] * size
    dist.all_gather_object(table, {"rank": rank})
    assert table == [{"rank": r} for r in range(size)]
    words = ["from", rank] if rank == 0 else [None, None]
    dist.broadcast_object_list(words)
    assert words == ["from", 0]


def groups():
    rank, size = dist.get_rank(), dist.get_world_size()
    evens = dist.new_group([r for r in range(size) if r % 2 == 0])
    own = dist.new_group([rank], use_local_synchronization=True)
    x = torch.ones(3)
    if rank % 2 == 0:
        dist.all_reduce(x, group=evens)
        same(x, torch.full((3,), float((size + 1) // 2)))
    dist.all_reduce(x, group=own)
    assert dist.get_backend() == "abcomm" and dist.get_backend(own) == "abcomm"
    if rank % 2 == 0:
        dist.destroy_process_group(evens)
    dist.barrier()


def futures():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(every(size))
    future = dist.all_reduce(mine(rank), async_op=True).get_future()
    same(future.wait()[0], total)

    def again(first):
        second = first.value()[0].clone()
        dist.all_reduce(second, async_op=True).get_future().wait()
        return second

    chained = [dist.all_reduce(mine(rank), async_op=True).get_future().then(again) for _ in range(1)]
    same(chained[0].wait(), size * total)
    nested = dist.all_gather([torch.empty(10) for _ in range(size)], mine(rank), async_op=True).get_future().wait()
    same(torch.cat(nested[0]), torch.cat(every(size)))
    for _ in range(20):
        dist.all_reduce(torch.ones(1000), async_op=True)  # dropped


def again():
    """Several lives in one process, over one store."""
    rank, size = dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()
    for _ in range(3):
        dist.init_process_group("abcomm")
        x = mine(rank)
        dist.all_reduce(x)
        same(x, sum(every(size)))
        dist.destroy_process_group()
    dist.init_process_group("abcomm")


def unfinished():
    """The interpreter ends with the group alive and an operation in flight."""
    dist.all_reduce(torch.ones(1000), async_op=True)
    print("fine unfinished\n", end="", flush=True)
    sys.exit(0)


def training():
    """Data-parallel training: the same losses as of one process with the whole batch."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    data, labels = torch.randn(64, 20, dtype=torch.float64), torch.randint(0, 4, (64,))

    def build():
        torch.manual_seed(2)
        return torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 4)).double()

    def losses(model, inputs, targets):
        optimizer = torch.optim.SGD(model.parameters(), 0.5)
        for _ in range(20):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
        return torch.nn.functional.cross_entropy(model(data), labels)

    part = slice(rank * 64 // size, (rank + 1) * 64 // size)
    parallel = losses(torch.nn.parallel.DistributedDataParallel(build()), data[part], labels[part])
    alone = losses(build(), data, labels)
    assert torch.allclose(parallel, alone, rtol=1e-12), (parallel, alone)


def main():
    for case in sys.argv[1:]:
        dist.init_process_group("abcomm", timeout=timedelta(seconds=60))
        globals()[case]()
        dist.destroy_process_group()
        print(f"fine {case}\n", end="", flush=True)


if __name__ == "__main__":
    main()
