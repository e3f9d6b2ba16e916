"""ranks.py - what the ranks of a test do: one function a case, run under torchrun as `ranks.py CASE...`, each in a group of its own."""
import sys
from datetime import timedelta
from time import perf_counter

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
    for asynchronous in (False, True):  # by the device: the group itself collects what is called
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=asynchronous) as manager:
            tensors = [mine(rank, 3), mine(rank, 12).reshape(3, 4).t()]
            dist.all_reduce(tensors[0])
            dist.group.WORLD.allreduce([tensors[1]])
            right, left = (rank + 1) % size, (rank - 1) % size
            sent, got = torch.full((4,), float(rank)), torch.empty(4)
            dist.irecv(got, left)
            dist.isend(sent, right)
        if asynchronous:
            manager.wait()
        same(tensors[0], sum(every(size, 3)))
        same(tensors[1], sum(every(size, 12)).reshape(3, 4).t())
        same(got, torch.full((4,), float(left)))
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


def destroyed():
    """A group is destroyed with operations in flight: destruction completes them, and who waits later is told so."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for _ in range(5):
        group = dist.new_group()
        x, turned = torch.ones(100000), torch.ones(300, 200).t()
        works = [dist.all_reduce(x, group=group, async_op=True), dist.all_reduce(turned, group=group, async_op=True)]
        future = dist.all_reduce(mine(rank), group=group, async_op=True).get_future()
        dist.destroy_process_group(group)
        for work in works:
            assert work.wait() and work.is_completed() and work.exception() is None
        same(x, torch.full((100000,), float(size)))
        same(turned, torch.full((200, 300), float(size)))
        same(future.wait()[0], sum(every(size)))


def monitored():
    """Rank 0 stays away from a monitored_barrier: the others do not wait for as long as the group's limit."""
    group = dist.new_group()
    if dist.get_rank():
        try:
            group.monitored_barrier(timedelta(seconds=0.3))
            raise AssertionError("rank 0 was not missed")
        except dist.DistBackendError as error:
            assert "timed out in monitoredBarrier" in str(error), error
    dist.barrier()
    dist.destroy_process_group(group)


REDUCED = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
MOVED = [*REDUCED, torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex64, torch.complex128, torch.complex32, torch.uint16]


def kinds():
    """Element types, operations, and tensors without elements or dimensions."""
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = torch.stack(every(size))
    for dtype in REDUCED:
        for op, wanted in ((dist.ReduceOp.SUM, whole.sum(0)), (dist.ReduceOp.MIN, whole.min(0)[0]),
                           (dist.ReduceOp.MAX, whole.max(0)[0]), (dist.ReduceOp.PRODUCT, whole.prod(0))):
            x = mine(rank, dtype=dtype)
            dist.all_reduce(x, op)
            same(x, wanted.to(dtype))
        x = mine(rank, dtype=dtype)
        dist.all_reduce(x, dist.ReduceOp.AVG)
        mean = whole.sum(0).to(torch.float64) / size
        same(x, mean.to(dtype) if dtype.is_floating_point else mean.trunc().to(dtype))
        if dtype.is_floating_point:
            x = mine(rank, dtype=dtype)
            dist.all_reduce(x, dist._make_nccl_premul_sum(0.5))
            same(x, (whole * 0.5).sum(0).to(dtype))
        else:
            x = mine(rank, dtype=dtype)
            dist.all_reduce(x, dist.ReduceOp.BXOR)
            wanted = mine(0, dtype=dtype)
            for other in range(1, size):
                wanted ^= mine(other, dtype=dtype)
            same(x, wanted)
    truth = torch.tensor([rank == 0, True, False])
    dist.all_reduce(truth, dist.ReduceOp.BAND)
    same(truth, torch.tensor([size == 1, True, False]))
    for dtype in MOVED:
        outputs = [torch.empty(10).to(dtype) for _ in range(size)]
        dist.all_gather(outputs, mine(rank, dtype=torch.float32).to(dtype))
        for r, output in enumerate(outputs):
            same(output.view(torch.uint8), mine(r, dtype=torch.float32).to(dtype).view(torch.uint8))
    z = torch.full((3,), 1 + 1j * rank)
    dist.all_reduce(z)
    same(z, torch.full((3,), size + 1j * sum(range(size))))
    outputs = [torch.empty(3, dtype=torch.complex64) for _ in range(size)]
    dist.group.WORLD.allgather(outputs, torch.full((3,), 1 + 1j * rank).conj()).wait()  # conjugated when it is read
    same(torch.cat(outputs), torch.cat([torch.full((3,), 1 - 1j * r) for r in range(size)]))
    scalar = torch.tensor(float(rank))
    dist.all_reduce(scalar)
    same(scalar, torch.tensor(float(sum(range(size)))))
    for work in (dist.all_reduce(torch.empty(0), async_op=True), dist.broadcast(torch.empty(0, 3), 0, async_op=True),
                 dist.all_gather([torch.empty(0)] * size, torch.empty(0), async_op=True)):
        assert work.wait()


