"""One simulated GPU: its allocator, the storages that live on it, and memory taken before."""

from __future__ import annotations

import gc
import sys
import threading
from array import array
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

from ..._common.frames.call_stacks import call_stacks
from ..._common.interrupts.stack_room import check_room
from ..._common.interrupts.uninterrupted import STANDARD_SIGNALS, held, uninterrupted
from ...errors import UsageError
from ..allocator.caching_allocator import CachingAllocator
from ..allocator.driver import SimulatedDriver
from ..allocator.out_of_memory import (
    NO_PRIVATE_MEMORY,
    DeviceOutOfMemoryError,
    FailedRequest,
    PrivateMemory,
    format_size,
)
from ..hardware.gpu import GPU
from ..hardware.nccl_memory import Bounds, Communicator, nccl_memory
from ..hardware.sizes import read_size
from .allocation_log import AllocationLog, CodeStack, LoggedBlock, code_stack
from .trace_callbacks import TraceCallbacks

_T = TypeVar("_T")

_ADDRESSES = 2**44
"""Distance between the first addresses of two GPUs, so that no two blocks share one."""


_gc_is_on, _gc_off, _gc_on = gc.isenabled, gc.disable, gc.enable

_recursion_limit, _set_recursion_limit = sys.getrecursionlimit, sys.setrecursionlimit

_DEEPEST: Final = 200
"""More calls than are ever nested in an allocator with all that follows its blocks."""

_busy = threading.Lock()
"""Lock over all simulated allocators; see Note [Delayed frees and signals in the allocator]."""


class _Alone:
    """Holds ``_busy``, and makes no object to take it."""

    # From Python 3.12 on, a collection that an object brings about begins after the next call. That
    # is the one below which asks whether collections are on, with the lock held.

    __enter__ = staticmethod(_busy.__enter__)
    __exit__ = staticmethod(_busy.__exit__)


_alone = _Alone()


def allocator_is_busy() -> bool:
    """True while a thread changes the state of a simulated allocator."""
    return _busy.locked()


@dataclass(slots=True, unsafe_hash=True)  # one that is frozen takes twice as long to make
class Allocation:
    """The memory of one storage on a simulated GPU."""

    gpu: SimulatedGPU  # the GPU that holds it
    address: int  # of its block, 0 when it has no bytes
    nbytes: int  # size of the storage in bytes
    is_owner: bool = True  # whether the block is freed with the storage


@dataclass(frozen=True, slots=True)
class SimulatedFailure:
    """A request that failed on a simulated GPU."""

    request: FailedRequest  # what was asked for, and the state of the GPU
    stack: CodeStack  # that asked
    node: str  # of autograd that ran, such as ``MulBackward0``; empty outside of a backward pass
    live: dict[int, LoggedBlock]  # the blocks in use by address
    requests: array[int]  # all requests before, as ``AllocationLog`` has them
    length: int  # how many numbers of ``requests`` came before this request
    is_whole: bool  # whether no request is missing there


