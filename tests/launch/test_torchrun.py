#!/usr/bin/env python3
"""test_torchrun.py - the hello example under a real torchrun: one agent, two agents that share a store, and a restart of all ranks.

usage: test_torchrun.py BUILD ROOT. torch comes from BUILD/torch/venv, which tests/torch uses too, or ABC_TEST_TORCH=DIR, or is installed.
"""
import os
import socket
import sys
import tempfile
import threading

from launchers import BUILD, HELLO, ROOT, case, expect_sums, finish, run

sys.path.insert(0, os.path.join(ROOT, "tests", "torch"))
import place  # noqa: E402


def torchrun(*options):
    return [str(place.environment(BUILD).parent / "torchrun"), "--no-python", *options]


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def one_agent():
    expect_sums([*torchrun("--standalone", "--nproc-per-node", "3"), HELLO], 3)


def one_agent_static():
    expect_sums([*torchrun("--nnodes", "1", "--nproc-per-node", "2", "--master-port", str(free_port())), HELLO], 2)


def two_agents():
    """As on two machines: the ranks find each other over the store of the first agent."""
    port, results = free_port(), {}

    def agent(number):
        results[number] = run([*torchrun("--nnodes", "2", "--node-rank", str(number), "--master-addr", "127.0.0.1", "--master-port",
                                         str(port), "--nproc-per-node", "1"), HELLO], ABCOMM_DEBUG="INFO", ABCOMM_SOCKET_IFNAME="=lo")

    torchrun()  # a skip belongs to this thread
    threads = [threading.Thread(target=agent, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        code, output = results[number]
        assert code == 0 and f"rank {number} of 2: the sum is 3" in output, f"agent {number}: exit code {code}\n{output}"
        assert "by the launcher's store" in output, output


def restart():
    """The first attempt ends with an error on one rank after the communicator is there; the second must not meet the first."""
    with tempfile.TemporaryDirectory() as folder:
        script = f'{HELLO}; test "$TORCHELASTIC_RESTART_COUNT" != 0 || test "$RANK" = 0 || exit 3; touch {folder}/good.$RANK'
        code, output = run([*torchrun("--standalone", "--nproc-per-node", "2", "--max-restarts", "1"), "/bin/sh", "-c", script])
        assert code == 0 and output.count("of 2: the sum is 3") == 4, f"exit code {code}\n{output}"
        assert os.path.exists(f"{folder}/good.1"), output


case("torchrun --standalone", one_agent)
case("torchrun, static", one_agent_static)
case("torchrun, two agents", two_agents)
case("torchrun, restart", restart)
finish()
