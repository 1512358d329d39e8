"""The allocator's settings, read as PyTorch 2.13 does from PYTORCH_CUDA_ALLOC_CONF."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..._common.text.quoted import quoted
from ...errors import AllocatorSettingsError

MB = 2**20
NO_LIMIT = 2**64 - 1
# ``kMinBlockSize`` and those after it in ``c10/cuda/CUDACachingAllocator.cpp``; newer releases have
# them, and the intervals of ``CUDAAllocatorConfig.cpp``, in ``c10/core/AllocatorConfig.h`` and
# ``.cpp``.
MIN_BLOCK_SIZE = 512
SMALL_SIZE = MB
SMALL_SEGMENT_SIZE = 2 * MB
MIN_LARGE_ALLOCATION = 10 * MB
LARGE_SEGMENT_SIZE = 20 * MB
ROUND_LARGE = 2 * MB
ROUNDUP_INTERVALS = 16


def read_alloc_conf(text: str, large_segment_size: int = LARGE_SEGMENT_SIZE) -> dict[str, Any]:
    """Return the fields of ``AllocatorSettings`` that a string sets, sizes in bytes."""
    pairs = list(_split(text))
    fields: dict[str, Any] = {}
    # PyTorch reads this key before all others: it is the least that two of them may be.
    pairs.sort(key=lambda pair: pair[0] != "large_segment_size_mb")
    for key, value in pairs:
        if key == "large_segment_size_mb":
            size = _whole_number(key, value, more_than=MIN_LARGE_ALLOCATION // MB) * MB
            fields |= {"large_segment_size": size, "max_non_split_rounding_size": size}
        elif key in _AT_LEAST_A_SEGMENT:
            least = fields.get("large_segment_size", large_segment_size) // MB
            number = _whole_number(key, value, more_than=least - 1)
            fields[_AT_LEAST_A_SEGMENT[key]] = min(number, NO_LIMIT // MB) * MB
        else:
            checked = _CHECKS[key](key, value)
            if key in AllocatorSettings.__dataclass_fields__:
                fields[key] = checked
    return fields


def split_settings(text: str) -> list[str]:
    """The settings in a string; the commas of a list in brackets do not part them."""
    return re.split(r",(?![^\[]*\])", text)


def _split(text: str) -> Iterator[tuple[str, str]]:
    compact = "".join(text.split())
    if not compact:
        return
    for item in split_settings(compact.removesuffix(",")):
        key, _, value = item.partition(":")
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(_KEYS)}"
            raise AllocatorSettingsError(f"unknown allocator setting {quoted(key)}; {hint}")
        if not value:
            check = _CHECKS.get(key)
            example = "True" if check is _boolean else "native" if check is _backend else "<number>"
            raise AllocatorSettingsError(f"{key} needs a value, as in {key + ':' + example!r}")
        yield key, value


def _whole_number(key: str, value: str, more_than: int = -1) -> int:
    if not re.fullmatch("[0-9]+", value):
        raise AllocatorSettingsError(f"{key} must be a whole number, not {quoted(value)}")
    number = int(value)
    if number <= more_than:
        raise AllocatorSettingsError(f"{key} must be {more_than + 1} or more, not {number}")
    return number


def _boolean(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise AllocatorSettingsError(f"{key} must be True or False, not {quoted(value)}")
    return value == "True"


def _share(key: str, value: str, allowed: Callable[[float], bool], interval: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = float("nan")
    if not allowed(number):
        raise AllocatorSettingsError(f"{key} must be a number in {interval}, not {quoted(value)}")
    return number


def _fraction(key: str, value: str) -> float:
    try:
        return _share(key, value, lambda number: 0 <= number <= 1, "[0.0, 1.0]")
    except AllocatorSettingsError as error:
        raise AllocatorSettingsError(f"{key} is invalid: {error}") from None


def _backend(key: str, value: str) -> str:
    if value != "native":
        raise AllocatorSettingsError(
            f"{key} must be native, the one simulated, not {quoted(value)}"
        )
    return value


def _power_of_two(key: str, value: str, *, or_zero: bool = False, most: int = NO_LIMIT) -> int:
    number = _whole_number(key, value)
    if number.bit_count() != 1 and not (or_zero and number == 0):
        zero = " or 0" if or_zero else ""
        raise AllocatorSettingsError(f"{key} must be a power of two{zero}, not {number}")
    if number > most:
        raise AllocatorSettingsError(f"{key} must be {most} or less, not {number}")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """Read one number for all sizes, or ``[boundary in MB:number,...,>:number]``."""
    # PyTorch 2.13 gives the first number to all sizes below its boundary too, ``>`` to all above
    # the last boundary, and leaves sizes between two boundaries that are not neighbours at 0.
    if not value.startswith("["):
        return (_power_of_two(key, value),) * ROUNDUP_INTERVALS
    if not value.endswith("]"):
        raise AllocatorSettingsError(f"{key} lacks the closing bracket in {quoted(value)}")
    divisions = [0] * ROUNDUP_INTERVALS
    first, last = True, 0
    for item in filter(None, value[1:-1].split(",")):
        boundary, _, number = item.partition(":")
        steps = _power_of_two(f"the number after {quoted(boundary)} in {key}", number, or_zero=True)
        if boundary == ">":
            divisions[last + 1 :] = [steps] * (ROUNDUP_INTERVALS - last - 1)
            continue
        exponent = _power_of_two(f"a boundary of {key}", boundary).bit_length() - 1
        last = min(exponent, ROUNDUP_INTERVALS - 1)
        if first:
            divisions[:last] = [steps] * last
            first = False
        divisions[last] = steps
    return tuple(divisions)


def _reserve(_key: str, _value: str) -> None:
    """Addresses that a segment sets aside take no memory; PyTorch 2.15 ignores wrong values."""


_AT_LEAST_A_SEGMENT = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding_size",
}
_CHECKS: dict[str, Callable[[str, str], object]] = {
    "garbage_collection_threshold": partial(
        _share, allowed=lambda number: 0 < number < 1, interval="(0.0, 1.0)"
    ),
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _boolean,
    "expandable_segments_reserve": _reserve,
    "expandable_segments_reserve_by_class": _reserve,
    "per_process_memory_fraction": _fraction,
    "throw_on_cudamalloc_oom": _boolean,
    "backend": _backend,
    "release_lock_on_cudamalloc": _boolean,
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_background_threads": _boolean,
    "pinned_free_catch_all": _boolean,
    # ``pinned_max_register_threads`` of ``c10/core/AllocatorConfig.cpp``
    "pinned_num_register_threads": partial(_power_of_two, most=128),
    "pinned_reserve_segment_size_mb": partial(_whole_number, more_than=0),
    "pinned_max_round_threshold_mb": _whole_number,
    "pinned_max_cached_size_mb": _whole_number,
}
_KEYS = ("large_segment_size_mb", *_AT_LEAST_A_SEGMENT, *_CHECKS)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The settings of the caching allocator, with the defaults of PyTorch; sizes are in bytes."""

    max_split_size: int = NO_LIMIT  # blocks of this size and more are not split
    # by how much a block that is not split may exceed a request
    max_non_split_rounding_size: int = LARGE_SEGMENT_SIZE
    # steps from one power of two to the next to which sizes are rounded up, for 1 MiB, 2 MiB, 4 MiB
    # ... 32 GiB; 0 or 1: to 512 bytes instead
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    # share of the allowed memory above which cached blocks are freed, 0: never
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False  # whether segments grow
    # of a segment that serves requests from 1 to 10 MiB, and of a page of an expandable segment of
    # the large pool
    large_segment_size: int = LARGE_SEGMENT_SIZE
    per_process_memory_fraction: float = 1.0  # share of the GPU that may be used
    throw_on_cudamalloc_oom: bool = False  # whether a request above that fails before it is tried

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read a PYTORCH_CUDA_ALLOC_CONF string.

        >>> AllocatorSettings.parse("max_split_size_mb:128").max_split_size
        134217728
        """
        # Keys without effect on a simulated GPU, such as the ``pinned_`` ones, are checked only.
        return cls().changed_by(text)

    def changed_by(self, text: str) -> AllocatorSettings:
        """Read a string that a program sets while it runs.

        >>> settings = AllocatorSettings.parse("max_split_size_mb:30,expandable_segments:True")
        >>> settings = settings.changed_by("garbage_collection_threshold:0.8")
        >>> settings.max_split_size == NO_LIMIT, settings.expandable_segments
        (True, True)
        """
        # Three settings fall back to their defaults where the string does not name them:
        # ``max_split_size``, ``roundup_power2_divisions`` and ``garbage_collection_threshold``
        # (``AcceleratorAllocatorConfig::parseArgs``, c10/core/AllocatorConfig.cpp).
        kept = replace(
            self,
            max_split_size=NO_LIMIT,
            roundup_power2_divisions=(0,) * ROUNDUP_INTERVALS,
            garbage_collection_threshold=0.0,
        )
        return replace(kept, **read_alloc_conf(text, self.large_segment_size))

    def round_size(self, size: int) -> int:
        """Return the bytes of the block that serves a request of `size` bytes (1 or more)."""
        # A multiple of 512; or, where ``roundup_power2_divisions`` says so and the size is more
        # than 512 bytes a step, the next of that many steps between two powers of two.
        if size < MIN_BLOCK_SIZE:
            return MIN_BLOCK_SIZE
        exponent = size.bit_length() - 1
        divisions = self.roundup_power2_divisions[min(max(exponent - 20, 0), ROUNDUP_INTERVALS - 1)]
        step = MIN_BLOCK_SIZE
        if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
            step = (1 << exponent) // divisions
        return -(-size // step) * step

    def segment_size(self, size: int) -> int:
        """Return the bytes of the new segment for a block of `size` bytes."""
        # 2 MiB for blocks of up to 1 MiB; a large segment for those below 10 MiB; above, the size
        # rounded up to 2 MiB.
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT_SIZE
        if size < MIN_LARGE_ALLOCATION:
            return self.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE
