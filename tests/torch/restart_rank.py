"""restart_rank.py - a rank of restarts.py: in the first attempt of a job one rank is killed, at a moment that RESTART_MOMENT names.

Under torchrun. Every attempt makes groups and checks sums; the last line says "finished", the rank and the attempt.
"""
import os
import random
import signal
import sys
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import abcomm.torch  # noqa: F401  registers the backend

RANK, ATTEMPT = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
MOMENT, SEED = os.environ["RESTART_MOMENT"], int(os.environ["RESTART_SEED"])
STEPS = 200


def end_now() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def prepare() -> bool:
    """Whether this rank is the one that ends; arms what will end it."""
    chance = random.Random(SEED)
    victim = chance.randrange(int(os.environ["WORLD_SIZE"]))
    if ATTEMPT > 0 or RANK != victim:
        return False
    if MOMENT == "before":
        end_now()
    if MOMENT in ("start", "call"):  # while groups are made, or in the middle of something
        delay = chance.uniform(0, 0.02) if MOMENT == "start" else chance.uniform(0.02, 0.2)
        threading.Thread(target=lambda: (time.sleep(delay), end_now()), daemon=True).start()
    return True


def work(victim: bool) -> None:
    dist.init_process_group("abcomm", timeout=timedelta(seconds=60))
    size, other = dist.get_world_size(), dist.new_group()
    for step in range(STEPS):
        if victim and step == STEPS // 2:
            if MOMENT == "exit":
                sys.exit(9)
            if MOMENT == "error":
                raise ValueError("broken data")
            if MOMENT == "step":
                end_now()
        x = torch.full((1 + 997 * (step % 5),), float(RANK + step))
        waiting = dist.all_reduce(x, async_op=True, group=other if step % 2 else None)
        y = torch.full((3,), float(step))
        dist.broadcast(y, step % size)
        waiting.wait()
        assert (x == size * step + size * (size - 1) / 2).all() and (y == step).all()
        if victim and MOMENT == "call":
            time.sleep(0.002)  # so that it is not over before it is ended
    dist.destroy_process_group()


work(prepare())
print(f"finished {RANK} {ATTEMPT}", flush=True)
