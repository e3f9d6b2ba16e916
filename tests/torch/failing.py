"""failing.py - ranks of which one ends badly, each way one function; the others must hear of it, soon, and say so.

Started as `failing.py CASE...`: each case is three ranks, forked from this process, which has torch imported. A rank that has met what it
must says "told" and how long that took. At the end one line of JSON: {case: [[exit code, what the rank printed]]}.
"""
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist

import abcomm.torch  # noqa: F401  registers the backend

CULPRIT = 1


def expect(call, *words, kind=dist.DistBackendError, within=15.0):
    """The call must raise such an error, with these words in its text, within the time."""
    begin = time.monotonic()
    try:
        call()
    except kind as error:
        missing = [word for word in words if word not in str(error)]
        assert not missing, f"{missing} not in: {error}"
        took = time.monotonic() - begin
        assert took < within, f"told after {took:.1f} seconds"
        print(f"told after {took:.2f} s: {error}", flush=True)
        return
    raise AssertionError("nothing was raised")


def killed():
    """A rank is killed while the others wait for it, and while one has a future."""
    rank = dist.get_rank()
    if rank == CULPRIT:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        expect(lambda: dist.all_reduce(torch.ones(4)), "rank 1", "all_reduce", "host")
    else:
        future = dist.all_reduce(torch.ones(4), async_op=True).get_future()
        expect(future.wait, "rank 1", "all_reduce", kind=RuntimeError)
    expect(lambda: dist.barrier(), "rank 1", "barrier")


def killed_in_backward():
    """A rank is killed while DDP averages gradients."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1000, 1000))
    model(torch.ones(2, 1000)).sum().backward()
    if dist.get_rank() == CULPRIT:
        os.kill(os.getpid(), signal.SIGKILL)
    expect(lambda: model(torch.ones(2, 1000)).sum().backward(), "rank 1", kind=RuntimeError)


def hung():
    """A rank does not come; everybody is told at the end of the timeout, the late one when it comes."""
    if dist.get_rank() == CULPRIT:
        time.sleep(5)
        expect(lambda: dist.all_reduce(torch.ones(4)), "all_reduce")
    else:
        expect(lambda: dist.all_reduce(torch.ones(4)), " Timed out ", "rank 1", "all_reduce", within=5)


def mismatched():
    """Ranks call with different sizes, or different operations."""
    group = dist.new_group()
    expect(lambda: dist.all_reduce(torch.ones(4 + dist.get_rank()), group=group), "all")
    rank = dist.get_rank()
    expect(lambda: dist.all_reduce(torch.ones(4)) if rank == 0 else dist.broadcast(torch.ones(4), 0), "broadcast", "allreduce")


def raising():
    """A rank ends with an exception of its own."""
    if dist.get_rank() == CULPRIT:
        raise SystemExit("enough")
    expect(lambda: dist.barrier(), "rank 1")


def missing():
    """A rank does not come to the creation of a group."""
    if dist.get_rank() == CULPRIT:
        time.sleep(4)
        return
    kind = (dist.DistStoreError, dist.DistNetworkError)
    expect(lambda: dist.new_group(timeout=timedelta(seconds=2)), "rank", kind=kind)


def aborted():
    """A rank aborts."""
    if dist.get_rank() == CULPRIT:
        time.sleep(0.5)
        dist.group.WORLD.abort()
        expect(lambda: dist.barrier(), "abort")
    else:
        expect(lambda: dist.all_reduce(torch.ones(3)), "rank 1", "abort")


def rank_main(case):
    dist.init_process_group("abcomm", timeout=timedelta(seconds=2 if case == "hung" else 60))
    dist.barrier()
    globals()[case]()
    dist.destroy_process_group()


def forked(case, output):
    """The life of a rank; does not return."""
    os.dup2(output.fileno(), 1)
    os.dup2(output.fileno(), 2)
    code = 0
    try:
        rank_main(case)
    except SystemExit:
        code = 3
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def ended(pid, end):
    """The exit code of a child, which is killed if it is there at the end."""
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hangs"


def run_case(case, count=3, limit=60):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]), WORLD_SIZE=str(count))
    outputs = [tempfile.TemporaryFile("w+", errors="replace") for _ in range(count)]
    children = []
    for rank, output in enumerate(outputs):
        os.environ["RANK"] = str(rank)
        children.append(os.fork())
        if children[-1] == 0:
            forked(case, output)
    end, done = time.monotonic() + limit, []
    codes = [ended(pid, end) for pid in children]
    for code, output in zip(codes, outputs):
        output.seek(0)
        done.append([code, output.read()])
    return done


if __name__ == "__main__":
    print(json.dumps({case: run_case(case) for case in sys.argv[1:]}))
