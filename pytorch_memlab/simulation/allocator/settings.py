"""The allocator's settings, as PYTORCH_CUDA_ALLOC_CONF writes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .alloc_conf import (
    LARGE_SEGMENT_SIZE,
    MB,
    MIN_LARGE_ALLOCATION,
    NO_LIMIT,
    ROUNDUP_INTERVALS,
    read_alloc_conf,
)

MIN_BLOCK_SIZE = 512
SMALL_SIZE = MB
SMALL_SEGMENT_SIZE = 2 * MB
ROUND_LARGE = 2 * MB


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The settings of the caching allocator, with the defaults of PyTorch.

    Args:
        max_split_size: blocks of this many bytes and more are not split.
        max_non_split_rounding_size: bytes by which a block that is not split may exceed a request.
        roundup_power2_divisions: steps from one power of two to the next to which sizes are
            rounded up, for 1 MiB, 2 MiB, 4 MiB ... 32 GiB; 0 or 1: to 512 bytes instead.
        garbage_collection_threshold: share of the allowed memory above which cached blocks are
            freed, 0: never.
        expandable_segments: whether segments grow.
        large_segment_size: bytes of a segment that serves requests from 1 to 10 MiB, and of a page
            of an expandable segment of the large pool.
        per_process_memory_fraction: share of the GPU that may be used.
        throw_on_cudamalloc_oom: whether a request above that share fails before it is tried.
    """

    max_split_size: int = NO_LIMIT
    max_non_split_rounding_size: int = LARGE_SEGMENT_SIZE
    roundup_power2_divisions: tuple[int, ...] = (0,) * ROUNDUP_INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    large_segment_size: int = LARGE_SEGMENT_SIZE
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False

    @classmethod
    def parse(cls, text: str) -> AllocatorSettings:
        """Read a PYTORCH_CUDA_ALLOC_CONF string.

        Keys without effect on a simulated GPU, such as the ``pinned_`` ones, are checked only.

        >>> AllocatorSettings.parse("max_split_size_mb:128").max_split_size
        134217728
        """
        return cls().changed_by(text)

    def changed_by(self, text: str) -> AllocatorSettings:
        """Read a string that a program sets while it runs.

        Three settings fall back to their defaults where the string does not name them:
        ``max_split_size``, ``roundup_power2_divisions`` and ``garbage_collection_threshold``
        (``AcceleratorAllocatorConfig::parseArgs``, c10/core/AllocatorConfig.cpp).

        >>> settings = AllocatorSettings.parse("max_split_size_mb:30,expandable_segments:True")
        >>> settings = settings.changed_by("garbage_collection_threshold:0.8")
        >>> settings.max_split_size == NO_LIMIT, settings.expandable_segments
        (True, True)
        """
        kept = replace(
            self,
            max_split_size=NO_LIMIT,
            roundup_power2_divisions=(0,) * ROUNDUP_INTERVALS,
            garbage_collection_threshold=0.0,
        )
        return replace(kept, **read_alloc_conf(text, self.large_segment_size))

    def round_size(self, size: int) -> int:
        """Return the bytes of the block that serves a request of `size` bytes (1 or more).

        A multiple of 512; or, where ``roundup_power2_divisions`` says so and the size is more than
        512 bytes a step, the next of that many steps between two powers of two.
        """
        if size < MIN_BLOCK_SIZE:
            return MIN_BLOCK_SIZE
        exponent = size.bit_length() - 1
        divisions = self.roundup_power2_divisions[min(max(exponent - 20, 0), ROUNDUP_INTERVALS - 1)]
        step = MIN_BLOCK_SIZE
        if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
            step = (1 << exponent) // divisions
        return -(-size // step) * step

    def segment_size(self, size: int) -> int:
        """Return the bytes of the new segment for a block of `size` bytes.

        2 MiB for blocks of up to 1 MiB; a large segment for those below 10 MiB; above, the size
        rounded up to 2 MiB.
        """
        if size <= SMALL_SIZE:
            return SMALL_SEGMENT_SIZE
        if size < MIN_LARGE_ALLOCATION:
            return self.large_segment_size
        return -(-size // ROUND_LARGE) * ROUND_LARGE
