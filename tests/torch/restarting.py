"""restarting.py - a training that loses a rank in each of its first two attempts, at a random moment, also while groups are made."""
import os
import random
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import abcomm.torch  # noqa: F401  registers the backend

ATTEMPT = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
RANK = int(os.environ["RANK"])
DOOMED = random.Random(f"{os.environ['TORCHELASTIC_RUN_ID']} {ATTEMPT}").randrange(3) % int(os.environ["WORLD_SIZE"])


def die_later():
    """In a moment between the start and the end of the attempt."""
    signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, random.choice([0.001, 0.01, 0.05, 0.2]))


def main():
    if ATTEMPT < 2 and RANK == DOOMED:
        die_later()
    dist.init_process_group("abcomm", timeout=timedelta(seconds=60))
    side = dist.new_group()
    for step in range(10):
        x = torch.full((1000,), float(RANK + step))
        dist.all_reduce(x, group=side if step % 2 else None)
        assert x[0] == sum(range(dist.get_world_size())) + step * dist.get_world_size()
        if ATTEMPT < 2:
            time.sleep(0.05)
    dist.destroy_process_group()
    print(f"fine attempt {ATTEMPT}\n", end="", flush=True)


if __name__ == "__main__":
    main()
