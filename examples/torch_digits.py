"""torch_digits.py - a digit classifier under DistributedDataParallel. Run: torchrun --standalone --nproc-per-node 2 torch_digits.py

Shown: one import and one name make DDP run on abcomm; gradients over several batches in no_sync; buckets in memory that peers read.
"""
import csv
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import abcomm.torch

DIGITS = Path(__file__).resolve().parent.parent / "data" / "digits" / "digits.csv"
EPOCHS, BATCH, PARTS = 15, 64, 2


def digits():
    """(pixels, labels) of 8 x 8 images."""
    with open(DIGITS, newline="", encoding="ascii") as file:
        rows = torch.tensor([[float(cell) for cell in row] for row in csv.reader(file) if row[0].isdigit()])
    return rows[:, :-1] / 16, rows[:, -1].long()


def main():
    dist.init_process_group("abcomm")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    pixels, labels = digits()
    order = torch.randperm(len(labels))
    test, train = order[:400], order[400:]

    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = abcomm.torch.use_arena(DistributedDataParallel(net, gradient_as_bucket_view=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.2, momentum=0.9)
    for _ in range(EPOCHS):
        for batch in train[torch.randperm(len(train))].split(BATCH)[:-1]:
            parts = batch[rank::size].chunk(PARTS)
            for part in parts[:-1]:
                with model.no_sync():  # gradients stay here and add up
                    (torch.nn.functional.cross_entropy(model(pixels[part]), labels[part]) / PARTS).backward()
            (torch.nn.functional.cross_entropy(model(pixels[parts[-1]]), labels[parts[-1]]) / PARTS).backward()
            optimizer.step()
            optimizer.zero_grad()

    share = (model(pixels[test]).argmax(1) == labels[test]).float().mean().item()
    weights = torch.cat([p.detach().flatten() for p in net.parameters()])
    low, high = weights.clone(), weights.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    if rank == 0:
        same = "same" if torch.equal(low, high) else "different"
        print(f"{100 * share:.1f} % of unseen digits are right; {same} weights on all {size} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
