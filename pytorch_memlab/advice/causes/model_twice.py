"""The GPU holds a second copy of the parameters."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise

from ..._common.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import BlockInUse, OutOfMemory
from ..cause import Cause, Remedy
from ..evidence import is_much, line_that_assigns, line_with, named_with_line


class ModelTwice(Cause):
    """A checkpoint or a copy has all parameters once more."""

    name = "a second copy of the parameters"
    order = 120

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        copy = second_copy(oom)
        if copy is None:
            return None
        name, size = copy
        named = named_with_line(name, line_that_assigns(oom, name))
        return self.found(
            size,
            f"{named} is a second copy of the parameters: {prose_size(size)}",
            f'{name} on the CPU: map_location="cpu", or .cpu()',
        )


def second_copy(oom: OutOfMemory) -> tuple[str, int] | None:
    """The variable that holds the parameters once more, and its bytes."""
    parameters = Counter(
        (block.shape, block.dtype)
        for block in oom.blocks
        if block.category is Category.PARAMETERS and block.shape
    )
    for name, blocks in _containers(oom).items():
        shapes = Counter((block.shape, block.dtype) for block in blocks)
        same = sum((shapes & parameters).values())
        size = sum(block.size for block in blocks)
        if same >= 2 and 2 * same > sum(shapes.values()) and is_much(size, oom):
            return name, size
    owners = Counter[str]()
    for block in oom.blocks:
        if block.category is Category.PARAMETERS and "." in block.name:
            owners[block.name.partition(".")[0]] += block.size
    for (first, size), (second, other) in pairwise(owners.most_common()):
        if size == other and is_much(other, oom):
            return (second if line_with(oom, rf"\b{second}\s*=.*copy") else first), other
    return None


def _containers(oom: OutOfMemory) -> dict[str, list[BlockInUse]]:
    """Tensors that are no parameters, by the container that leads to them."""
    containers: dict[str, list[BlockInUse]] = {}
    for block in oom.blocks:
        name, bracket, _ = block.name.partition("[")
        if bracket and block.category in (Category.OTHERS, Category.SAVED):
            containers.setdefault(name, []).append(block)
    if any("serialization" in file for _, file in oom.functions) and oom.frames:
        target = re.match(r"\s*(\w+)\s*=", oom.frames[0].place.source)
        if target is not None:  # while it is read nothing leads to it
            containers[target[1]] = [
                block
                for block in oom.blocks
                if block.category is Category.OTHERS and block.shape and not block.name
            ]
    return containers
