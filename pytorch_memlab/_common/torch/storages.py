"""Storages' birth and death: what is known of a tensor's memory for as long as it lives."""

from __future__ import annotations

import atexit
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any, Final, Generic, TypeVar

import torch
from torch._C import _functorch as functorch

from ..frames.hidden_calls import hidden, is_incurious
from ..interrupts.stack_room import check_room
from ..interrupts.uninterrupted import STANDARD_SIGNALS, held, uninterrupted

T = TypeVar("T")

_untyped_storage = torch._C.TensorBase.untyped_storage
_references = sys.getrefcount

host_address: Callable[[torch.UntypedStorage], int] = vars(torch._C.StorageBase)["data_ptr"]
"""Where the bytes of a storage are in this process, also of one that a simulated GPU holds."""

_kept: list[BaseException] = []
"""What signals' handlers raised where Python would have swallowed it."""


def raise_kept() -> None:
    """Raise what a signal's handler raised while a storage died, in the thread of handlers."""
    if _kept and threading.current_thread() is threading.main_thread():
        raise _kept.pop(0)


_to_die: dict[int, weakref.ref[Any]] = {}
atexit.register(_to_die.clear)  # what dies later finds modules that Python has emptied


def after_death(living: object, work: Callable[[], object]) -> None:
    """Do some work when an object has died; an interrupt in it is raised by `raise_kept`."""
    # An interrupt in the beginning of a ``weakref.finalize`` would end it before it has begun. The
    # work is done once more after an error.
    key = id(living)
    waiting = _work_after_death(key, work)
    next(waiting)
    _to_die[key] = weakref.ref(living, waiting.send)


def _work_after_death(key: int, work: Callable[[], object]) -> Generator[None, object, None]:
    try:
        yield
        _to_die.pop(key, None)
        work()
    except GeneratorExit:
        return
    except BaseException as error:  # Python would print it and go on
        _to_die.pop(key, None)
        work()
        _kept.append(error)
    yield


def storages_of(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    """All storages of a tensor: two or more if sparse, none if opaque or not materialised."""
    # Those of a tensor inside ``torch.func`` are those of the tensor that it wraps.
    try:
        return [_untyped_storage(tensor)]
    except (NotImplementedError, RuntimeError, ValueError):
        if functorch.is_functorch_wrapped_tensor(tensor):
            return storages_of(functorch.get_unwrapped(tensor))
        return [_untyped_storage(part) for _, part in components(tensor)]


_COMPONENTS: Final = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}