class SimulatedGPU:
    """A GPU with PyTorch's caching allocator on it."""

    # Note [Delayed frees and signals in the allocator]
    #
    # A storage is freed wherever Python drops the last reference: in any thread, inside a garbage
    # collection, between two instructions of a signal handler, and also while this thread is in the
    # allocator. So `release` only appends the address to a queue. The next holder of the lock frees
    # what is queued, before its own work, in the order in which the storages were freed.
    #
    # While the lock is held, the garbage collector is off and handlers of standard signals
    # wait. A finalizer that runs in a collection may do anything, such as wait for a lock of a
    # thread which itself waits for this lock; so nothing may allocate an object before collections
    # are off. An interrupt between two steps would leave counters that do not add up. Signals
    # already wait where a storage is made or freed; asking for that first is cheaper.
    #
    # The lock is taken by ``with`` alone: a KeyboardInterrupt cannot separate acquire and enter.

    def __init__(self, index: int, model: GPU, taken: MemoryOverhead) -> None:
        self.index = index
        self.model = model
        self.device = torch.device("cuda", index)
        self.taken = taken
        self.driver = SimulatedDriver(
            model.total_memory, taken.context, taken.other_processes, base=_ADDRESSES * (index + 1)
        )
        self.log = AllocationLog()
        self.allocator = CachingAllocator(self.driver, device=index, log=self.log)
        self.failure: SimulatedFailure | None = None  # the last request that failed
        self._dead: deque[int] = deque()
        self._is_half_done = False  # an error has ended a change half way
        self.sweep: Callable[[], object] = lambda: None
        """Gives back what storages held that died; called before every question."""
        self.deaths: Collection[object] = ()
        """What it has to do, as far as that is known."""
        self.before_first_use: Callable[[], object] = lambda: None
        """Called before requests until data was put here."""
        self.captured_at: dict[int, tuple[str, int]] = {}
        """File and line of each capture whose graph is there, by its id."""
        self.ever_held_data = False
        """Whether data of the program was ever here; the float that a barrier reduces is none."""
        self.out_of_memory_observers: list[Callable[[int, int, int], object]] = []
        self._trace: TraceCallbacks | None = None
        self._estimates: dict[int, int] = {}
        self._estimated = 0
        self._peak = (0, 0)
        self._peak_at_most = 0
        self._communicators: dict[object, Communicator] = {}
        self._with_communicators: tuple[int, tuple[Communicator, ...]] = 0, ()

    def trace(self, trace: TraceCallbacks) -> None:
        """Tell callbacks what the allocator does from now on."""
        self._trace = trace
        self.allocator.observe(trace.observe)

    def allocate(
        self, nbytes: int, stream: int, *, is_estimate: bool = False, is_data: bool = False
    ) -> Allocation:
        """Take memory for a kernel, or for data of the program."""
        if not self.ever_held_data:
            self.before_first_use()
            self.ever_held_data = is_data
        if self.deaths:
            self.sweep()
        address = 0
        try:
            try:
                address = self._in_one_go(self._malloc, nbytes, stream, is_estimate, is_data)
            finally:
                if self._dead or self._trace is not None:
                    self._settle()
            return Allocation(self, address, nbytes)
        except DeviceOutOfMemoryError as error:
            text = str(error)
        except BaseException:
            if address:  # an interrupt, or a callback, came after it
                self._dead.append(address)
            raise
        # Not raised inside the except: its error would keep the frames of this one, and what they
        # hold.
        self.failure = None
        with suppress(Exception):  # the report is worth less than the program's own error
            self.failure = self._in_one_go(self._failed, text, nbytes, stream)
        self._call_observers(nbytes)
        raise self._out_of_memory(text)

    def _failed(self, text: str, nbytes: int, stream: int) -> SimulatedFailure:
        """The state at the moment of an error, as plain data."""
        allocator, driver, settings = self.allocator, self.driver, self.allocator.settings
        blocks = {address: size for address, size, _ in allocator.blocks_in_use()}
        call_stacks.read()  # what is freed from now on is still known
        request = FailedRequest(
            text,
            self.index,
            nbytes,
            settings.segment_size(settings.round_size(nbytes)),
            stream,
            driver.total,
            driver.free_memory(),
            driver.context,
            driver.other_processes,
            allocator.allowed_bytes,
            allocator.reserved_bytes,
            blocks,
            tuple(allocator.free_blocks()),
            self.private_memory(),
        )
        log = self.log
        live = {address: log.live[address] for address in blocks if address in log.live}
        node: Any = torch._C._current_autograd_node()
        name = "" if node is None else node.name().rpartition("::")[2]
        requests = log.requests
        return SimulatedFailure(
            request, code_stack(), name, live, requests, len(requests), log.is_whole
        )

    def private_memory(self) -> PrivateMemory:
        """The memory of private pools, with the places of captures."""
        if not self.allocator.private.by_id:
            return NO_PRIVATE_MEMORY
        captures = tuple(self.captured_at.values())
        return self.allocator.private_memory()._replace(captures=captures)

    def _call_observers(self, nbytes: int) -> None:
        """Call the out-of-memory observers, which may ask the allocator for anything."""
        settings = self.allocator.settings
        needed = settings.segment_size(settings.round_size(nbytes))
        for observer in self.out_of_memory_observers:
            observer(needed, self.driver.total, self.driver.free_memory())

    def _out_of_memory(self, text: str) -> torch.OutOfMemoryError:
        """The error in PyTorch's own words; a traceback shows below them what was estimated."""
        error = torch.OutOfMemoryError(text)
        note = self.taken.note(self.model)
        if note is not None:
            error.add_note(note)
        return error

    def release(self, allocation: Allocation) -> None:
        """Free memory now, or where there is no room for it, before what is done next."""
        try:  # noqa: SIM105 - the object of suppress may have no room
            self.sweep()  # what died before is freed before
        except (RecursionError, MemoryError):
            pass
        self.release_dead(allocation, waits=False)

    def release_dead(self, allocation: Allocation, *, waits: bool) -> None:
        """Free the memory of a storage that died: now, or before what is done next."""
        if allocation.address and allocation.is_owner:
            self._dead.append(allocation.address)
            if not waits:
                try:  # noqa: SIM105 - every free comes here
                    self._settle()
                except (RecursionError, MemoryError):
                    pass

    def active_bytes(self) -> int:
        """Bytes of blocks in use now."""
        return self.locked(lambda: self.allocator.active_bytes)

    def owns(self, address: int) -> bool:
        return address // _ADDRESSES == self.index + 1

    def in_use(self) -> bool:
        return self.allocator.ever_allocated

    def room(self) -> int:
        """Bytes that the program can take at most while it frees nothing."""
        allocator = self.allocator
        stats = self.locked(allocator.memory_stats)
        allocated: int = stats["allocated_bytes"]["all"]["current"]
        room = self.driver.free_memory() + allocator.reserved_bytes
        allowed = allocator.allowed_bytes
        return (room if allowed is None else min(room, allowed)) - allocated

    def peak_share(self) -> tuple[int, int]:
        """The most active bytes since the simulation began, and how many were estimates then.

        Estimates are blocks that no recording confirms: memory that kernels allocate on top of
        their outputs, and outputs and workspaces of an estimated size. Sizes are those of blocks.
        """
        return self._peak

    def note_uncounted(self, at_most: int) -> None:
        """A kernel takes up to so many bytes on top of what is in use now, and none is counted."""
        self._peak_at_most = max(self._peak_at_most, self.active_bytes() + at_most)

    def set_communicator(self, key: object, communicator: Communicator | None) -> None:
        """Note a communicator of NCCL that the program makes here, changes, or with None destroys.

        A key serves for nothing else.
        """
        if communicator is None:
            self._with_communicators = self._fullest_with_communicators()
            self._communicators.pop(key, None)
        else:
            self._communicators[key] = communicator

    @property
    def communicators(self) -> tuple[Communicator, ...]:
        """Those that were there when they and the allocator together had most of this GPU."""
        return self._fullest_with_communicators()[1]

    def _fullest_with_communicators(self) -> tuple[int, tuple[Communicator, ...]]:
        now = tuple(self._communicators.values())
        size = self.allocator.reserved_bytes + nccl_memory(self.model, now).estimate
        return max(self._with_communicators, (size, now), key=lambda pair: pair[0])

    def nccl_memory(self) -> Bounds:
        """The memory that these communicators take of this GPU, an estimate."""
        return nccl_memory(self.model, self.communicators)

    def peak_at_most(self) -> int:
        """The peak if all memory with a bound that is not counted is as large as that bound."""
        driver = self.driver
        room = driver.total - driver.context - driver.other_processes
        return max(min(self._peak_at_most, room), self._peak[0])

    def _malloc(self, nbytes: int, stream: int, is_estimate: bool, is_data: bool) -> int:
        allocator = self.allocator
        self.log.next_is_data = is_data
        address = allocator.malloc(nbytes, stream)
        try:
            if is_estimate and address:
                size = allocator.block_size(address)
                estimated = self._estimated + size
                self._estimates[address] = size
                self._estimated = estimated
            active = allocator.active.current
            if active > self._peak[0]:
                self._peak = active, self._estimated
        except BaseException:
            if address:
                allocator.take_back(address)
            raise
        return address

    def locked(self, work: Callable[..., _T], *args: Any) -> _T:
        """Call a method of the allocator: alone, and after all frees that wait."""
        self.sweep()
        try:
            return self._in_one_go(work, *args)
        finally:
            if self._dead or self._trace is not None:
                self._settle()

    def _settle(self) -> None:
        while self._dead and not _busy.locked():
            self._in_one_go(_nothing_more)
        if self._trace is not None:
            self._trace.tell()

    def _in_one_go(self, work: Callable[..., _T], *args: Any) -> _T:
        """Work after all frees that wait, with no garbage collection and no Ctrl-C in between."""
        with _alone:
            collects = _gc_is_on()  # see Note [Collections that are off]
            try:
                if collects:
                    _gc_off()
                if held.standard:
                    return self._with_room(work, args)
                with uninterrupted(*STANDARD_SIGNALS):
                    return self._with_room(work, args)
            finally:
                if collects:
                    _gc_on()

    def _with_room(self, work: Callable[..., _T], args: tuple[Any, ...]) -> _T:
        """Work with room on the stack for all of it: a RecursionError comes before it begins."""
        check_room()
        limit = _recursion_limit()
        raised = limit + _DEEPEST
        try:
            _set_recursion_limit(raised)
            if self._is_half_done:
                self._mend()
            if self._dead:
                self._free_dead()
            return work(*args)
        except DeviceOutOfMemoryError:  # all that happened is whole
            raise
        except BaseException:
            self._is_half_done = True
            with suppress(Exception):  # otherwise what comes next does it first
                self._mend()
            raise
        finally:
            try:
                is_changed = _recursion_limit() != raised  # by another thread
            except MemoryError:
                is_changed = False
            if not is_changed:
                _set_recursion_limit(limit)

    def _free_dead(self) -> None:
        while self._dead:
            address = self._dead[0]
            if self.allocator.is_allocated(address):  # an error may have come after its free
                self.allocator.free(address)
            if self._estimates:
                self._estimated -= self._estimates.pop(address, 0)
            self._dead.popleft()

    def _mend(self) -> None:
        """Make whole what an error in the allocator, or an observer, left half done."""
        allocator = self.allocator
        allocator.mend()
        kept = {
            address: size
            for address, size in self._estimates.items()
            if allocator.is_allocated(address)
        }
        self._estimated = sum(kept.values())
        self._estimates = kept
        self._is_half_done = False


