"""suite_rank.py - one test of torch's own DistributedTest, as one rank: what suite.py's forked processes do.

suite.py imports torch and this module once, then forks the ranks of each test. A rank makes its group with the backend under test, runs
the test method, and writes down as JSON how it ended, how many calls the backend counted, and who made a Gloo group.

torch decides by the backend's name which tests are for it. `load` opens those gates: the test methods are defined as if the backend
were called GATES ("gloo", or "mpi" for all_to_all), and run on the real one.
"""
from __future__ import annotations

import faulthandler
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import types
import unittest
from datetime import timedelta
from pathlib import Path
from typing import Any

from watch import GlooWatch

# Tests whose body asks for the name as well, with no answer for a name that it does not know. They get the gates' name to the end.
NAME_INSIDE = ("test_accumulate_gradients_no_sync",)
GROUP_TIMEOUT = 60     # seconds, unless the test has its own
BARRIER_TIMEOUT = 30   # seconds that a rank waits for the others between two parts of a test
SKIPPED, FAILED, DONE = 3, 1, 0


def load(backend: str, gates: str, module: str) -> tuple[types.ModuleType, type]:
    """torch's test module and its test class, opened for the backend; sets the names for good, so once a process."""
    if module:
        importlib.import_module(module)
    import torch.testing._internal.common_distributed as common

    for feature in ("ddp", "subgroup", "plugin"):
        common.DistTestCases.backend_feature[feature] |= {backend, gates}
    os.environ["BACKEND"] = gates
    import torch.testing._internal.distributed.distributed_test as tests

    # The profiler must show our messages, too. For collectives the tests ask for a mark on the event that only C++ can set.
    tests.SEND_RECV_PROFILING_SUPPORTED_BACKENDS.append(backend)

    class Suite(tests.TestDistBackend, tests.DistributedTest._DistTestBase):  # type: ignore[misc]
        """Its tests run in processes of this file; the barrier is one of theirs."""

        meeting: Any = None

        def _barrier(self, *arguments: Any, wait_for: int | None = None, timeout: float = BARRIER_TIMEOUT) -> None:
            if wait_for is not None:
                super()._barrier(*arguments, wait_for=wait_for, timeout=timeout)
            else:
                self.meeting.wait(max(timeout, BARRIER_TIMEOUT))

    return tests, Suite


def why_skipped(suite: type, name: str) -> str | None:
    """The reason of a test that its decorators leave out, known without running it."""
    method = getattr(suite, name)
    return method.__unittest_skip_why__ if getattr(method, "__unittest_skip__", False) else None


def skip_text(code: object) -> str | None:
    """What torch means by an exit code."""
    from torch.testing._internal.common_distributed import TEST_SKIPS

    return next((skip.message for skip in TEST_SKIPS.values() if skip.exit_code == code), None)


def counted(backend: str, watch: GlooWatch) -> int:
    """How many operations the backend itself has counted in this process."""
    if backend == "gloo":
        return watch.calls()
    report = importlib.import_module(f"{backend}.torch").report
    return sum(row["calls"] for row in report(as_dict=True)["operations"].values())


def run_method(case: unittest.TestCase, name: str) -> dict[str, Any]:
    """Run the test method; its outcome."""
    try:
        getattr(case, name)()
    except unittest.SkipTest as skip:
        return {"result": "skip", "reason": str(skip)}
    except SystemExit as end:
        text = skip_text(end.code)
        if text is not None:
            return {"result": "skip", "reason": text}
        return {"result": "fail" if end.code else "pass", "reason": f"exit code {end.code}" if end.code else ""}
    except BaseException as error:
        traceback.print_exc()
        return {"result": "fail", "reason": f"{type(error).__name__}: {error}"}
    return {"result": "pass", "reason": ""}


def run_rank(loaded: tuple[types.ModuleType, type], name: str, rank: int, world: int, backend: str, folder: Path,
             meeting: Any) -> None:
    """The whole life of a forked rank; does not return."""
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    outcome: dict[str, Any] = {"result": "fail", "reason": "the rank ended before its test did"}
    try:
        outcome = take_part(loaded, name, rank, world, backend, folder, meeting)
    except BaseException as error:
        traceback.print_exc()
        outcome = {"result": "fail", "reason": f"{type(error).__name__}: {error}"}
    finally:
        (folder / f"rank{rank}.json").write_text(json.dumps(outcome), encoding="utf-8")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit({"pass": DONE, "skip": SKIPPED}.get(outcome["result"], FAILED))


def take_part(loaded: tuple[types.ModuleType, type], name: str, rank: int, world: int, backend: str, folder: Path,
              meeting: Any) -> dict[str, Any]:
    """Make the group, run the test, end the group; the outcome with what was counted."""
    import torch
    import torch.distributed as dist
    from torch.testing._internal.common_utils import set_rng_seed

    tests, suite = loaded
    watch = GlooWatch(keep=backend == "gloo")
    watch.install()
    suite.meeting = meeting  # type: ignore[attr-defined]
    case = suite(name)
    case.rank, case.file_name = rank, str(folder / "store")  # type: ignore[attr-defined]
    seconds = tests.CUSTOM_PG_TIMEOUT.get(name, GROUP_TIMEOUT)
    dist.init_process_group(backend, init_method=f"file://{folder}/store", world_size=world, rank=rank,
                            timeout=timedelta(seconds=seconds))
    if not name.startswith(NAME_INSIDE):
        os.environ["BACKEND"] = tests.BACKEND = backend
    torch._C._set_print_stack_traces_on_fatal_signal(True)
    set_rng_seed()
    case._barrier()  # type: ignore[attr-defined]
    outcome = run_method(case, name)
    if outcome["result"] == "fail":
        meeting.abort()  # the others need not wait for this one
        return outcome
    case._barrier()  # type: ignore[attr-defined]
    outcome.update(calls=counted(backend, watch), gloo=watch.made if backend != "gloo" else [])
    watch.kept.clear()
    if dist.is_initialized():
        dist.destroy_process_group()
    outcome["threads"] = threading.active_count()
    return outcome


def meeting_point(world: int) -> Any:
    """A barrier for processes that are forked later."""
    return multiprocessing.get_context("fork").Barrier(world)
