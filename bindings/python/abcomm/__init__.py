"""abcomm - collectives for data-parallel training: processes of one machine sum, gather and spread arrays through shared memory.

    import abcomm, numpy as np

    with abcomm.Communicator() as comm:          # under `abcomm run -n 4 python program.py`
        x = np.full(1000, comm.rank, "f4")
        comm.allreduce(x)                        # in place: the sum over all ranks, in rank order, the same bits everywhere

Arrays are what has the buffer protocol (NumPy, array.array, memoryview, abcomm.Memory) or DLPack on the CPU; nothing is copied.
See docs/python.md.
"""
import sys as _sys

if _sys.version_info < (3, 11) or _sys.implementation.name != "cpython":
    raise ImportError("abcomm needs CPython 3.11 or newer; this is %s %d.%d"
                      % (getattr(_sys, "implementation", _sys).name, _sys.version_info[0], _sys.version_info[1]))

from abcomm._errors import *  # noqa: E402,F403
from abcomm._abcomm import (  # noqa: E402
    Completions, Memory, Received, Request, ScaledSum, collectives, ops, types, version as __version__)
from abcomm._communicator import ANY_SOURCE, ANY_TAG, Communicator, Exchange, Group, group  # noqa: E402
from abcomm._operation import Operation  # noqa: E402
from abcomm._arrays import empty, full, ones, zeros  # noqa: E402
from abcomm import _errors  # noqa: E402

__all__ = [
    *_errors.__all__,
    "ANY_SOURCE",
    "ANY_TAG",
    "Communicator",
    "Completions",
    "Exchange",
    "Group",
    "Memory",
    "Operation",
    "Received",
    "Request",
    "ScaledSum",
    "collectives",
    "empty",
    "full",
    "group",
    "ones",
    "ops",
    "types",
    "zeros",
]
