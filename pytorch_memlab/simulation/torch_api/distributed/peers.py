"""Messages between simulated ranks: what one process sends, others receive.

Note [Ranks side by side]
The ranks that ``torchrun`` or the program itself starts, and those that ``fit --ranks`` runs, are
processes that simulate one rank each. What they tell each other goes through a ``TCPStore``, that
of ``torchrun`` or one of this package: objects, and tensors whose values the receiver can have. A
tensor without values is not sent, and no rank waits for it. A rank that runs alone has no peers.

The ranks that run are those between which a program differs. The others are taken to hold what this
one holds, as in Note [One rank for many].
"""

from __future__ import annotations

import json
import os
import pickle
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from ...._common.process.ranks import this_rank

VARIABLE: Final = "PYTORCH_MEMLAB_PEERS"
"""Of a rank that ``fit --ranks`` or ``spawn`` runs: where the store is, and which ranks run."""

_real_store: Any = vars(dist)["TCPStore"]
_PrefixStore: Any = vars(dist)["PrefixStore"]
_PART: Final = 4 * 2**20  # bytes of a value in the store, which takes at most 8 MiB
_PATIENCE: Final = 600.0  # seconds that a rank waits for another one, as with NCCL
_PAUSES: Final = (0.001, 0.05)  # seconds between two looks, at first and at most
_LOOK: Final = 2.0  # seconds between two looks at which rank waits for which
_MOST_REPEATED: Final = 65_536  # bytes of a message that a rank which has ended may send again
_ENDED_WELL: Final = b"ended"


class RankHasEndedError(RuntimeError):
    """Another rank has ended without sending what this one waits for."""


class Peers:
    """The other ranks of a job, as far as they run."""

    def __init__(
        self,
        store: Any,  # where the messages are
        rank: int,  # of this process
        beside: Iterable[int],  # the ranks that run at the same time
        before: Iterable[int] = (),  # the ranks that have run
    ) -> None:
        self._store = store
        self._rank = rank
        self.process = os.getpid()
        self.beside = frozenset(beside) - {rank}
        self.known = self.beside | frozenset(before)
        self._sent: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._last: dict[str, bytes] = {}

    def send(self, channel: str, message: bytes) -> None:
        """Send the next message of a channel; nothing waits."""
        name = f"{channel}/{self._sent[channel]}"
        self._sent[channel] += 1
        parts = range(_PART, len(message), _PART)
        for begin in parts:
            self._store.set(f"{name}+{begin}", message[begin : begin + _PART])
        self._store.set(name, pickle.dumps((len(message), message[:_PART])))

    def claim(self, channel: str) -> int:
        """The number of the next message of a channel, for `receive`."""
        number = self._taken[channel]
        self._taken[channel] += 1
        return number

    def receive(self, channel: str, number: int, sender: int, call: str) -> bytes:
        """Wait for a message of a rank."""
        # Raises RankHasEndedError if the sender has ended, if it waits for this rank, or if nothing
        # came for ten minutes.
        name = f"{channel}/{number}"
        if not self._store.check([name]):
            ended = self._wait(name, sender, call)
            if ended is not None:
                return self._sent_before(channel, sender, call, ended)
        message: bytes
        size, message = pickle.loads(self._store.get(name))  # noqa: S301 - a rank of this job
        for begin in range(_PART, size, _PART):
            message += self._store.get(f"{name}+{begin}")
        if len(message) <= _MOST_REPEATED:
            self._last[channel] = message
        return message

    def _wait(self, name: str, sender: int, call: str) -> bytes | None:
        """Wait for a message; how its sender has ended if it does not come."""
        begun = time.monotonic()
        pause, most = _PAUSES
        waits = _key_of_wait(self._rank)
        circle: list[int] = []
        next_look = begun + _LOOK
        try:
            while not self._store.check([name]):
                now = time.monotonic()
                if pause >= most:
                    self._store.set(waits, str(sender))
                    ended = self._end_of(sender)
                    # A message that was sent before the end may have come since the last look.
                    if ended is not None and not self._store.check([name]):
                        return ended
                if now > next_look:
                    next_look = now + _LOOK
                    before, circle = circle, self._circle(sender)
                    if circle and circle == before and not self._store.check([name]):
                        others = ", ".join(map(str, circle))
                        raise RankHasEndedError(
                            f"{call}: ranks {others} and {self._rank} wait for each other"
                        )
                if now > begun + _PATIENCE:
                    raise RankHasEndedError(
                        f"{call}: rank {self._rank} has waited for rank {sender} for"
                        f" {_PATIENCE:.0f} s"
                    )
                time.sleep(pause)
                pause = min(2 * pause, most)
        finally:
            self._store.set(waits, "")
        return None

    def _circle(self, rank: int) -> list[int]:
        """The ranks that wait for one another, from one for which this rank waits back to it."""
        ranks: list[int] = []
        while rank != self._rank:
            key = _key_of_wait(rank)
            waited_for = self._store.get(key) if self._store.check([key]) else b""
            if not waited_for or rank in ranks:
                return []
            ranks.append(rank)
            rank = int(waited_for)
        return ranks

    def _sent_before(self, channel: str, sender: int, call: str, ended: bytes) -> bytes:
        """The last message of a rank whose steps repeat; a failed one sends nothing more."""
        if ended == _ENDED_WELL and channel in self._last:
            return self._last[channel]
        reason = "" if ended == _ENDED_WELL else f": {ended.decode()}"
        raise RankHasEndedError(
            f"{call}: rank {sender}, from which rank {self._rank} receives, has ended{reason}"
        )

    def _end_of(self, rank: int) -> bytes | None:
        key = _key_of_end(rank)
        if not self._store.check([key]):
            return None
        ended: bytes = self._store.get(key)
        return ended

    def end(self) -> None:
        """Tell the others that this rank sends nothing more."""
        with suppress(RuntimeError):  # the process with the store has ended before
            _tell_end(self._store, self._rank, "")


