"""abcomm.torch - PyTorch's collectives on abcomm: one import, one name.

    import abcomm.torch
    import torch.distributed as dist

    dist.init_process_group("abcomm")            # under torchrun, spawn or fork

See docs/pytorch.md.
"""
try:
    import torch.distributed as _dist
except ImportError as error:
    raise ImportError("abcomm.torch needs PyTorch 2.9 or newer: pip install torch") from error

if not _dist.is_available():
    raise ImportError("abcomm.torch: this PyTorch was built without torch.distributed; install another build of it")

from abcomm.torch import compiler as _compiler  # noqa: E402
from abcomm.torch.base import BACKEND, Base as _Base  # noqa: E402
from abcomm.torch.direct import reducer  # noqa: E402
from abcomm.torch.gloo import replace_gloo  # noqa: E402
from abcomm.torch.group import Group, register  # noqa: E402
from abcomm.torch.memory import arena, empty, empty_like, full, ones, zeros, zeros_like  # noqa: E402
from abcomm.torch.parallel import use_arena  # noqa: E402
from abcomm.torch.report import report  # noqa: E402
from abcomm.torch.work import Done as _Done, Work  # noqa: E402

_compiler.leave_alone(_Base, Group, Work, _Done)
register()

__all__ = ["BACKEND", "Group", "Work", "arena", "empty", "empty_like", "full", "ones", "reducer", "replace_gloo", "report",
           "use_arena", "zeros", "zeros_like"]
