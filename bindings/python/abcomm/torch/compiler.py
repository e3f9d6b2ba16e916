"""compiler.py - keeps torch.compile away from this package.

Inside a compiled program C++ calls the methods of a group, for instance to send the buffers of a DistributedDataParallel module. Python
frames that begin there look to torch.compile like code of the program. It would trace into them, and fail. So their code objects are
marked: they and all that they call run as they are. torch.compile's own import, which takes a second, is not needed for that.
"""
from __future__ import annotations

import logging
import types

import torch

_log = logging.getLogger("abcomm.torch")


def leave_alone(*classes: type) -> None:
    """Mark all methods of these classes."""
    try:
        frames = torch._C._dynamo.eval_frame
        strategy = frames._FrameExecStrategy(frames._FrameAction.SKIP, frames._FrameAction.SKIP)
        mark = frames.set_code_exec_strategy
    except (AttributeError, TypeError) as error:  # a torch that does this in another way
        _log.info("abcomm: torch.compile may trace into this package: %s", error)
        return
    for kind in classes:
        for member in vars(kind).values():
            if isinstance(member, types.FunctionType):
                mark(member.__code__, strategy)
