"""What an exception holds of the simulation on its way out: nothing, as it leaves C++."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

_OURS = os.path.dirname(__file__) + os.sep


def let_go(error: BaseException) -> None:
    """Drop what the simulation's own frames hold that an exception has passed through.

    A traceback keeps the frames that it names, and with them the tensors that they work on. On CUDA
    these frames are C++'s, which are gone once they are left. Frames of the program and of torch
    keep what they hold, as on CUDA. Where a GPU is full, the traceback does not name these frames
    either: what the user wants to see is the line that did not fit.

    Args:
        error: that is on its way; the frame that handles it must let go by itself.
    """
    places = list(_places(error))
    for place in places:
        if _is_ours(place):
            with suppress(RuntimeError):  # it runs still
                place.tb_frame.clear()
    if isinstance(error, torch.cuda.OutOfMemoryError):
        following = None
        for place in reversed(places):
            if not _is_ours(place):
                place.tb_next = following
                following = place
        error.__traceback__ = following


def _places(error: BaseException) -> Iterator[TracebackType]:
    place = error.__traceback__
    while place is not None:
        yield place
        place = place.tb_next


def _is_ours(place: TracebackType) -> bool:
    return place.tb_frame.f_code.co_filename.startswith(_OURS)