def _nothing_more() -> None:
    """The work of a call that only frees what waits."""


@dataclass(frozen=True, slots=True)
class MemoryOverhead:
    """The memory of each GPU that is taken before the first tensor is made."""

    # A program can only learn what is free by calls that make the context. So whether the context
    # takes its memory at the start or at the first use of the GPU makes no difference to it.

    context: int = 0  # bytes of the CUDA context: kernels, and handles of libraries
    other_processes: int = 0  # bytes that other processes use
    is_estimate: bool = False  # whether ``context`` is an estimate, not a size that the user gave

    @classmethod
    def of(cls, gpu: GPU, context: str | int | None, others: str | int) -> MemoryOverhead:
        """Read the sizes that the user gave; None is the estimate for the hardware."""
        size = gpu.context if context is None else read_size("context", context)
        overhead = cls(size, read_size("others", others), context is None and size > 0)
        if overhead.context + overhead.other_processes >= gpu.total_memory:
            raise UsageError(
                f"nothing is left of the GPU's {format_size(gpu.total_memory)}: its context takes "
                f"{format_size(overhead.context)}, "
                f"other processes {format_size(overhead.other_processes)}"
            )
        return overhead

    def note(self, gpu: GPU) -> str | None:
        """The sentence beside an error of the GPU; None where the user gave all sizes."""
        if not self.is_estimate:
            return None
        return (
            f"{gpu.name} is simulated: {format_size(self.context)} are assumed for the CUDA "
            "context (an estimate); pass simulate(..., context=...) or --cuda-context to change it"
        )
