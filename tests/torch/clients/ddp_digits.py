"""ddp_digits.py - DistributedDataParallel on digits: equal to one process, forked DataLoader workers, buffers, uneven inputs."""
import copy

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import common


def like_one_process(rank: int, size: int) -> float:
    """Five steps on a part of each batch are five steps of one process on the whole of it."""
    images, labels = common.digits()
    alone = common.mlp()
    model = DistributedDataParallel(copy.deepcopy(alone), bucket_cap_mb=1)
    ours, theirs = torch.optim.SGD(model.parameters(), 0.5), torch.optim.SGD(alone.parameters(), 0.5)
    for number in range(5):
        batch = slice(64 * number, 64 * (number + 1))
        loss = common.step(alone, theirs, images[batch], labels[batch])
        common.step(model, ours, images[batch][rank::size], labels[batch][rank::size])
    for mine, want in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine, want, rtol=1e-4, atol=1e-5)
    common.same_everywhere(model.parameters())
    return loss


def train(rank: int, size: int) -> tuple[float, float]:
    """Batch normalisation, accumulated gradients and workers; (norm of the weights, accuracy)."""
    images, labels = common.digits()
    data = TensorDataset(images, labels)
    sampler = DistributedSampler(data, shuffle=True, seed=3)
    loader = DataLoader(data, batch_size=32, sampler=sampler, num_workers=2, multiprocessing_context="fork")
    model = DistributedDataParallel(common.mlp(batch_norm=True))
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for epoch in range(4):
        sampler.set_epoch(epoch)
        for number, (some_images, some_labels) in enumerate(loader):
            if number % 3 == 0:
                with model.no_sync():
                    torch.nn.functional.cross_entropy(model(some_images), some_labels).backward()
                continue
            torch.nn.functional.cross_entropy(model(some_images), some_labels).backward()
            optimizer.step()
            optimizer.zero_grad()
    common.same_everywhere(model.parameters())
    model.eval()
    right = (model(images[rank::size]).argmax(1) == labels[rank::size]).sum()
    dist.all_reduce(right)
    return common.norm(model.parameters()), right.item() / len(labels)


def uneven(rank: int) -> None:
    """A rank that has no more batches lets the others go on; unused parameters are found."""
    images, labels = common.digits()
    model = DistributedDataParallel(common.mlp(), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with Join([model]):
        for number in range(4 + 3 * rank):
            common.step(model, optimizer, images[:32], labels[:32])
    common.same_everywhere(model.parameters())


def main(rank: int, size: int) -> common.Results:
    loss = like_one_process(rank, size)
    weights, accuracy = train(rank, size)
    assert accuracy > 0.93, accuracy
    uneven(rank)
    return {"loss": loss, "weights": weights, "accuracy": accuracy}


if __name__ == "__main__":
    common.run(main)
