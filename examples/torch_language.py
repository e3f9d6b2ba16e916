"""torch_language.py - a small transformer that learns this file by heart, letter by letter, under DDP or FSDP2.

Run: torchrun --standalone --nproc-per-node 2 torch_language.py [ddp|fsdp]

Shown: the same model under DistributedDataParallel and under fully_shard, on abcomm; what was called, from abcomm.torch.report().
"""
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import abcomm.torch

WIDTH, LAYERS, HEADS, LENGTH, BATCH, STEPS = 64, 2, 4, 48, 8, 80


class Layer(torch.nn.Module):
    """Causal attention, then two linear maps."""

    def __init__(self):
        super().__init__()
        self.before, self.between = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class Language(torch.nn.Module):
    """From pieces of text to the loss of guessing each next letter."""

    def __init__(self):
        super().__init__()
        self.letters, self.places = torch.nn.Embedding(128, WIDTH), torch.nn.Embedding(LENGTH, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))
        self.last = torch.nn.Linear(WIDTH, 128)

    def forward(self, text):
        x = self.letters(text[:, :-1]) + self.places(torch.arange(LENGTH))
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.last(x).flatten(0, 1), text[:, 1:].flatten())


def parallel(model, how):
    """The model as all ranks train it together."""
    if how == "ddp":
        return DistributedDataParallel(model, gradient_as_bucket_view=True)
    for layer in model.layers:
        fully_shard(layer)
    return fully_shard(model)


def main():
    how = sys.argv[1] if len(sys.argv) > 1 else "ddp"
    if how not in ("ddp", "fsdp"):
        sys.exit(f"torch_language.py takes ddp or fsdp, not {how}")
    dist.init_process_group("abcomm")
    torch.manual_seed(0)
    model = abcomm.torch.use_arena(parallel(Language(), how))
    text = torch.tensor(list(Path(__file__).read_bytes())).clamp(max=127)
    choice = torch.Generator().manual_seed(dist.get_rank())  # each rank has its own places in the text
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    losses = []
    for _ in range(STEPS):
        starts = torch.randint(0, len(text) - LENGTH - 1, (BATCH,), generator=choice)
        loss = model(torch.stack([text[start:start + LENGTH + 1] for start in starts]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        mean = loss.detach()
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        losses.append(mean.item())
    if dist.get_rank() == 0:
        print(f"{how}: loss {losses[0]:.2f} at first, {sum(losses[-10:]) / 10:.2f} after {STEPS} steps")
        print(abcomm.torch.report())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
