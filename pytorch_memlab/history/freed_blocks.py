"""The categories of blocks that were freed, as far as their ends tell them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import torch

from .._common.user_code import is_of_user
from .category import Category
from .live_block import BACKWARD, FORWARD_WITH_NODE, NOT_SEEN

if TYPE_CHECKING:
    from .._common.call_stacks import CallStacks, Place
    from .live_block import LiveBlock

_TORCH: Final = os.path.dirname(torch.__file__)
_MAKE_THEIR_OWN: Final = tuple(
    os.path.join(_TORCH, *parts, "") for parts in (("nn", "modules"), ("optim",))
)
"""Folders whose functions make parameters, buffers and state when no module is called."""


class FreedCategories:
    """The categories of blocks that were freed. See Note [Categories of freed blocks]."""

    def __init__(self, stacks: CallStacks) -> None:
        self._stacks = stacks
        self._of_stacks: dict[tuple[int, int, bool], Category] = {}

    def of(self, block: LiveBlock) -> Category:
        """The category of a block."""
        if block.category is not Category.UNKNOWN:
            return block.category
        if not block.is_data:
            return Category.WORKSPACES if block.made_in != NOT_SEEN else Category.UNKNOWN
        number_of = self._stacks.number_of
        made = number_of(block)
        if not made or block.end is None:
            return Category.UNKNOWN
        if block.call:
            return Category.SAVED if block.made_in == FORWARD_WITH_NODE else Category.OTHERS
        key = made, number_of(block.end), block.made_in == BACKWARD
        known = self._of_stacks.get(key)
        if known is None:
            known = self._of_stacks[key] = self._of_made_and_ended(*key)
        return known

    def _of_made_and_ended(self, made: int, ended: int, is_backward: bool) -> Category:
        places = self._stacks.places_of(made)
        if _ended_in_its_line(_of_program(places), _of_program(self._stacks.places_of(ended))):
            return Category.TEMPORARIES
        return Category.UNKNOWN if is_backward or _is_made_by_torch(places) else Category.OTHERS


def _ended_in_its_line(made: list[Place], ended: list[Place]) -> bool:
    """True if the line that made a block, or its caller's line, still ran at the block's end."""
    return made == ended or (len(ended) > 1 and made[-len(ended) :] == ended)


def _of_program(places: Sequence[Place]) -> list[Place]:
    """The frames of the program, innermost first."""
    return [place for place in places if is_of_user(place[0])]


def _is_made_by_torch(places: Sequence[Place]) -> bool:
    for filename, _, _ in places:
        if is_of_user(filename):
            return False
        if filename.startswith(_MAKE_THEIR_OWN):
            return True
    return False
