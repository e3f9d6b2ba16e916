"""pipeline.py - pipeline schedules against one process: GPipe, 1F1B, and interleaved with two stages a rank."""
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

import common

MICRO_BATCHES, WIDTH = 4, 32


def layers(count: int) -> list[torch.nn.Module]:
    """The same layers on every rank, one a stage."""
    torch.manual_seed(11)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()) for _ in range(count)]


def loss_of(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.mse_loss(output, target)


def one_process(stages: list[torch.nn.Module], x: torch.Tensor, target: torch.Tensor) -> tuple[float, list[torch.Tensor]]:
    """The loss, and the gradient of each stage's weights."""
    loss = loss_of(torch.nn.Sequential(*stages)(x), target)
    loss.backward()
    grads = [stage[0].weight.grad.clone() for stage in stages]
    for stage in stages:
        stage.zero_grad()
    return loss.item(), grads


def schedule(kind: type, rank: int, size: int, each: int) -> float:
    """One step of a schedule with `each` stages a rank; the loss, known on all ranks."""
    stages = layers(size * each)
    torch.manual_seed(12)
    x, target = torch.randn(16, WIDTH), torch.randn(16, WIDTH)
    want, grads = one_process(stages, x, target)
    mine = [rank + size * number for number in range(each)]
    parts = [PipelineStage(stages[number], number, size * each, torch.device("cpu")) for number in mine]
    plan = kind(parts if each > 1 else parts[0], MICRO_BATCHES, loss_fn=loss_of)
    losses: list[torch.Tensor] = []
    arguments = (x,) if rank == 0 else ()
    plan.step(*arguments, **({"target": target, "losses": losses} if rank == size - 1 else {}))
    for number in mine:
        torch.testing.assert_close(stages[number][0].weight.grad, grads[number])
    got = torch.stack(losses).mean().detach() if losses else torch.zeros(())
    dist.broadcast(got, size - 1)
    assert abs(got.item() - want) < 1e-5, (got, want)
    return want


def any_source(rank: int, size: int) -> None:
    """Whoever comes first is served first."""
    if rank:
        dist.send(torch.tensor([float(rank)]), 0)
        return
    seen, value = set(), torch.zeros(1)
    for _ in range(size - 1):
        source = dist.recv(value)
        assert source == value.item()
        seen.add(source)
    assert seen == set(range(1, size))


def main(rank: int, size: int) -> common.Results:
    any_source(rank, size)
    return {"gpipe": schedule(ScheduleGPipe, rank, size, 1),
            "1f1b": schedule(Schedule1F1B, rank, size, 1),
            "interleaved": schedule(ScheduleInterleaved1F1B, rank, size, 2)}


if __name__ == "__main__":
    common.run(main)
