"""watch.py - notes which code of a process makes groups of torch's Gloo, so that tests can show that nothing ran on it by mistake."""
from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any


class GlooWatch:
    """Notes every Gloo group that this process makes, and by which code."""

    def __init__(self, keep: bool) -> None:
        self.made: list[str] = []
        self.kept: list[Any] = []
        self.keep = keep

    def install(self) -> None:
        """Take the place of the class that torch's own code calls."""
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        watch, real = self, c10d.ProcessGroupGloo

        class Watched(real):  # type: ignore[valid-type,misc]
            def __init__(self, *arguments: Any, **named: Any) -> None:
                watch.made.append(caller())
                super().__init__(*arguments, **named)
                if watch.keep:
                    watch.kept.append(self)

        c10d.ProcessGroupGloo = dist.ProcessGroupGloo = Watched

    def calls(self) -> int:
        """Operations of all groups that were kept."""
        return sum(group._get_sequence_number_for_group() for group in self.kept)


def caller() -> str:
    """The nearest function outside of torch's group machinery."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.endswith(("distributed_c10d.py", "watch.py", "c10d_logger.py", "contextlib.py")):
            return f"{Path(frame.filename).name}:{frame.name}"
    return "unknown"
