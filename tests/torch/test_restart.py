"""test_restart.py - ranks that are killed and started again by torchrun never meet what dead attempts have left in its store."""
import socket
import sys

import pytest

from conftest import HERE, run, torchrun


def finished(code, said):
    return code == 0 and said.count("fine attempt 2") == 2 and "terminate called" not in said


@pytest.mark.parametrize("number", range(4))
def test_store_of_the_agent(number):
    code, said = torchrun(2, HERE / "restarting.py", restarts=2)
    assert finished(code, said), said


def test_static_rendezvous():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    code, said = run([sys.executable, "-m", "torch.distributed.run", "--master-addr=127.0.0.1", f"--master-port={port}",
                      "--nproc-per-node=2", "--max-restarts=2", HERE / "restarting.py"])
    assert finished(code, said), said
