"""Reads a PYTORCH_CUDA_ALLOC_CONF string as PyTorch 2.13 does, but says what is wrong with it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any

from ..._common.quoted import quoted
from ...errors import AllocatorSettingsError

MB = 2**20
NO_LIMIT = 2**64 - 1
MIN_LARGE_ALLOCATION = 10 * MB
LARGE_SEGMENT_SIZE = 20 * MB
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
            field = _FIELDS.get(key)
            checked = _CHECKS[key](key, value)
            if field is not None:
                fields[field] = checked
    return fields


def _split(text: str) -> Iterator[tuple[str, str]]:
    compact = "".join(text.split())
    if not compact:
        return
    for item in re.split(r",(?![^\[]*\])", compact.removesuffix(",")):
        key, colon, value = item.partition(":")
        if key not in _KEYS:
            raise AllocatorSettingsError(_unknown(key))
        if not (colon and value):
            raise AllocatorSettingsError(f"{key} needs a value, as in {_example(key)!r}")
        yield key, value


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, _KEYS, n=3)
    known = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(_KEYS)}"
    return f"unknown allocator setting {quoted(key)}; {known}"


def _example(key: str) -> str:
    if key == "backend":
        return "backend:native"
    return f"{key}:True" if _CHECKS.get(key) is _boolean else f"{key}:<number>"


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


def _threshold(key: str, value: str) -> float:
    return _share(key, value, lambda number: 0 < number < 1, "(0.0, 1.0)")


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


def _register_threads(key: str, value: str) -> int:
    number = _power_of_two(key, value)
    if number > 128:
        raise AllocatorSettingsError(f"{key} must be 128 or less, not {number}")
    return number


def _positive(key: str, value: str) -> int:
    return _whole_number(key, value, more_than=0)


def _power_of_two(key: str, value: str, *, or_zero: bool = False) -> int:
    number = _whole_number(key, value)
    if number.bit_count() != 1 and not (or_zero and number == 0):
        zero = " or 0" if or_zero else ""
        raise AllocatorSettingsError(f"{key} must be a power of two{zero}, not {number}")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    """Read one number for all sizes, or ``[boundary in MB:number,...,>:number]``.

    PyTorch 2.13 gives the first number to all sizes below its boundary too, ``>`` to all above the
    last boundary, and leaves sizes between two boundaries that are not neighbours at 0.
    """
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


_AT_LEAST_A_SEGMENT = {
    "max_split_size_mb": "max_split_size",
    "max_non_split_rounding_mb": "max_non_split_rounding_size",
}
_FIELDS = {
    "garbage_collection_threshold": "garbage_collection_threshold",
    "roundup_power2_divisions": "roundup_power2_divisions",
    "expandable_segments": "expandable_segments",
    "per_process_memory_fraction": "per_process_memory_fraction",
    "throw_on_cudamalloc_oom": "throw_on_cudamalloc_oom",
}
_CHECKS: dict[str, Callable[[str, str], object]] = {
    "garbage_collection_threshold": _threshold,
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _boolean,
    "per_process_memory_fraction": _fraction,
    "throw_on_cudamalloc_oom": _boolean,
    "backend": _backend,
    "release_lock_on_cudamalloc": _boolean,
    "graph_capture_record_stream_reuse": _boolean,
    "pinned_use_cuda_host_register": _boolean,
    "pinned_use_background_threads": _boolean,
    "pinned_free_catch_all": _boolean,
    "pinned_num_register_threads": _register_threads,
    "pinned_reserve_segment_size_mb": _positive,
    "pinned_max_round_threshold_mb": _whole_number,
    "pinned_max_cached_size_mb": _whole_number,
}
_KEYS = ("large_segment_size_mb", *_AT_LEAST_A_SEGMENT, *_CHECKS)
