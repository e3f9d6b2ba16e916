"""torch_models.py - the parts of `./dev bench torch` that run models: training steps under DDP and FSDP2, inference split over two ranks.

Each part runs the same fixed model on gloo, on abcomm and on abcomm in the arena, step by step in random order in the same processes,
and once without communication: what a step on gloo takes longer than that is exposed communication.
"""
from __future__ import annotations

import contextlib
import os
import random
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import abcomm.torch


class Block(torch.nn.Module):
    """A layer of a transformer, whose two halves end in a sum over `split` ranks where it is split."""

    def __init__(self, width: int, heads: int, split: int = 1, summed=None) -> None:
        super().__init__()
        self.heads, self.summed = heads // split, summed
        self.before, self.between = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width // split, bias=False)
        self.out = torch.nn.Linear(width // split, width, bias=False)
        self.up = torch.nn.Linear(width, 4 * width // split, bias=False)
        self.down = torch.nn.Linear(4 * width // split, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        x = x + self._sum(self.out(mixed))
        return x + self._sum(self.down(F.gelu(self.up(self.between(x)))))

    def _sum(self, x: torch.Tensor) -> torch.Tensor:
        return self.summed(x) if self.summed else x


class Language(torch.nn.Module):
    """A small causal language model."""

    def __init__(self, width: int, layers: int, words: int = 256, heads: int = 4) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(words, width)
        self.layers = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


WIDTH, LAYERS, LENGTH = 256, 4, 32
# Sentences a rank and step: so many that a step on gloo was to 35-50 % exposed communication when they were chosen.
BATCH = {("ddp", 2): 2, ("ddp", 4): 2, ("fsdp", 2): 12, ("fsdp", 4): 12}


def _language() -> Language:
    torch.manual_seed(5)
    return Language(WIDTH, LAYERS)


def _tokens(frame, part: str, turn: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * turn + frame.rank)
    return torch.randint(0, 256, (BATCH.get((part, frame.size), 4), LENGTH + 1), generator=generator)


class Trainer:
    """One way to train: a model, its optimizer, what a step is."""

    def __init__(self, model: torch.nn.Module, around=contextlib.nullcontext) -> None:
        self.model, self.around = model, around
        self.optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step(self, tokens: torch.Tensor) -> float:
        with self.around():
            logits = self.model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def _train(frame, part: str, ways: dict[str, Trainer], steps: int) -> None:
    """Steps of all ways in random order; losses of all that communicate must agree to rounding."""
    samples, losses = {name: [] for name in ways}, {name: [] for name in ways}
    for turn in range(steps + 3):
        tokens = _tokens(frame, part, turn)
        for name in random.Random(turn).sample(sorted(ways), len(ways)):
            taken = frame.sample(lambda: losses[name].append(ways[name].step(tokens)))
            if turn >= 3:  # buckets are made again, pages are new
                samples[name].append(taken)
    wrong = sum(not torch.allclose(torch.tensor(losses[name]), torch.tensor(losses["gloo"]), rtol=1e-3)
                for name in ways if name != "alone")
    size = sum(p.numel() * p.element_size() for p in _language().parameters())
    frame.tell(part=part, what="step", bytes=size, wrong=wrong, **{name: frame.joined(some) for name, some in samples.items()})


def ddp(frame, quick: bool) -> None:
    """DDP; alone: the same model on gloo in no_sync."""
    def wrapped(group):
        return DistributedDataParallel(_language(), process_group=group, gradient_as_bucket_view=True)

    alone = wrapped(frame.gloo)
    ways = {"gloo": Trainer(wrapped(frame.gloo)), "ours": Trainer(wrapped(frame.ours)),
            "arena": Trainer(abcomm.torch.use_arena(wrapped(frame.ours))), "alone": Trainer(alone, alone.no_sync)}
    _train(frame, "ddp", ways, max(int(40 * frame.scale), 4))


def fsdp(frame, quick: bool) -> None:
    """FSDP2, each layer sharded; alone: the model as it is."""
    from torch.distributed.fsdp import fully_shard

    def sharded(group):
        mesh, model = DeviceMesh.from_group(group, "cpu"), _language()
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    ways = {"gloo": Trainer(sharded(frame.gloo)), "ours": Trainer(sharded(frame.ours)),
            "arena": Trainer(abcomm.torch.use_arena(sharded(frame.ours))), "alone": Trainer(_language())}
    _train(frame, "fsdp", ways, max(int(40 * frame.scale), 4))


# ---- inference, split over two ranks

def _deepspeed(frame):
    """DeepSpeed's sum in shared memory, or None and the reason."""
    os.environ.setdefault("LOCAL_SIZE", str(frame.size))
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        from deepspeed.ops.op_builder.cpu.comm import ShareMemCommBuilder

        loaded = ShareMemCommBuilder().load()
        loaded.initialize(frame.size, frame.rank)
    except Exception as reason:  # whatever a build can fail of
        return None, f"{type(reason).__name__}: {reason}"
    return torch.ops.deepspeed.inference_all_reduce_, ""


class Timed:
    """A sum over the ranks that keeps the time of each call."""

    def __init__(self, frame, call) -> None:
        self.frame, self.call, self.samples = frame, call, []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.samples.append(self.frame.sample(lambda: self.call(x)))
        return x


def inference(frame, quick: bool) -> None:
    """A transformer of 8 layers of which each rank has half: time per sum, for one word and for a prompt of 128, and per pass."""
    shared, reason = _deepspeed(frame)
    if shared is None:
        if frame.rank == 0:
            print("note DeepSpeed: " + " ".join(reason.split())[:300], flush=True)
        return
    calls = {"deepspeed": shared, "ours": abcomm.torch.reducer(frame.ours), "dist": dist.all_reduce}
    for dtype in (torch.float32, torch.bfloat16):
        for words in (1, 128):
            _infer(frame, calls, dtype, words, max(int(30 * frame.scale), 3))
    # DeepSpeed leaves its memory behind.
    for path in Path("/dev/shm").glob(f"deepspeed_*_{os.environ['MASTER_PORT']}_{frame.rank}"):
        path.unlink(missing_ok=True)


@torch.inference_mode()
def _infer(frame, calls, dtype: torch.dtype, words: int, passes: int) -> None:
    torch.manual_seed(6 + frame.rank)
    layers = torch.nn.Sequential(*(Block(512, 8, frame.size) for _ in range(8))).to(dtype)
    timed = {name: Timed(frame, call) for name, call in calls.items()}
    whole, last = {name: [] for name in calls}, {}
    for turn in range(passes + 2):
        x = torch.randn(1, words, 512, generator=torch.Generator().manual_seed(turn)).to(dtype)
        for name in random.Random(turn).sample(sorted(calls), len(calls)):
            for way, target in ((timed, None), (calls, whole)):
                for layer in layers:
                    layer.summed = way[name] if way is timed else lambda y, call=calls[name]: (call(y), y)[1]
                taken = frame.sample(lambda: last.__setitem__(name, layers(x)))
                if target is not None and turn >= 2:
                    target[name].append(taken)
        if turn < 2:
            for some in timed.values():
                some.samples.clear()
    wrong = not torch.allclose(last["ours"].float(), last["deepspeed"].float(), rtol=0.1, atol=0.1)
    size, kind = words * 512 * dtype.itemsize, str(dtype).removeprefix("torch.")
    per_call = {name: frame.joined(some.samples) for name, some in timed.items()}
    frame.tell(part="inference", what=f"sum of {words} x 512 {kind}", bytes=size, wrong=int(wrong), **per_call)
    frame.tell(part="inference", what=f"pass of {words} words, {kind}", bytes=size, wrong=int(wrong),
               **{name: frame.joined(some) for name, some in whole.items()})
