"""CUB: how much temporary storage its algorithms ask PyTorch's allocator for.

The rules are those of the CUB that CUDA 13.0 ships (``cub/device/dispatch``): an algorithm adds up
its buffers, each rounded up to 256 bytes, and 255 bytes to align the first. Sorts are followed
tile by tile; a radix sort of keys of 1 or 2 bytes on GPUs before Hopper, scans, selections and
reductions depend on what a compiled kernel occupies or on a tuning of each generation, and are
estimated by the tiles that CUB takes without one: the ``DefaultPolicy`` of the algorithm's file
in ``cub/device/dispatch/tuning``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...hardware.decisions import decision
from ...hardware.gpu import GPU

_OFFSET: Final = 8
"""Bytes of an offset: PyTorch counts a sort's items in ``int64_t``."""

_DIGITS: Final = 256
"""Values of the 8 bits that a sort passes over at once."""

_SHARED: Final = 48 * 1024
"""Bytes of shared memory that CUB lets a block of threads use: ``max_smem_per_block`` in
``cub/util_arch.cuh``."""

_MOST_IN_PORTION: Final = (1 << 28) - 1
"""Items that a sort passes over at once: ``PORTION_SIZE`` in ``InvokeOnesweep`` of
``cub/device/dispatch/dispatch_radix_sort.cuh``, before it is cut to whole tiles."""

_MOST_BLOCKS_PER_PROCESSOR: Final = 5
"""Blocks for each one that is resident: ``subscription_factor`` in ``cub/util_arch.cuh``."""

_TILE_STATES: Final = 32
"""States of tiles that stand before the first tile's: ``TILE_STATUS_PADDING`` in
``cub/agent/single_pass_scan_operators.cuh``."""

_SMALL_KEYS_HOPPER: Final[Mapping[tuple[int, int], tuple[int, int]]] = {
    (1, 0): (512, 19), (2, 0): (512, 19),
    (1, 1): (448, 16), (1, 2): (512, 14), (1, 4): (512, 14), (1, 8): (384, 18), (1, 16): (512, 22),
    (2, 1): (384, 16), (2, 2): (448, 16), (2, 4): (512, 12), (2, 8): (512, 23), (2, 16): (576, 22),
}  # fmt: skip
"""Threads and items of a tile by the bytes of a key and of a value, 0 without values: those for
offsets of 8 bytes of ``sm90_small_key_tuning`` in ``tuning_radix_sort.cuh``."""

_SMALL_KEYS_BLACKWELL: Final = {
    **_SMALL_KEYS_HOPPER,
    (2, 0): (384, 20), (1, 1): (384, 20), (1, 2): (256, 22), (1, 4): (384, 15),
    (2, 1): (384, 15), (2, 2): (576, 15), (2, 4): (512, 18),
}  # fmt: skip


_TILES_BY_KEY: Final = {
    (8, 4): 256 * 15, (9, 4): 288 * 14, (10, 4): 224 * 20,
    (8, 8): 224 * 10, (9, 8): 224 * 11, (10, 8): 256 * 23,
}  # fmt: skip
"""Items of a tile by the generation and the bytes of a key and of a value: ``sm80_tuning``,
``sm90_tuning`` and ``sm100_tuning`` in ``tuning_scan_by_key.cuh``."""

_TILE_BY_KEY: Final = 256 * 9
"""Without a tuning: its ``DefaultPolicy``."""


_TILES_OF_FLAGGED: Final = {8: 384 * 6, 9: 384 * 11, 10: 320 * 11}
"""Items of a tile by the generation, of 8 bytes and with flags: ``sm80_tuning``, ``sm90_tuning``
and ``sm100_tuning`` of ``select::flagged`` in ``tuning_select_if.cuh``; the last has 22 items of 4
bytes."""


