"""The source of device memory: the few calls of the CUDA driver that the allocator makes."""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

PAGE = 2 * 2**20  # bytes of a page of device memory; cudaMalloc takes and aligns by it


class AddressSpace:
    """Ranges of addresses, the lowest that fits first."""

    def __init__(self, base: int, taken: Iterable[tuple[int, int]] = ()) -> None:
        self._end = base
        self._gaps: list[tuple[int, int]] = []
        for address, size in sorted(taken):
            if address > self._end:
                self._gaps.append((self._end, address - self._end))
            self._end = address + size

    def take(self, size: int) -> int:
        """Return the lowest address with `size` free bytes behind it and occupy them."""
        for index, (address, gap) in enumerate(self._gaps):
            if gap >= size:
                if gap == size:
                    del self._gaps[index]
                else:
                    self._gaps[index] = (address + size, gap - size)
                return address
        address = self._end
        self._end += size
        return address

    def give(self, address: int, size: int) -> None:
        insort(self._gaps, (address, size))
        joined: list[tuple[int, int]] = []
        for start, length in self._gaps:
            if joined and sum(joined[-1]) == start:
                joined[-1] = (joined[-1][0], joined[-1][1] + length)
            else:
                joined.append((start, length))
        if joined and sum(joined[-1]) == self._end:
            self._end = joined.pop()[0]
        self._gaps = joined


@dataclass(slots=True)
class DriverCalls:
    """Counts of the calls that took memory from a driver and gave it back."""

    mallocs: int = 0  # segments made (cudaMalloc)
    frees: int = 0  # segments given back (cudaFree)
    maps: int = 0  # ranges of pages that got memory (cuMemMap)
    unmaps: int = 0  # ranges of pages that lost it (cuMemUnmap)


