"""store.py - how the ranks of a group find each other over torch's Store, which may be full of what dead attempts have left.

Every rank writes a fresh random word, its hello. Rank 0 publishes an offer: its address, the key that authenticates the ranks, and the
hellos that it has read. A rank believes an offer only if its own hello is in it, and says so; else it looks again. Rank 0 looks
again, too, until all have said so. So no rank follows an address of another attempt, whatever the keys hold, and the group's first
connection is made to a process that is there. The job key is as safe as the Store.
"""
from __future__ import annotations

import json
import os
import secrets
import socket
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

import abcomm
from abcomm.torch import errors

_PAUSE_MIN, _PAUSE_MAX = 0.001, 0.05


def _where() -> str:
    """What two processes have in common if they can reach each other's addresses: kernel and network namespace."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return f"{file.read().strip()} {os.stat('/proc/self/ns/net').st_ino}"


def _attempt() -> str:
    """What torchrun calls this attempt; every restart has other keys."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


class _Meeting:
    """One rank's part in the meeting of a group."""

    def __init__(self, store: dist.Store, rank: int, size: int, seconds: float) -> None:
        self.store, self.rank, self.size = store, rank, size
        self.end = time.monotonic() + seconds
        self.prefix = f"abcomm/{_attempt()}"
        self.hello = secrets.token_hex(16)
        self.pause = _PAUSE_MIN

    def key(self, name: str, rank: int = 0) -> str:
        return f"{self.prefix}/{name}/{rank}"

    def wait(self, names: list[str], who: str) -> None:
        """Block until all keys exist."""
        left = self.end - time.monotonic()
        try:
            self.store.wait(names, timedelta(seconds=max(left, 0.01)))
        except RuntimeError as error:
            if time.monotonic() < self.end:
                raise dist.DistStoreError(f"abcomm: the Store failed while rank {self.rank} waited for {who}: {error}") from error
            raise dist.DistStoreError(f"abcomm: rank {self.rank} of {self.size} waited in vain for {self.missing(names, who)}; see "
                                      "that all ranks reach the group's creation, or give it a larger timeout") from error

    def missing(self, names: list[str], who: str) -> str:
        try:
            ranks = [name.rsplit("/", 1)[1] for name in names if not self.store.check([name])]
        except RuntimeError:
            return who
        return f"{who}, missing: rank {', '.join(ranks)}" if ranks else who

    def read(self, names: list[str]) -> list[str]:
        many = self.store.multi_get(names) if self.store.has_extended_api() else [self.store.get(name) for name in names]
        return [value.decode("ascii") for value in many]

    def rest(self, who: str) -> None:
        """Between two looks at keys that exist but are not those of this attempt."""
        if time.monotonic() > self.end:
            raise dist.DistStoreError(f"abcomm: rank {self.rank} of {self.size} found only what an earlier attempt has left of {who}; "
                                      "see that all ranks reach the group's creation, or give it a larger timeout")
        time.sleep(self.pause)
        self.pause = min(2 * self.pause, _PAUSE_MAX)

    def invite(self) -> dict[str, Any]:
        """Rank 0: make the offer, until all the others have taken it."""
        offer: dict[str, Any] = {"address": f"unix:@abcomm-torch-{secrets.token_hex(16)}", "key": secrets.token_hex(32),
                                 "where": _where(), "host": socket.gethostname(), "offer": self.hello, "hellos": None}
        hellos = [self.key("hello", rank) for rank in range(1, self.size)]
        taken = [self.key("taken", rank) for rank in range(1, self.size)]
        self.wait(hellos, "the other ranks")
        while True:
            seen = self.read(hellos)
            if seen != offer["hellos"]:
                offer["hellos"] = seen
                self.store.set(self.key("offer"), json.dumps(offer))
            self.wait(taken, "the other ranks' answers")
            if all(answer == self.hello for answer in self.read(taken)):
                return offer
            self.rest("the other ranks")

    def accept(self) -> dict[str, Any]:
        """The others: wait for an offer that knows this rank."""
        self.store.set(self.key("hello", self.rank), self.hello)
        self.wait([self.key("offer")], "rank 0")
        while True:
            offer: dict[str, Any] = json.loads(self.read([self.key("offer")])[0])
            if len(offer["hellos"]) == self.size - 1 and offer["hellos"][self.rank - 1] == self.hello:
                self.store.set(self.key("taken", self.rank), offer["offer"])
                return offer
            self.rest("rank 0")


def communicator(store: dist.Store, rank: int, size: int, seconds: float, group: str) -> abcomm.Communicator:
    """The communicator of a group, made with the other ranks within these seconds."""
    end = time.monotonic() + seconds
    try:
        if size == 1:
            return abcomm.Communicator(0, 1, timeout=seconds, progress_thread=True)
        meeting = _Meeting(store, rank, size, seconds)
        offer = meeting.invite() if rank == 0 else meeting.accept()
        if offer["where"] != _where():
            raise dist.DistBackendError(f"abcomm cannot make group {group}: rank {rank} runs on {socket.gethostname()} and rank 0 on "
                                        f"{offer['host']}, or in another network namespace; abcomm works within one host")
        return abcomm.Communicator(rank, size, offer["address"], key=bytes.fromhex(offer["key"]),
                                   connect_timeout=max(end - time.monotonic(), 1.0), timeout=seconds, progress_thread=True)
    except abcomm.Error as error:
        raise errors.of_creation(error, rank, size, group) from error
