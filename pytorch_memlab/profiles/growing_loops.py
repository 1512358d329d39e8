"""Loops each of whose iterations leaves as much memory as the one before."""

from __future__ import annotations

import ast
import textwrap
from functools import lru_cache
from typing import Final

from ..history.model import Category
from ..records import FunctionInfo, LineEntry
from .recorded import GrowingLoop, RecordedProfile

_FEWEST: Final = 3
"""Iterations in a row that leave more, until they count as growth."""
_MODEL: Final = frozenset(
    {Category.PARAMETERS, Category.GRADIENTS, Category.OPTIMIZER_STATE, Category.BUFFERS}
)
"""A loop that makes these builds a model."""


def growing_loops(profile: RecordedProfile) -> tuple[GrowingLoop, ...]:
    """Of each device the loop whose iterations left most, if there is one."""
    # A loop in ``forward`` goes through the layers of a model, and most of its iterations a program
    # goes through again and again: neither is growth.
    largest: dict[str, GrowingLoop] = {}
    for entry in profile.entries:
        function = profile.functions[entry.code_id]
        if _grows(entry) and function.qual_name.rpartition(".")[2] != "forward":
            loop = GrowingLoop(
                entry.code_id, entry.line, entry.device.name, entry.rise, entry.rises, entry.hits
            )
            largest_before = largest.get(loop.device)
            is_larger = largest_before is None or (loop.nbytes, loop.rises) > (
                largest_before.nbytes,
                largest_before.rises,
            )
            if is_larger and entry.line in _loops(function) and _is_no_model(profile, loop):
                largest[loop.device] = loop
    return tuple(largest.values())


def _grows(entry: LineEntry) -> bool:
    return entry.rises >= _FEWEST and 2 * entry.rises >= entry.hits - _FEWEST


def _is_no_model(profile: RecordedProfile, loop: GrowingLoop) -> bool:
    """True if what the loop left can be something else, as far as the peak tells."""
    held = profile.peaks.get(loop.device)
    if held is None:
        return True
    others = sum(category.size for category in held.by_category() if category.name not in _MODEL)
    return 2 * others >= loop.nbytes


@lru_cache
def _loops(function: FunctionInfo) -> frozenset[int]:
    """The lines at which loops of a function begin."""
    try:
        tree = ast.parse(textwrap.dedent("\n".join(function.source or ())))
    except (SyntaxError, ValueError, RecursionError):
        return frozenset()
    return frozenset(
        node.lineno + function.first_line - 1
        for node in ast.walk(tree)
        if isinstance(node, (ast.For, ast.While, ast.AsyncFor))
    )