def _key_of_wait(rank: int) -> str:
    return f"waits/{rank}"


def _key_of_end(rank: int) -> str:
    return f"ended/{rank}"


def tell_end(store: Any, prefix: str, rank: int, problem: str = "") -> None:
    """Let no rank wait for one that has ended, with an error or without; the first word counts."""
    _tell_end(_PrefixStore(prefix, store), rank, problem)


def tell_own_end(port: int, prefix: str, rank: int, problem: str) -> None:
    """The same from another process than that of the store."""
    with suppress(RuntimeError):  # the process with the store has ended before
        _tell_end(connect(port, prefix), rank, problem)


def _tell_end(store: Any, rank: int, problem: str) -> None:
    store.compare_set(_key_of_end(rank), b"", problem.encode() or _ENDED_WELL)


def make_store() -> Any:
    """A store for the ranks that this process will start; its address is in ``port``."""
    return _real_store("127.0.0.1", 0, None, is_master=True, wait_for_workers=False)


def connect(port: int, prefix: str) -> Any:
    """A store of one set of ranks, in that of this machine with some port."""
    store = _real_store("127.0.0.1", port, None, is_master=False, wait_for_workers=False)
    return _PrefixStore(prefix, store)


def address(
    port: int,
    prefix: str,
    beside: Iterable[int],
    before: Iterable[int],
    world_size: int | None = None,
) -> str:
    """The value of ``VARIABLE`` for ranks beside each other; of a world of this size, if given."""
    return json.dumps([port, prefix, sorted(beside), sorted(before), world_size])


_found: list[Peers | None] = []


def peers() -> Peers | None:
    """The other ranks, if any run; they are looked for once in a simulation."""
    if not _found:
        _found.append(_connected())
    return _found[0]


def leave() -> None:
    """Tell the other ranks that the simulation has ended, and forget them."""
    if _found:
        own = _found.pop()
        if own is not None and own.process == os.getpid():  # not in a fork, such as a data loader
            own.end()


def _connected() -> Peers | None:
    text = os.environ.get(VARIABLE)
    if text:
        port, prefix, beside, before, world_size = json.loads(text)
        if world_size not in (None, dist.get_world_size()):  # of several machines
            return None
        return Peers(connect(port, prefix), dist.get_rank(), beside, before)
    own = this_rank()
    if own.launcher != "torchrun" or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    if (own.rank, own.world_size) != (dist.get_rank(), dist.get_world_size()):
        return None
    if own.world_size < 2:
        return None
    name, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if not name or not port.isdecimal():
        return None
    try:
        store = _real_store(name, int(port), None, is_master=False, timeout=timedelta(seconds=30))
    except RuntimeError:  # the launcher has no store there: the variables are those of another job
        return None
    prefix = f"pytorch-memlab/{own.attempt}"
    return Peers(_PrefixStore(prefix, store), own.rank, range(own.world_size))
