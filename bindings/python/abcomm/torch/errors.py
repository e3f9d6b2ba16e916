"""errors.py - from the library's exceptions to the types that torch programs catch.

What a caller did wrong is a ValueError, as it is for gloo. What happened to a group is a torch.distributed.DistBackendError with the
library's text, which names rank, host and operation. Trouble of the start-up is a DistNetworkError or, of the Store, a DistStoreError.
"""
from __future__ import annotations

import torch.distributed as dist

import abcomm

_NO_MEMORY = (". The tensor has elements and no memory: its storage was freed (resize_(0), as FSDP does between its uses), or it is a "
              "fake one, or a wrapper as DTensor is, of which x.to_local() has the memory")
_CALLER = (abcomm.ArgumentError, abcomm.UnsupportedError)


def translated(error: abcomm.Error, operation: str, group: str) -> Exception:
    """The exception to raise for what an operation of a group has ended with."""
    what = "Timed out after its limit: " if isinstance(error, abcomm.TimeoutError) else ""
    text = f"abcomm {operation} on group {group}: {what}{error}"
    if isinstance(error, abcomm.ArgumentError) and "buffer is null" in text:
        text += _NO_MEMORY
    if isinstance(error, abcomm.ArgumentTypeError):
        return TypeError(text)
    return ValueError(text) if isinstance(error, _CALLER) else dist.DistBackendError(text)


def of_creation(error: abcomm.Error, rank: int, size: int, group: str) -> Exception:
    """The exception to raise when a group could not be made."""
    kind = dist.DistBackendError
    if isinstance(error, (abcomm.TimeoutError, abcomm.AddressError, abcomm.AuthenticationError, abcomm.PeerError)):
        kind = dist.DistNetworkError
    return kind(f"abcomm cannot make group {group} (rank {rank} of {size}): {error}")
