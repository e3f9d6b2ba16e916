"""report.py - what a program has called, how much it moved, which way that went and what it cost this rank.

Each group counts in a table of its own, which outlives it. A row costs a call some additions and two looks at the clock; beyond the
first 16, of synchronous all_reduces only one in 16 looks at the clock, and stands for all of them (group.py).
"""
from __future__ import annotations

from typing import Any, Callable, Literal, TypeAlias, overload

import abcomm

Call: TypeAlias = tuple[Any, ...]


class Row:
    """One operation of one group."""

    __slots__ = ("asynchronous", "bytes", "call", "calls", "copied", "largest", "seconds", "way")

    def __init__(self) -> None:
        self.calls = self.asynchronous = self.copied = self.bytes = 0
        self.seconds = 0.0
        self.largest = -1
        self.call: Call | None = None
        self.way = ""

    def count(self, asynchronous: bool, copied: bool, size: int, call: Call | None, seconds: float) -> None:
        """One call more, with what it came to."""
        self.calls += 1
        self.asynchronous += asynchronous
        self.copied += copied
        self.bytes += size
        self.seconds += seconds
        if size > self.largest:
            self.largest, self.call = size, without_owners(call)


def without_owners(call: Call | None) -> Call | None:
    """The call as what can be explained later, when its tensors may be gone."""
    return call and tuple(part[:3] if isinstance(part, tuple) and len(part) == 4 else part for part in call)


class Usage:
    """What one group has done; groups of one name, one after another, share a table."""

    def __init__(self, group: str, rank: int, size: int, comm: abcomm.Communicator) -> None:
        self.group, self.rank, self.size = group, rank, size
        earlier = _all.get((group, rank, size))
        self.rows: dict[str, Row] = earlier.rows if earlier else {}
        self._comm: abcomm.Communicator | None = comm
        _all[group, rank, size] = self

    def row(self, operation: str) -> Row:
        """The row of an operation, which is there from its first call on."""
        found = self.rows.get(operation)
        if found is None:
            found = self.rows[operation] = Row()
        return found

    def explain(self) -> None:
        """Ask the library how the largest call of each operation is done, while it is there to be asked."""
        if self._comm is None or self._comm.closed:
            return
        explain: Callable[..., str] = self._comm.explain
        for row in self.rows.values():
            if row.call is None:
                continue
            try:
                row.way = explain(*row.call[:5], None, *row.call[5:])
            except abcomm.Error:
                row.way = ""
            row.call = None

    def close(self) -> None:
        """The communicator ends."""
        self.explain()
        self._comm = None

    def as_dict(self) -> dict[str, Any]:
        """For report."""
        self.explain()
        return {"group": self.group, "rank": self.rank, "ranks": self.size,
                "operations": {name: _of_row(row) for name, row in self.rows.items() if row.calls}}


_all: dict[tuple[str, int, int], Usage] = {}


def _of_row(row: Row) -> dict[str, Any]:
    return {"calls": row.calls, "asynchronous": row.asynchronous, "copied": row.copied, "bytes": row.bytes, "seconds": row.seconds,
            "path": row.way}


def _total(groups: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    total: dict[str, dict[str, Any]] = {}
    for group in groups:
        for name, row in group["operations"].items():
            if name not in total:
                total[name] = dict(row)
                continue
            for column in ("calls", "asynchronous", "copied", "bytes", "seconds"):
                total[name][column] += row[column]
    return total


def _text(groups: list[dict[str, Any]]) -> str:
    lines = []
    for group in groups:
        lines.append(f"abcomm: group {group['group']}, rank {group['rank']} of {group['ranks']}")
        lines.append(f"  {'operation':34}{'calls':>9}{'async':>9}{'copied':>8}{'MB':>12}{'us/call':>10}  path of the largest")
        for name, row in group["operations"].items():
            lines.append(f"  {name:34}{row['calls']:9}{row['asynchronous']:9}{row['copied']:8}{row['bytes'] / 1e6:12.3f}"
                         f"{row['seconds'] / row['calls'] * 1e6:10.1f}  {row['path']}")
    return "\n".join(lines) or "abcomm: no group has been made"


@overload
def report(as_dict: Literal[False] = False) -> str: ...
@overload
def report(as_dict: Literal[True]) -> dict[str, Any]: ...
def report(as_dict: bool = False) -> str | dict[str, Any]:
    """What this process has called on abcomm since it was imported, as a text or as a dict.

    The dict has "groups", each with group, rank, ranks and operations, and "operations", the sums over all groups. A row has calls,
    how many of them were asynchronous, how many needed copies because tensors were not contiguous, the bytes of this rank's larger
    buffer, the seconds inside the calls (of asynchronous ones only those until they returned; of synchronous all_reduces, beyond
    the first 16, one in 16 is timed and stands for all), and the algorithm of the largest call.
    """
    groups = [usage.as_dict() for usage in _all.values()]
    return {"groups": groups, "operations": _total(groups)} if as_dict else _text(groups)
