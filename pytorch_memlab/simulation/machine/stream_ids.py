"""The streams of a GPU: PyTorch makes 32 of each priority once, and hands them out in turn."""

from __future__ import annotations

STREAMS_PER_PRIORITY = 32
PRIORITIES = 4
"""The most that PyTorch uses of what a GPU offers (``c10/cuda/CUDAStream.cpp``)."""

_DEVICE_SHIFT = 16
"""Of a handle: the bits of a stream's id, which are fewer, lie below."""


class StreamIds:
    """Hands out the streams of one GPU. An id's bits are those that ``c10::cuda`` gives it."""

    def __init__(self) -> None:
        self._given = [0] * PRIORITIES

    @property
    def any_given(self) -> bool:
        """True if the GPU has other streams than the default one."""
        return any(self._given)

    def next(self, priority: int) -> int:
        """The next stream of a priority."""
        level = min(max(-priority, 0), PRIORITIES - 1)
        index = self._given[level] % STREAMS_PER_PRIORITY
        self._given[level] += 1
        return _id(level, index)


def all_ids() -> list[int]:
    """Ids of all streams of a GPU but the default one."""
    return [
        _id(level, index) for index in range(STREAMS_PER_PRIORITY) for level in range(PRIORITIES)
    ]


def priority_of(stream_id: int) -> int:
    """Priority of a stream."""
    return -max((stream_id >> 1 & 0xF) - 1, 0)


def handle_of(stream_id: int, device_index: int) -> int:
    """A number in place of CUDA's pointer to a stream: 0 for the default stream, or unique."""
    return stream_id and device_index << _DEVICE_SHIFT | stream_id


def id_of(handle: int) -> int:
    """Id of the stream that a handle stands for."""
    return handle & (1 << _DEVICE_SHIFT) - 1


def _id(level: int, index: int) -> int:
    return index << 5 | (level + 1) << 1 | 1
