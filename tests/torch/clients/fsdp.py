"""fsdp.py - FSDP1 and FSDP2 against one process: plain, in bf16, hybrid over a mesh, with gradient clipping and full state dicts."""
import copy

import torch
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

import common

STEPS = 5


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, first: int, every: int) -> float:
    """Steps on a part of each batch; the last loss."""
    images, labels = common.digits()
    for number in range(STEPS):
        batch = slice(64 * number, 64 * (number + 1))
        loss = common.step(model, optimizer, images[batch][first::every], labels[batch][first::every])
    return loss


def one_process() -> torch.nn.Module:
    alone = common.mlp()
    train(alone, torch.optim.SGD(alone.parameters(), 0.3), 0, 1)
    return alone


def compare(got: dict[str, torch.Tensor], alone: torch.nn.Module, tolerance: float) -> float:
    """A full state dict is near the one of one process; its norm."""
    want = alone.state_dict()
    for name, tensor in got.items():
        torch.testing.assert_close(tensor.float(), want[name], rtol=tolerance, atol=tolerance)
    return common.norm(got.values())


def sharded(alone: torch.nn.Module, rank: int, size: int, mesh: object = None, *, half: bool = False) -> float:
    """fully_shard on each layer; the norm of the trained weights."""
    model = copy.deepcopy(common.mlp())
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if half else MixedPrecisionPolicy()
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    train(model, torch.optim.SGD(model.parameters(), 0.3), rank, size)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=False))
    if rank == 0:  # the others get nothing
        return compare(state, alone, 3e-2 if half else 1e-4)
    return 0.0


def clipped(rank: int, size: int) -> float:
    """The norm of all gradients, over shards."""
    model = common.mlp()
    fully_shard(model)
    images, labels = common.digits()
    torch.nn.functional.cross_entropy(model(images[rank:64:size]), labels[rank:64:size]).backward()
    total = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    alone = common.mlp()
    torch.nn.functional.cross_entropy(alone(images[:64]), labels[:64]).backward()
    want = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    torch.testing.assert_close(total.full_tensor(), want, rtol=1e-4, atol=1e-5)
    return want.item()


def first_generation(alone: torch.nn.Module, rank: int, size: int) -> float:
    """FullyShardedDataParallel."""
    model = FullyShardedDataParallel(common.mlp(), device_id=torch.device("cpu"), use_orig_params=True,
                                     auto_wrap_policy=ModuleWrapPolicy({torch.nn.Linear}))
    train(model, torch.optim.SGD(model.parameters(), 0.3), rank, size)
    with FullyShardedDataParallel.summon_full_params(model):
        return compare({name.replace("_fsdp_wrapped_module.", ""): tensor for name, tensor in model.named_parameters()}, alone, 1e-4)


def main(rank: int, size: int) -> common.Results:
    alone = one_process()
    return {"fsdp2": sharded(alone, rank, size),
            "bf16": sharded(alone, rank, size, half=True),
            "hybrid": sharded(alone, rank, size, init_device_mesh("cpu", (size, 1), mesh_dim_names=("copies", "shards"))),
            "clipped": clipped(rank, size),
            "fsdp1": first_generation(alone, rank, size)}


if __name__ == "__main__":
    common.run(main)