@decision
def radix_sort(
    gpu: GPU, count: int, key: int, value: int = 0, *, bits: int = 0, is_float: bool = False
) -> int:
    """Bytes that ``DeviceRadixSort`` asks for, by the bytes of a key and of a value (0: none)."""
    # A single block of threads that sorts all asks for 1 byte.
    if count <= _tile(256, 19, max(key, value)):
        return 1
    buffers = [count * key, count * value]
    if gpu.major < 9 and key < 4:
        return _blob(_histograms_of_blocks(gpu, key, value), *buffers)
    passes = -(-(bits or 8 * key) // 8)
    tile = _tile(*_onesweep(gpu.major, key, value, is_float), max(key, value))
    portion = _MOST_IN_PORTION // tile * tile
    portions = -(-count // portion)
    bins = portions * passes * _DIGITS * _OFFSET
    lookback = -(-min(count, portion) // tile) * _DIGITS * 4
    return _blob(bins, lookback, *(buffers if passes > 1 else ()), portions * passes * 4)


def _onesweep(major: int, key: int, value: int, is_float: bool) -> tuple[int, int]:
    """Threads and items of a tile, as ``cub/device/dispatch/tuning/tuning_radix_sort.cuh``."""
    if major < 8:
        return 256, 46 if key == 4 and value == 4 else 23
    if major < 9:
        return 384, 17 if key == 4 and value else 21
    if key < 4:
        table = _SMALL_KEYS_HOPPER if major < 10 else _SMALL_KEYS_BLACKWELL
        return table[key, value]
    if key == 4:
        if not value:
            return 384, 19 - is_float
        return 384, 17 if value < 8 else 29
    return 384, 30 if value < 8 else 24


def _tile(threads: int, items: int, size: int) -> int:
    """Items that a block of threads sorts, scaled by the larger of a key and a value."""
    items = max(1, items * 4 // max(4, size))
    return items * min(threads, -(-(_SHARED // (size * items)) // 32) * 32)


def _histograms_of_blocks(gpu: GPU, key: int, value: int) -> int:
    """At most: as many blocks as the GPU has threads for; registers may allow fewer."""
    digits = 1 << (7 if key > 1 else 5)
    size = max(key, value)
    threads = min(512, -(-(_SHARED // (size * max(1, 23 * 4 // max(4, size)))) // 32) * 32)
    resident = gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // threads)
    # ``spine_length`` in ``dispatch_radix_sort.cuh``: the digits of each block, and a tile of
    # ``AgentScanPolicy<512, 23, OffsetT>``, whose 23 items of 4 bytes are 11 of 8.
    return (resident * _MOST_BLOCKS_PER_PROCESSOR * digits + 512 * 11) * _OFFSET


def segmented_radix_sort(count: int, key: int, value: int) -> int:
    """Bytes that ``DeviceSegmentedRadixSort`` asks for: one more buffer of keys and of values."""
    return _blob(count * key, count * value)


def scan(count: int, size: int) -> int:
    """Bytes that ``DeviceScan`` asks for: an estimate, as some GPUs take tiles of another size."""
    # Tiles are those of ``Policy600``: 128 threads with 15 words of 4 bytes each.
    # ``TxnWord`` of ``ScanTileState`` in ``single_pass_scan_operators.cuh``: a status as wide as
    # the element and the element, in a word that has 4 bytes also where both have 1.
    return _states(count, 128 * max(1, min(60 // size, 30)), max(4, 2 * size))


def _is_tuned(gpu: GPU) -> bool:
    """True if scans by key and selections have tunings for a GPU: 8.6 and 8.9 have none."""
    return (gpu.major, gpu.minor) == (8, 0) or gpu.major >= 9


@decision
def scan_by_key(gpu: GPU, count: int, size: int) -> int:
    """Bytes that ``DeviceScan::InclusiveScanByKey`` asks for, by the bytes of a key and a value."""
    # Both are as wide, of 4 or 8 bytes; that a tuning holds for the operator is an estimate.
    tile = _TILES_BY_KEY[min(gpu.major, 10), size] if _is_tuned(gpu) else _TILE_BY_KEY
    tiles = -(-count // tile)
    return _blob((tiles + _TILE_STATES) * 16, size * (tiles + 1))


def select(count: int, size: int) -> int:
    """Bytes that ``DeviceSelect`` asks for: tiles of 128 by 10 words of 4 bytes, an estimate."""
    return _states(count, 128 * max(1, min(40 // size, 10)), 8)


@decision
def flagged(gpu: GPU, count: int) -> int:
    """Bytes that ``DeviceSelect::Flagged`` asks for, of elements of 8 bytes."""
    if not _is_tuned(gpu):
        return select(count, 8)
    return _states(count, _TILES_OF_FLAGGED[min(gpu.major, 10)], 8)


def run_lengths(count: int, size: int) -> int:
    """Bytes that ``DeviceRunLengthEncode`` asks for: tiles of 128 by 6 items, an estimate."""
    return _states(count, 128 * 6, 16 if size <= 8 else 32)


def reduce(gpu: GPU, count: int, size: int) -> int:
    """Bytes that ``DeviceReduce`` asks for: 1 for one block, else an element of each block."""
    # Blocks are those of ``Policy600``: 256 threads with 16 words of 4 bytes each.
    if count <= 256 * max(1, min(64 // size, 32)):
        return 1
    resident = gpu.multi_processor_count * (gpu.max_threads_per_multi_processor // 256)
    return _blob(resident * _MOST_BLOCKS_PER_PROCESSOR * size)


def _states(count: int, tile: int, state: int) -> int:
    return _blob((-(-count // tile) + _TILE_STATES) * state)


def _blob(*buffers: int) -> int:
    return sum(-(-size // 256) * 256 for size in buffers) + 255
