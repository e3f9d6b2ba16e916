"""elastic.py - training that is killed and goes on: in the first attempt one rank ends itself in the middle of a step.

Under torchrun --max-restarts 1 or more. Each step's weights are kept in CLIENT_FOLDER; a restarted job goes on from the last one.
"""
import os
import signal
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

import common

STEPS, KILLED_AT = 8, 4


def main(rank: int, size: int) -> common.Results:
    saved = Path(os.environ["CLIENT_FOLDER"]) / "weights.pt"
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = DistributedDataParallel(common.mlp())
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    first = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        first = state["step"]
    images, labels = common.digits()
    for number in range(first, STEPS):
        if attempt == 0 and number == KILLED_AT and rank == size - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        batch = slice(64 * number, 64 * (number + 1))
        common.step(model, optimizer, images[batch][rank::size], labels[batch][rank::size])
        if rank == 0:
            torch.save({"model": model.state_dict(), "step": number + 1}, saved.with_suffix(".new"))
            saved.with_suffix(".new").rename(saved)
    assert attempt > 0 and first >= KILLED_AT - 1, (attempt, first)
    common.same_everywhere(model.parameters())
    return {"weights": common.norm(model.parameters())}


if __name__ == "__main__":
    common.run(main)