class SimulatedDriver:
    """The calls of the CUDA driver; counts what is taken, and gives the lowest free addresses."""

    # Where a real driver puts a segment is its own affair; low to high is what a fresh process sees
    # most often.

    def __init__(
        self,
        total: int,
        context: int = 0,
        other_processes: int = 0,
        base: int = 0x7000_0000_0000,
    ) -> None:
        self.total = total
        self.context = context
        self.other_processes = other_processes
        self.call_counts = DriverCalls()
        self.before_call: Callable[[], object] = lambda: None
        """Called before cudaMalloc and cudaFree, which a capture may refuse."""
        self._base = base
        self._used = 0
        self._sizes: dict[int, int] = {}
        self._space = AddressSpace(base)
        self._reserved = AddressSpace(base + 2**43)

    @property
    def process_memory(self) -> int | None:
        return self.context + self._used

    def malloc(self, size: int) -> int | None:
        """Return an address of `size` bytes, whole pages, None when the GPU has too few left."""
        self.before_call()
        taken = -(-size // PAGE) * PAGE
        if taken > self.free_memory():
            return None
        self.call_counts.mallocs += 1
        self._used += taken
        address = self._space.take(taken)
        self._sizes[address] = taken
        return address

    def free(self, address: int) -> None:
        """Return what `malloc` gave at `address`, or what lies there from before."""
        self.before_call()
        size = self._sizes.pop(address)
        self.call_counts.frees += 1
        self._used -= size
        if address >= self._base:
            self._space.give(address, size)

    def adopt(self, address: int, size: int, is_expandable: bool) -> None:
        """Count a segment or a range of pages below all own addresses that has memory already."""
        self._used += size
        if not is_expandable:
            self._sizes[address] = size

    def recount(self, segments: Mapping[int, int], ranges: Mapping[int, int], pages: int) -> None:
        """Have these segments and ranges: their sizes by address, and the bytes of mapped pages."""
        sizes = {
            address: self._sizes.get(address, -(-size // PAGE) * PAGE)
            for address, size in segments.items()
        }
        own = [segment for segment in sizes.items() if segment[0] >= self._base]
        space = AddressSpace(self._base, own)
        reserved = AddressSpace(
            self._base + 2**43,
            [
                reserved_range
                for reserved_range in ranges.items()
                if reserved_range[0] >= self._base
            ],
        )
        used = sum(sizes.values()) + pages
        self._sizes, self._space, self._reserved, self._used = sizes, space, reserved, used

    def free_memory(self) -> int:
        return max(0, self.total - self.other_processes - self.context - self._used)

    def reserve(self, size: int) -> int:
        """Return `size` bytes of addresses without memory."""
        return self._reserved.take(size)

    def map(self, address: int, size: int) -> bool:
        """Take `size` bytes for the range at `address`; False when the GPU has too few left."""
        if size > self.free_memory():
            return False
        self.call_counts.maps += 1
        self._used += size
        return True

    def unmap(self, address: int, size: int) -> None:
        self.call_counts.unmaps += 1
        self._used -= size

    def release(self, address: int, size: int) -> None:
        if address >= self._base:
            self._reserved.give(address, size)


class Step(NamedTuple):
    """Memory of a recording that comes from the GPU, or goes back to it."""

    event: int  # its index
    address: int  # where it begins
    size: int  # bytes of it
    noun: str = "segment"  # or "range", of pages


class RecordedDriver(SimulatedDriver):
    """A GPU that hands out the memory of a recording, in order."""

    # What the allocator asks otherwise than recorded is noted in `mismatches`, and it goes on with
    # an address that no recording has.

    def __init__(self) -> None:
        super().__init__(total=2**62, base=2**62)
        # what gets memory next; None: not before something goes back to the GPU
        self.expected: deque[Step | None] = deque()
        self.mapped: list[int] = []  # addresses of all pages that get memory in the recording
        # bytes free on the GPU, which refuses what is not expected; None: no limit
        self.available: int | None = None
        # address of what went back since this was cleared; bytes of pages, None for a segment
        self.freed: dict[int, int | None] = {}
        self.mismatches: list[str] = []  # what differs from the recording
        self._ranges: dict[int, range] = {}

    @property
    def process_memory(self) -> None:
        """Unknown: recordings do not have it."""

    def free_memory(self) -> int:
        return super().free_memory() if self.available is None else self.available

    def malloc(self, size: int) -> int | None:
        """Return the address recorded next."""
        if self._refuses():
            return None
        step = self._next_step()
        if step is None:
            self.mismatches.append(f"a segment of {size} bytes that was not recorded")
            return super().malloc(size)
        self.call_counts.mallocs += 1
        if size != step.size:
            self.mismatches.append(f"a segment of {size} bytes, recorded {step.size}")
        return step.address

    def free(self, address: int) -> None:
        """Note that the segment at `address` was freed."""
        self.call_counts.frees += 1
        self._goes_back(address, None)

    def reserve(self, size: int) -> int:
        """Return the address that gets memory next, while it refuses one that does so later."""
        step = self.expected[0] if self.expected else None
        if step is not None:
            address = step.address
        else:
            reserved_ranges = self._ranges.values()
            unknown = (
                address
                for address in self.mapped
                if not any(address in taken for taken in reserved_ranges)
            )
            upcoming = next(unknown, None)
            address = super().reserve(size) if upcoming is None else upcoming
        self._ranges[address] = range(address, address + size)
        return address

    def adopt_range(self, address: int) -> None:
        pages = [address_of_page for address_of_page in self.mapped if address_of_page >= address]
        self._ranges[address] = range(address, max(pages, default=address) + 1)

    def map(self, address: int, size: int) -> bool:
        """Compare a range of pages with the one recorded next."""
        if self._refuses():
            return False
        self.call_counts.maps += 1
        step = self._next_step()
        if step is None:
            self.mismatches.append(f"{size} bytes mapped at {address:#x}, which was not recorded")
        elif (address, size) != (step.address, step.size):
            self.mismatches.append(
                f"{size} bytes mapped at {address:#x}, recorded {step.size} at {step.address:#x}"
            )
        return True

    def unmap(self, address: int, size: int) -> None:
        self.call_counts.unmaps += 1
        self._goes_back(address, size)

    def release(self, address: int, size: int) -> None:
        self._ranges.pop(address, None)

    def _refuses(self) -> bool:
        return self.expected[0] is None if self.expected else self.available is not None

    def _next_step(self) -> Step | None:
        return self.expected.popleft() if self.expected else None

    def _goes_back(self, address: int, size: int | None) -> None:
        self.freed[address] = size
        if self.expected and self.expected[0] is None:
            self.expected.popleft()
