"""glooed.py - a program that knows nothing of abcomm and asks for gloo by name; run under torchrun."""
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=60))
rank, size = dist.get_rank(), dist.get_world_size()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
model(torch.ones(3, 4)).sum().backward()
side = dist.new_group(backend="gloo")
x = torch.full((3,), float(rank))
dist.all_reduce(x, group=side)
assert x.tolist() == [sum(range(size))] * 3
dist.monitored_barrier(side)
dist.distributed_c10d._set_pg_timeout(timedelta(seconds=50), side)
dist.barrier(group=side)
assert dist.get_backend() == dist.get_backend(side) == side.name() == "gloo"
assert isinstance(side, dist.ProcessGroupGloo) and dist.ProcessGroupGloo.create_device is not None
calls = sys.modules["abcomm.torch"].report(as_dict=True)["operations"]
assert calls["all_reduce"]["calls"] >= 2 and calls["barrier"]["calls"] >= 1, calls
dist.destroy_process_group()
print("fine\n", end="", flush=True)
