"""spawned.py - ranks started by torch.multiprocessing, which meet over a TCPStore of their own."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as processes

import abcomm.torch  # noqa: F401  registers the backend


def rank_main(rank, size):
    dist.init_process_group("abcomm", rank=rank, world_size=size)
    x = torch.full((5,), float(rank))
    dist.all_reduce(x, dist.ReduceOp.MAX)
    assert x.tolist() == [size - 1.0] * 5
    dist.destroy_process_group()
    print("fine", flush=True)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    processes.spawn(rank_main, (3,), 3)
