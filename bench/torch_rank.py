"""torch_rank.py - one rank of a PyTorch benchmark; `./dev bench torch` starts it under torchrun: torch_rank.py PART SCALE [QUICK].

Gloo and abcomm are two groups of the same processes, and their calls alternate, in random order. A sample begins behind a barrier and
lasts from the last start to the last end of all ranks. Each rank has a CPU, which it may share with others. Rank 0 prints a line of JSON for each cell, with all samples in nanoseconds.
"""
from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist

import abcomm
import abcomm.torch

BARRIER, ALLREDUCE = abcomm.collectives["barrier"], abcomm.collectives["allreduce"]
F32, SUM = abcomm.types["f32"][0], abcomm.ops["sum"]
LIMIT = timedelta(seconds=60)
warnings.filterwarnings("ignore", category=FutureWarning)  # newer torch has other names for some calls


class Frame:
    """The processes of a run: the two groups, the clock, what the machine is like at the moment."""

    def __init__(self, scale: float) -> None:
        dist.init_process_group("abcomm", timeout=LIMIT)
        self.rank, self.size, self.scale = dist.get_rank(), dist.get_world_size(), scale
        self.ours = dist.group.WORLD
        self.gloo = dist.new_group(backend="gloo", timeout=LIMIT)
        self.raw = dist.new_group(backend="abcomm", timeout=LIMIT)._comm  # of the frame's own barriers
        self.alone = abcomm.Communicator(0, 1)

    def sample(self, call) -> tuple[int, int]:
        """Start and end on this rank; CLOCK_MONOTONIC is the same in all processes."""
        self.raw.run(BARRIER)
        begin = time.perf_counter_ns()
        call()
        end = time.perf_counter_ns()
        self.raw.run(BARRIER)  # nobody keeps the CPU from ranks that are not over yet
        return begin, end

    def joined(self, samples: list[tuple[int, int]]) -> list[int]:
        """Of all ranks: from the last start to the last end, on rank 0."""
        table = [None] * self.size
        dist.all_gather_object(table, samples)
        return [max(max(end for _, end in row) - max(begin for begin, _ in row), 1) for row in zip(*table)]

    def hand_off(self) -> float:
        """Microseconds that a call of 8 bytes takes longer with the peers than alone: about one hand-off of a cache line."""
        x = torch.zeros(2)
        buffer, taken = (x.data_ptr(), 2, F32), []
        for comm in (self.raw, self.alone):
            times = []
            for _ in range(100):
                begin = time.perf_counter_ns()
                comm.run(ALLREDUCE, buffer, None, SUM)
                times.append(time.perf_counter_ns() - begin)
            taken.append(statistics.quantiles(times, n=4)[0])
        return (taken[0] - taken[1]) / 1000

    def tell(self, **cell) -> None:
        """One line of results, and whether the frame's hand-off was near or far, as the slowest rank sees it."""
        seen = torch.tensor(self.hand_off())
        dist.all_reduce(seen, dist.ReduceOp.MAX)
        if self.rank == 0:
            print("row " + json.dumps({**cell, "ranks": self.size, "handoff_us": round(seen.item(), 3)}), flush=True)


# ---- operations

