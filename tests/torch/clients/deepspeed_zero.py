"""deepspeed_zero.py - DeepSpeed's ZeRO stages 0 to 3 on the backend, each equal to the first within rounding."""
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed  # noqa: E402
import torch  # noqa: E402

import common  # noqa: E402


def train(stage: int, rank: int, size: int) -> float:
    """Six steps; the loss of a seventh batch, averaged over the ranks."""
    model = common.mlp()
    config = {"train_micro_batch_size_per_gpu": 32, "zero_optimization": {"stage": stage},
              "zero_allow_untested_optimizer": True, "optimizer": {"type": "SGD", "params": {"lr": 0.3}}}
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    images, labels = common.digits()
    for number in range(7):
        batch = slice(32 * size * number, 32 * size * (number + 1))
        loss = torch.nn.functional.cross_entropy(engine(images[batch][rank::size]), labels[batch][rank::size])
        if number < 6:
            engine.backward(loss)
            engine.step()
    value = loss.detach().clone()
    torch.distributed.all_reduce(value)
    return value.item() / size


def main() -> None:
    common.register()
    watch = common.watch_gloo()
    deepspeed.init_distributed(dist_backend=common.BACKEND)
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    losses = {f"stage{stage}": train(stage, rank, size) for stage in range(4)}
    for name, loss in losses.items():
        assert abs(loss - losses["stage0"]) < 1e-3, losses
    common.check_calls(watch, ())
    common.finish(losses)


if __name__ == "__main__":
    main()