def components(tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """The tensors that a sparse one consists of, and their names; none of any other."""
    names = _COMPONENTS.get(tensor.layout, ())
    return [(name.lstrip("_"), getattr(tensor, name)()) for name in names]


class _Death(weakref.ref[torch.UntypedStorage]):
    """A weak reference that remembers which entry to forget."""

    __slots__ = ("key", "sweep")
    key: int
    sweep: weakref.ref[torch.UntypedStorage] | None


class StorageTable(Generic[T]):
    """Data of storages, kept until they die. See Note [Deaths of storages]."""

    # Note [Deaths of storages]
    #
    # The Python object of a storage lives as long as C++ holds the storage, so that the end of the
    # one is the end of the other. A storage dies wherever Python drops the last reference, and the
    # callback of a weak reference does the work. Python runs the handlers of signals between any
    # two instructions of it, also before the first, and swallows what they raise. So there are two
    # callbacks. The first is a method in C, which nothing can interrupt, and notes the death: what
    # the second does not get done is done at the next question to a table. The second resumes a
    # generator that waits inside a ``try``, which even the first instruction is in. What a handler
    # raised there is raised again at the next question to any table, at the latest when the
    # simulation ends.
    #
    # Where Python can call no deeper it calls not even the first, up to Python 3.11 (it prints
    # "Exception ignored in"). But it drops the reference to it: all first callbacks are one object,
    # and one that has fewer references than there are entries was not called for one of them.
    #
    # A second callback takes a generator for each storage, and its call. A table that waits has
    # none, and the next question does the work, unless the moment of a death is asked for.

    def __init__(self, on_death: Callable[[T], None], *, waits: bool = False) -> None:
        """With ``waits``, deaths are swept at the next question, unless `sweep_at_once`."""
        self._on_death = on_death
        self._hurried = 0 if waits else 1
        self._known: dict[int, T] = {}
        self._deaths: dict[int, _Death] = {}
        self.deaths: deque[weakref.ref[torch.UntypedStorage]] = deque()
        """Those that were noted, and not swept yet."""
        self._note = self.deaths.append
        self._unused = _references(self._note)
        self._lock = threading.RLock()
        self.calls_are_hidden = False
        """``torch.profiler`` records the calls of Python functions: it does not see the table's."""

    @property
    def known(self) -> dict[int, T]:
        """``_cdata`` of a storage that lives -> what is known of it."""
        # asked for every op
        if self.deaths or _kept or _references(self._note) < self._unused + len(self._deaths):
            self._catch_up()
        return self._known

    def add(self, storage: torch.UntypedStorage, value: T) -> None:
        """Remember ``value`` until ``storage`` dies."""
        key: int = storage._cdata
        death = self._death_of(storage, key)
        with self._lock:
            self.sweep()  # what has died may have had the same key
            self._known[key] = value
            self._deaths[key] = death

    def _death_of(self, storage: torch.UntypedStorage, key: int) -> _Death:
        sweep = None
        if self._hurried:
            sweeper = self._sweeper()
            next(sweeper)
            sweep = weakref.ref(storage, sweeper.send)
        death = _Death(storage, self._note)  # the callback made last is called first
        death.key, death.sweep = key, sweep
        return death

    def sweep_at_once(self) -> None:
        """Sweep at each death from now on, until as many calls of `sweep_later`."""
        with self._lock, uninterrupted(*STANDARD_SIGNALS):
            self.sweep()
            self._hurried += 1
            if self._hurried == 1:
                for key, death in list(self._deaths.items()):
                    storage = death()
                    if storage is not None:
                        self._deaths[key] = self._death_of(storage, key)

    @property
    def sweeps_at_once(self) -> bool:
        return self._hurried > 0

    def sweep_later(self) -> None:
        """End one `sweep_at_once`."""
        self._hurried -= 1

    def drop(self, storage: torch.UntypedStorage) -> T | None:
        """Forget a storage that lives; what was known of it, or None."""
        with self._lock:
            value = self.known.pop(storage._cdata, None)
            self._deaths.pop(storage._cdata, None)
        return value

    def find(self, tensor: torch.Tensor) -> T | None:
        """The data kept for a tensor's last storage, which holds the values of a sparse one."""
        # asked for every tensor of every op
        if self.deaths or _kept or _references(self._note) < self._unused + len(self._deaths):
            self._catch_up()
        with torch._C.DisableTorchFunction():
            try:
                return self._known.get(_untyped_storage(tensor)._cdata)
            except (NotImplementedError, RuntimeError, ValueError):
                storages = storages_of(tensor)
        return self._known.get(storages[-1]._cdata) if storages else None

    def of(self, storage: torch.UntypedStorage) -> T | None:
        """The data kept for a storage; what has died is swept later."""
        # asked for every tensor of every op
        if _kept:
            raise_kept()
        key = storage._cdata
        death = self._deaths.get(key)
        # The storage of another tensor, which died, may have had the same key.
        return None if death is None or death() is not storage else self._known.get(key)

    def storage_at(self, address: int) -> torch.UntypedStorage | None:
        """The storage whose memory on the CPU an address is in."""
        self._catch_up()
        for death in list(self._deaths.values()):
            storage = death()
            if storage is not None and 0 <= address - host_address(storage) < storage.nbytes():
                return storage
        return None

    def living(self) -> list[T]:
        """Everything that is known, oldest first; no interrupt that was kept is raised here."""
        self.sweep()
        return list(self._known.values())

    def values(self) -> Iterator[T]:
        return iter(list(self.known.values()))

    def living_storages(self) -> list[tuple[torch.UntypedStorage, T]]:
        """The storages that live, oldest first, each with what is known of it."""
        storages = [(self._deaths[key](), value) for key, value in list(self.known.items())]
        return [(storage, value) for storage, value in storages if storage is not None]

    def clear(self) -> None:
        """Forget everything without calling it a death."""
        with self._lock:
            self._deaths.clear()
            self._known.clear()

    def sweep(self) -> None:
        """Forget what has died."""
        # Without room for that, RecursionError or MemoryError is raised, and a later call does the
        # rest.
        if not self.deaths:
            if _references(self._note) >= self._unused + len(self._deaths):
                return
            self._note_missed()
        check_room()
        with self._lock:
            if held.standard:
                self._sweep_all()
            else:
                with uninterrupted(*STANDARD_SIGNALS):
                    self._sweep_all()

    def _sweep_all(self) -> None:
        while self.deaths:
            death: _Death = self.deaths[0]  # type: ignore[assignment]
            key = death.key
            if self._deaths.get(key) is not death:
                self.deaths.popleft()
                continue
            value = self._known.pop(key)
            del self._deaths[key]
            self.deaths.popleft()
            try:
                self._on_death(value)
            except (RecursionError, MemoryError):
                self._known[key], self._deaths[key] = value, death
                self.deaths.appendleft(death)
                raise

    def _note_missed(self) -> None:
        """Note the deaths that Python could not tell of."""
        with self._lock:
            deaths = list(self._deaths.values())
            self.deaths.extend(death for death in deaths if death() is None)

    def _sweeper(self) -> Generator[None, object, None]:
        """Sweeps once it is sent something: the weak reference to a storage that died."""
        try:
            yield
            if self.calls_are_hidden or is_incurious():
                hidden(self.sweep)
            else:
                self.sweep()
        except GeneratorExit:  # the table forgot the storage
            return
        except (RecursionError, MemoryError):  # the next question sweeps
            pass
        except BaseException as error:  # Python would print it and go on
            _kept.append(error)
        yield

    def _catch_up(self) -> None:
        self.sweep()
        raise_kept()