class Operation:
    """One collective on float32 of a size. bytes: of the larger buffer."""

    def __init__(self, frame: Frame, name: str, nbytes: int) -> None:
        self.frame, self.name, self.count = frame, name, max(nbytes // 4, 1)
        self.gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
        self.scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
        self.exchange = getattr(dist, "all_to_all_single")

    def _make(self, count: int, arena: bool) -> torch.Tensor:
        """A new tensor; the pages of the arena have been touched before, as those of a bucket or of FSDP's buffers have."""
        return self.frame.ours.allocate_tensor(count, dtype=torch.float32) if arena else torch.empty(count)

    def fresh(self, turn: int, arena: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """New tensors: (input, output, what the output must be)."""
        rank, size, n = self.frame.rank, self.frame.size, self.count
        pattern = torch.arange(n, dtype=torch.float32).remainder_(61).add_(turn % 89)
        few = n // size
        if self.name == "all_reduce":
            x = self._make(n, arena).copy_(pattern).add_(rank)
            return x, x, pattern * size + size * (size - 1) / 2
        if self.name == "broadcast":
            x = self._make(n, arena).copy_(pattern).add_(rank)
            return x, x, pattern
        if self.name == "all_gather_into_tensor":
            x = self._make(few, arena).copy_(pattern[rank * few:(rank + 1) * few])
            return x, self._make(few * size, arena).zero_(), pattern[:few * size]
        x = self._make(few * size, arena).copy_(pattern[:few * size]).add_(rank)
        if self.name == "reduce_scatter_tensor":
            return x, self._make(few, arena).zero_(), pattern[rank * few:(rank + 1) * few] * size + size * (size - 1) / 2
        mine = pattern[rank * few:(rank + 1) * few]
        return x, self._make(few * size, arena).zero_(), torch.cat([mine + r for r in range(size)])

    def call(self, x: torch.Tensor, y: torch.Tensor, group) -> None:
        if self.name == "all_reduce":
            dist.all_reduce(x, group=group)
        elif self.name == "broadcast":
            dist.broadcast(x, 0, group=group)
        elif self.name == "all_gather_into_tensor":
            self.gather(y, x, group=group)
        elif self.name == "reduce_scatter_tensor":
            self.scatter(y, x, group=group)
        else:
            self.exchange(y, x, group=group)

    def measure(self, turns: int) -> None:
        frame = self.frame
        ways = [("gloo", frame.gloo, False), ("ours", frame.ours, False), ("arena", frame.ours, True)]
        samples, wrong = {name: [] for name, _, _ in ways}, 0
        for turn in range(turns + 2):
            for name, group, arena in random.Random(turn).sample(ways, 3):  # the same order on all ranks
                x, y, wanted = self.fresh(turn, arena)
                taken = frame.sample(lambda: self.call(x, y, group))
                wrong += not torch.equal(y, wanted)
                if turn >= 2:  # the first calls connect and map
                    samples[name].append(taken)
                del x, y
        wrong = sum(gathered(frame, wrong))
        frame.tell(part="operations", what=self.name, bytes=self.count * 4, wrong=wrong,
                   **{name: frame.joined(some) for name, some in samples.items()})


def gathered(frame: Frame, value):
    table = [None] * frame.size
    dist.all_gather_object(table, value)
    return table


def operations(frame: Frame, quick: bool) -> None:
    """all_reduce by size, the others at two sizes."""
    cells = [("all_reduce", size) for size in (8, 512, 4096, 32768, 1 << 20, 16 << 20)]
    cells += [(name, size) for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "broadcast", "all_to_all_single")
              for size in (4096, 1 << 20)]
    for name, size in cells:
        if quick and size > 1 << 20:
            continue
        turns = 200 if size <= 32768 else 60 if size <= 1 << 20 else 12
        Operation(frame, name, size).measure(max(int(turns * frame.scale), 4))


# ---- what torch and Python add

def overhead(frame: Frame, quick: bool) -> None:
    """8 bytes, synchronous, the same tensor again and again: dist.all_reduce and the raw call of the extension, by turns.

    With one rank, so that no peer's lateness is in it: what is left is what is above the library. The raw call itself is Python's way
    into the library: `python tests/python/ranks.py overhead` has its price.
    """
    own = dist.new_group([frame.rank], backend="abcomm", use_local_synchronization=True)
    x = torch.zeros(2)
    buffer, comm, calls = (x.data_ptr(), 2, F32), own._comm, 500
    clock, ways = time.perf_counter_ns, {"torch": [], "direct": [], "raw": []}
    options = dist.AllreduceOptions()
    options.asyncOp = False
    for _ in range(max(int(40 * frame.scale), 4)):
        begin = clock()
        for _ in range(calls):
            dist.all_reduce(x, group=own)
        middle = clock()
        for _ in range(calls):
            own.allreduce([x], options)
        second = clock()
        for _ in range(calls):
            comm.run(ALLREDUCE, buffer, None, SUM)
        end = clock()
        for name, ns in (("torch", middle - begin), ("direct", second - middle), ("raw", end - second)):
            ways[name].append(ns / calls)
    frame.tell(part="overhead", what="all_reduce", bytes=8, wrong=0, **ways)


def main() -> None:
    part, scale, quick = sys.argv[1], float(sys.argv[2]), "quick" in sys.argv[3:]
    torch.set_num_threads(1)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[int(os.environ["RANK"]) % len(cpus)]})  # before any other thread is there
    frame = Frame(scale)
    if part in ("operations", "overhead"):
        globals()[part](frame, quick)
    else:
        import torch_models
        getattr(torch_models, part)(frame, quick)
    frame.alone.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
