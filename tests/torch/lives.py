"""lives.py - what goes on for long, or ends in an unusual way: `lives.py CASE...` forks the ranks of each case, one function each.

At the end one line of JSON: {case: [[exit code, what the rank printed]]}.
"""
import gc
import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import abcomm.torch  # noqa: F401  registers the backend
import forks

TIMES = 200
GROWTH = 4 << 20  # bytes of memory that 150 lives of a group may leave
LOOKS, LIVES = 4, 20  # how often it is looked for what stays, and lives between two looks


def start(**options):
    dist.init_process_group("abcomm", timeout=timedelta(seconds=60), **options)


def belongings():
    """(resident bytes, descriptors, threads, mappings) of this process."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    maps = Path("/proc/self/maps").read_text().count("\n")
    return pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), maps


def is_more(before, now):
    """Has this process more than it had? Says how much."""
    print(f"memory {now[0] - before[0]:+}, descriptors {now[1] - before[1]:+}, threads {now[2] - before[2]:+}, maps {now[3] - before[3]:+};",
          *(Path("/proc/self/task", task, "comm").read_text().strip() for task in os.listdir("/proc/self/task")),
          *(thread.name for thread in threading.enumerate()), flush=True)
    return now[0] - before[0] > GROWTH or now[1] > before[1] or now[2] > before[2] or now[3] > before[3] + 2


def meet(store, where, ranks):
    """Wait until so many ranks have come."""
    while store.add(where, 0) < ranks:
        time.sleep(0.001)


def settle(store, when):
    """All ranks have left their groups, so what a rank kept for a slower one goes when it makes its next communicator."""
    store.add(when, 1)
    meet(store, when, int(os.environ["WORLD_SIZE"]))
    abcomm.Communicator(0, 1).close()


def one_life(store, number):
    """A group is made, works in each way that needs threads or memory, and ends."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    start(store=dist.PrefixStore(str(number), store), rank=rank, world_size=size)
    x = torch.full((1000,), float(rank))
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert (future.wait() == size * (size - 1)).all()
    pair = dist.new_group()
    big = torch.ones(100_000)
    dist.all_reduce(big, group=pair)
    assert (big == size).all()
    dist.destroy_process_group()


def nothing_stays(store, before):
    """A leak comes with every life. What one moment has more, such as a thread that delivers, does not come again after further lives."""
    for look in range(LOOKS):
        settle(store, f"look {look}")
        now = belongings()
        store.add(f"more {look}", int(is_more(before, now)))
        settle(store, f"told {look}")
        if store.add(f"more {look}", 0) == 0:
            return
        before = now
        for number in range(LIVES):
            one_life(store, f"{look}, {number}")
    raise AssertionError("each look found more than the one before, on one rank or another")


def again():
    """A process makes and ends its groups many times; nothing of them stays."""
    rank = int(os.environ["RANK"])
    store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), int(os.environ["WORLD_SIZE"]), rank == 0)
    for number in range(TIMES):
        one_life(store, number)
        if number == 49:
            settle(store, "begin")
            before = belongings()
    nothing_stays(store, before)
    store.add("over", 1)
    if rank == 0:  # the others read its store until then
        meet(store, "over", int(os.environ["WORLD_SIZE"]))


def ones():
    """Groups of one rank, many of them, with every operation."""
    start()
    rank = dist.get_rank()
    assert "rank" in abcomm.torch.report()  # nothing has been called
    for number in range(TIMES):
        groups = [dist.new_group([member], use_local_synchronization=True) for member in (rank,)]
        for group in groups:
            x = torch.full((3,), 5.0)
            dist.all_reduce(x, group=group)
            parts = [torch.empty(3)]
            dist.all_gather(parts, x, group=group)
            dist.broadcast(x, rank, group=group)
            dist.reduce_scatter(x, parts, group=group)
            dist.all_to_all_single(parts[0], x, group=group)
            group.all_gather_single(parts[0], x).wait()  # the names since torch 2.13
            group.reduce_scatter_single(x, parts[0]).wait()
            dist.barrier(group=group)
            assert (parts[0] == 5).all()
            dist.destroy_process_group(group)
        if number == 49:
            before = belongings()
    assert not is_more(before, belongings())
    dist.destroy_process_group()


def wait_in_vain(rank):
    """Rank 0 is asleep, another waits for it in a call, another in a future; both are told when it has gone."""
    try:
        if rank == 0:
            time.sleep(60)
        elif rank == 1:
            dist.all_reduce(torch.ones(3))
        else:
            dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    except (dist.DistBackendError, RuntimeError) as error:
        assert "rank 0" in str(error), error


def interrupted():
    """Ctrl-C reaches all ranks: each ends with its own KeyboardInterrupt, at once or when its call is over."""
    start()
    dist.barrier()
    try:
        wait_in_vain(dist.get_rank())
        time.sleep(60)
    except KeyboardInterrupt:
        raise SystemExit(7) from None


def interrupt(pids):
    time.sleep(2)
    for pid in pids:
        os.kill(pid, signal.SIGINT)


def gradients():
    """DDP's gradients are, to the bit, those of all ranks divided and added one by one in the order of ranks."""
    start()
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.Tanh(), torch.nn.Linear(30, 5))
    wrapped = DistributedDataParallel(model, bucket_cap_mb=1)
    torch.manual_seed(100 + rank)
    x = torch.randn(8, 20)
    with wrapped.no_sync():
        wrapped(x).square().mean().backward()
    own = [parameter.grad.flatten().tolist() for parameter in model.parameters()]
    every = [None] * size
    dist.all_gather_object(every, own)
    for _ in range(3):  # in later steps the buckets are others
        model.zero_grad()
        wrapped(x).square().mean().backward()
        for number, parameter in enumerate(model.parameters()):
            wanted = [scalar_mean([grads[number][i] for grads in every]) for i in range(parameter.numel())]
            got = parameter.grad.flatten().view(torch.int32)
            assert torch.equal(got, torch.tensor(wanted).view(torch.int32)), f"parameter {number}"
    dist.destroy_process_group()


def scalar_mean(values):
    """In single precision, one operation at a time."""
    total = None
    for value in values:
        part = torch.tensor(value) / torch.tensor(float(len(values)))
        total = part if total is None else total + part
    return total.item()


def threads():
    """Threads of a rank, each with a group of its own, work at once."""
    start()
    groups = [dist.new_group() for _ in range(4)]
    failures = []

    def work(group, number):
        try:
            for step in range(50):
                x = torch.full((100,), float(step + number))
                dist.all_reduce(x, group=group)
                assert (x == (step + number) * dist.get_world_size()).all()
        except BaseException as error:
            failures.append(error)

    running = [threading.Thread(target=work, args=(group, number)) for number, group in enumerate(groups)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(60)
    assert not failures and not any(thread.is_alive() for thread in running), failures
    dist.destroy_process_group()


CASES = {"again": (2, again), "ones": (2, ones), "interrupted": (3, interrupted), "gradients": (4, gradients), "threads": (2, threads)}


if __name__ == "__main__":
    done = {}
    for case in sys.argv[1:]:
        ranks, work = CASES[case]
        done[case] = forks.run(work, ranks, 120, interrupt if case == "interrupted" else None)
    print(json.dumps(done))
