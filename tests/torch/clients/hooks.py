"""hooks.py - DistributedDataParallel with torch's communication hooks: fp16, PowerSGD, the built-in ones, post-local SGD."""
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, post_localSGD_hook, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

import common


def train(model: DistributedDataParallel, rank: int, size: int) -> tuple[float, float]:
    """Twelve steps; (norm of the weights, last loss)."""
    images, labels = common.digits()
    optimizer = torch.optim.SGD(model.parameters(), 0.3)
    for number in range(12):
        batch = slice(64 * number, 64 * (number + 1))
        loss = common.step(model, optimizer, images[batch][rank::size], labels[batch][rank::size])
    return common.norm(model.parameters()), loss


def with_hook(name: str, model: DistributedDataParallel) -> None:
    """Give the model the hook of this name."""
    if name == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif name == "allreduce":
        model.register_comm_hook(None, default_hooks.allreduce_hook)
    elif name == "wrapped":
        model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook))
    elif name == "powersgd":
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=3, min_compression_rate=1)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif name == "local":
        state = post_localSGD_hook.PostLocalSGDState(dist.group.WORLD, dist.new_group(), start_localSGD_iter=6)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    else:
        model._register_builtin_comm_hook(getattr(dist.BuiltinCommHookType, name))


def chained(rank: int, size: int) -> None:
    """A hook whose callback starts a second operation and returns what comes of it."""
    model = DistributedDataParallel(common.mlp())

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        def second(first: torch.futures.Future[list[torch.Tensor]]) -> torch.Tensor:
            tensor = first.value()[0]
            dist.all_reduce(tensor)  # a callback may wait for another operation
            return tensor / size ** 2

        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(second)

    model.register_comm_hook(None, hook)
    plain = DistributedDataParallel(common.mlp())
    weights, _ = train(model, rank, size)
    want, _ = train(plain, rank, size)
    assert abs(weights - want) < 1e-4 * want, (weights, want)


def main(rank: int, size: int) -> common.Results:
    results = {}
    for name in ("allreduce", "fp16", "wrapped", "powersgd", "local", "ALLREDUCE", "FP16_COMPRESS"):
        model = DistributedDataParallel(common.mlp(), bucket_cap_mb=1)
        with_hook(name, model)
        results[name], loss = train(model, rank, size)
        assert loss < 2.2, (name, loss)  # 2.3 is chance
        if name != "local":  # whose ranks differ between averages
            common.same_everywhere(model.parameters())
    if common.BACKEND != "gloo":  # whose callbacks may not wait
        chained(rank, size)
    return results


if __name__ == "__main__":
    common.run(main)