def negated():
    """Tensors of which torch turns the sign when it reads them, of one element too: they are contiguous."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (1, 4):
        for asynchronous in (False, True):
            x = torch.full((count,), rank + 1j * (rank + 1)).conj().imag  # -(rank + 1)
            assert x.is_neg()
            run(lambda **o: dist.all_reduce(x, dist.ReduceOp.MAX, **o), asynchronous)
            same(x.resolve_neg(), torch.full((count,), -1.0))
    mixed = torch._neg_view(torch.ones(1)) if rank == 0 else torch.ones(1)
    same(abcomm.torch.reducer()(mixed).resolve_neg(), torch.tensor([size - 2.0]))


def refused():
    """Wrong arguments on all ranks are refused with what is wrong, and the group goes on."""
    rank, size = dist.get_rank(), dist.get_world_size()
    uneven = [torch.zeros(4 + (r == 0) - (r == 1)) for r in range(size)]  # as many elements in all as even ones
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    group = dist.group.WORLD
    cases = [(lambda: group.gather([uneven], [torch.ones(4)], root=rank), "tensor for rank 0 has 5 elements"),
             (lambda: group.scatter([torch.ones(4)], [uneven], root=rank), "tensor for rank 0 has 5 elements"),
             (lambda: dist.all_to_all([], []), f"each of the {size} ranks, there are 0"),
             (lambda: dist.all_reduce(freed), "no memory"), (lambda: dist.broadcast(freed, 0), "no memory"),
             (lambda: group.allreduce([1]), "this is int")]
    for call, words in cases:
        try:
            call()
            raise AssertionError(f"not refused: {words}")
        except (ValueError, TypeError) as error:
            assert words in str(error), error
    dist.barrier()


def sparse():
    """The sum of sparse tensors, and DDP with an embedding whose gradient is one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = torch.sparse_coo_tensor([[0, rank + 1]], torch.tensor([1.0, 2.0]), (size + 1,))
    dist.all_reduce(x)
    same(x.to_dense(), torch.tensor([float(size)] + [2.0] * size))
    for op, text in ((dist.ReduceOp.MAX, "SUM only"), (None, "dense tensors")):
        try:
            dist.all_reduce(x, op) if op else dist.broadcast(x, 0)
            raise AssertionError("not refused")
        except ValueError as error:
            assert text in str(error), error
    embedding = torch.nn.parallel.DistributedDataParallel(torch.nn.Embedding(10, 4, sparse=True))
    embedding(torch.tensor([rank, 5])).sum().backward()
    wanted = torch.zeros(10, 4)
    wanted[5] = 1
    wanted[:size] += 1 / size
    same(embedding.module.weight.grad.to_dense(), wanted)


def roots():
    """Many broadcasts and reductions in flight, waited for in another order."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensors = [torch.full((1 + 5000 * (i % 3),), float(rank + i)) for i in range(60)]
    works = [dist.broadcast(x, i % size, async_op=True) if i % 2 else dist.reduce(x, i % size, async_op=True)
             for i, x in enumerate(tensors)]
    for work in reversed(works):
        work.wait()
    for i, x in enumerate(tensors):
        if i % 2:
            assert (x == i % size + i).all()
        elif i % size == rank:
            assert (x == sum(range(size)) + i * size).all()


def observed():
    """What the report and torch's profiler show."""
    rank, size = dist.get_rank(), dist.get_world_size()
    before = abcomm.torch.report(as_dict=True)["operations"].get("all_reduce", {"calls": 0, "bytes": 0, "asynchronous": 0, "copied": 0})
    with torch.profiler.profile(record_shapes=True) as profile:
        dist.all_reduce(torch.ones(4, 5))
        dist.all_reduce(torch.ones(6), async_op=True).wait()
        dist.all_reduce(torch.ones(5, 4).t())
    shapes = [event.input_shapes for event in profile.events() if event.name == "abcomm:all_reduce"]
    assert shapes == [[[4, 5]], [[6]], [[4, 5]]], shapes
    after = abcomm.torch.report(as_dict=True)["operations"]["all_reduce"]
    change = {name: after[name] - before[name] for name in before if name != "path" and name != "seconds"}
    assert change == {"calls": 3, "bytes": 4 * (20 + 6 + 20), "asynchronous": 1, "copied": 1}, change
    assert after["path"] and "all_reduce" in abcomm.torch.report()
    group = dist.group.WORLD
    assert group.name() == "abcomm" and group._device_types == [torch.device("cpu")] and group.rank() == rank and group.size() == size


def timed():
    """The first calls, which are slow ones, stand for no others in the report."""
    group = dist.new_group()
    begin = perf_counter()
    for _ in range(3):
        dist.all_reduce(torch.ones(4), group=group)
    passed = perf_counter() - begin
    rows = [one["operations"] for one in abcomm.torch.report(as_dict=True)["groups"] if one["group"] == group.group_name]
    assert 0 < rows[0]["all_reduce"]["seconds"] <= passed, (rows, passed)


def short_forms():
    """The methods of the group itself, as torch's own groups have them."""
    rank, size = dist.get_rank(), dist.get_world_size()
    group = dist.group.WORLD
    x = torch.tensor([float(rank)])
    group.allreduce(x, dist.ReduceOp.MAX).wait()
    same(x, torch.tensor([size - 1.0]))
    group.broadcast(x.fill_(rank), root=size - 1).wait()
    same(x, torch.tensor([size - 1.0]))
    outputs = [torch.empty(1) for _ in range(size)]
    group.allgather(outputs, x.fill_(rank)).wait()
    same(torch.cat(outputs), torch.arange(float(size)))
    group.reduce_scatter(x, [torch.ones(1) for _ in range(size)], timeout=timedelta(seconds=30)).wait()
    same(x, torch.tensor([float(size)]))
    group.monitored_barrier(timedelta(seconds=30))
    group.barrier(timeout=timedelta(seconds=30)).wait()


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
