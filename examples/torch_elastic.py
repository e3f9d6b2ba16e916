"""torch_elastic.py - training that goes on when a rank dies: torchrun starts all ranks again, they go on from the last checkpoint.

Run: torchrun --standalone --nproc-per-node 2 --max-restarts 1 torch_elastic.py CHECKPOINT

Shown: the other ranks of a rank that dies get an error that names it, at once; the next attempt meets without a trace of the dead one.
"""
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import abcomm.torch  # noqa: F401  registers the backend

STEPS, EVERY, DEATH = 30, 5, 12


def main():
    checkpoint = Path(sys.argv[1])
    dist.init_process_group("abcomm")
    rank, attempt = dist.get_rank(), int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    torch.manual_seed(0)
    net = torch.nn.Linear(20, 1)
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    truth, step = torch.randn(20, 1), 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        net.load_state_dict(saved["net"])
        step = saved["step"]
        print(f"rank {rank}: attempt {attempt} goes on at step {step}", flush=True)
    for step in range(step + 1, STEPS + 1):
        x = torch.randn(64, 20, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = torch.nn.functional.mse_loss(model(x), x @ truth)
        optimizer.zero_grad()
        if step == DEATH and attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)  # as a machine that runs out of memory does
        loss.backward()
        optimizer.step()
        if step % EVERY == 0 and rank == 0:
            new = checkpoint.with_suffix(".new")
            torch.save({"net": net.state_dict(), "step": step}, new)
            new.rename(checkpoint)
        dist.barrier()
    if rank == 0:
        print(f"done after {step} steps, loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
