"""Memory as numbers for loggers such as TensorBoard, wandb and MLflow: ``MemoryScalars``."""

from __future__ import annotations

import warnings
from typing import Final

import torch

from ..devices import Device, get_device, simulated_machine
from ..scopes import Window, peak_tracker

PEAKS: Final = ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "active_bytes.all.peak")
"""The counters that are logged, by their names in ``torch.cuda.memory_stats()``."""

HEADROOM: Final = "headroom"
GROWTH: Final = "growth"

ON_CPU: Final = (
    "the training runs on the CPU, and only the memory of GPUs is measured: "
    "`pytorch-memlab run PROGRAM` simulates a GPU"
)
_ALONE: Final = (
    "the maximum over ranks is not known: a simulation runs one rank, and assumes that the others"
    " hold the same"
)


class MemoryScalars:
    """The memory of a GPU from one call to the next, as numbers for a logger.

    The program's own peaks, such as ``torch.cuda.max_memory_allocated()``, stay as they are.

    >>> from pytorch_memlab import MemoryScalars, simulate
    >>> with simulate("24GiB"):
    ...     scalars = MemoryScalars()
    ...     for _ in range(2):
    ...         kept = torch.zeros(2**20, device="cuda")
    ...         freed = torch.zeros(2**21, device="cuda")
    ...         del freed
    ...         found = scalars()
    >>> found["memory/allocated_bytes.all.peak"], found["memory/growth"]
    (12582912, 0)

    Args:
        device: the GPU; the current one by default.
        all_ranks: give also the highest peak over all ranks of ``torch.distributed``, and its rank.
            Every rank makes each call then, as any collective operation. It uses no memory of GPUs.

    Raises:
        UnknownDeviceError: there is no such device.
    """

    def __init__(
        self, device: int | str | torch.device | None = None, *, all_ranks: bool = False
    ) -> None:
        self._device = get_device(device)
        self._all_ranks = all_ranks
        self._window: Window | None = None
        self._allocated = 0
        if self._device.name == "cpu":
            warnings.warn(ON_CPU, stacklevel=2)
        else:
            self._begin()

    def _begin(self) -> None:
        self._window, sample = peak_tracker(self._device).open()
        self._allocated = sample.allocated

    def __call__(self) -> dict[str, int]:
        """The memory since the last call, or since this object was made.

        Returns:
            name -> bytes: ``memory/allocated_bytes.all.peak``, and so of ``reserved`` and
            ``active``; ``memory/headroom``, what the allocator did not take at its peak and may
            have; ``memory/growth``, what is in use now and was not at the last call. With
            ``all_ranks`` also ``memory/max_over_ranks``, the highest allocated peak, and
            ``memory/max_rank``, the number of its rank. Nothing for a CPU.
        """
        if self._window is None:
            return {}
        sample = peak_tracker(self._device).restart(self._window)
        assert sample is not None  # it closes with this object
        scalars = {name: sample.value(name) for name in PEAKS}
        room = headroom(self._device, scalars["reserved_bytes.all.peak"])
        scalars |= {} if room is None else {HEADROOM: room}
        scalars[GROWTH] = sample.allocated - self._allocated
        self._allocated = sample.allocated
        if self._all_ranks:
            scalars |= over_ranks(scalars[PEAKS[0]])
        return named(scalars)


def named(scalars: dict[str, int], separator: str = "/") -> dict[str, int]:
    """The names of metrics in a logger."""
    return {f"memory{separator}{name}": size for name, size in scalars.items()}


def headroom(device: Device, reserved_peak: int) -> int | None:
    """Bytes of a GPU that the allocator did not take at its peak, and may have."""
    # None if the device does not tell its size.
    capacity = device.capacity()
    return capacity - (device.taken() or 0) - reserved_peak if capacity else None


def over_ranks(size: int) -> dict[str, int]:
    """The highest size over all ranks, and the first rank that has it; every rank calls it."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return {"max_over_ranks": size, "max_rank": 0}
    if simulated_machine() is not None:
        warnings.warn(_ALONE, stacklevel=3)
        return {}
    sizes = _gathered(size)
    return {"max_over_ranks": max(sizes), "max_rank": sizes.index(max(sizes))}


def _gathered(size: int) -> list[int]:
    """The sizes of all ranks, through the CPU: NCCL would take memory of the GPU."""
    distributed = torch.distributed
    world = distributed.group.WORLD
    group = _groups.get(id(world))
    if group is None:
        group = distributed.new_group(backend="gloo")
        _groups.clear()  # one of a process group that was destroyed
        _groups[id(world)] = group
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(distributed.get_world_size())]
    distributed.all_gather(sizes, torch.tensor([size]), group=group)
    return [int(number) for number in sizes]


_groups: dict[int, torch.distributed.ProcessGroup] = {}
