"""The categories of blocks in use, by the objects of the program that hold them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..storages import storages_of
from .category import Category
from .live_blocks import FORWARD, FORWARD_WITH_NODE

if TYPE_CHECKING:
    from .live_blocks import LiveBlock

BlockOf = Callable[[int], "LiveBlock | None"]
"""Gives the block of the storage that has a number (``_cdata``); None if it is not followed."""


def mark(tensors: Iterable[torch.Tensor | None], category: Category, block_of: BlockOf) -> None:
    """Give the blocks of tensors a category.

    Args:
        tensors: of any class; None is no tensor.
        category: of them all.
        block_of: finds blocks.
    """
    for tensor in tensors:
        for number in () if tensor is None else _storage_numbers(tensor):
            block = block_of(number)
            if block is not None:
                block.category = category


def mark_module(module: torch.nn.Module, block_of: BlockOf) -> None:
    """Give the blocks of a module's parameters and buffers, and of its parts', their categories."""
    for part in module.modules():
        own = vars(part)
        mark((own.get("_buffers") or {}).values(), Category.BUFFERS, block_of)
        mark((own.get("_parameters") or {}).values(), Category.PARAMETERS, block_of)


def mark_parameters(optimizer: torch.optim.Optimizer, block_of: BlockOf) -> None:
    """Give the blocks of an optimizer's parameters and of their gradients their categories."""
    for group in optimizer.param_groups:
        parameters = list(group["params"])
        mark(parameters, Category.PARAMETERS, block_of)
        mark((one.grad for one in parameters), Category.GRADIENTS, block_of)


def mark_state(optimizer: torch.optim.Optimizer, block_of: BlockOf) -> None:
    """Give the blocks of an optimizer's state their category."""
    from ..reporter.names import states_of, tensors_in

    for _, state in states_of(optimizer):
        tensors = (tensor for _, tensor in tensors_in(state))
        mark(tensors, Category.OPTIMIZER_STATE, block_of)


def categories_of_living(block_of: BlockOf) -> dict[LiveBlock, Category]:
    """The categories of blocks in use by all that is alive now.

    What autograd keeps counts as saved unless the program made it outside of modules without a
    node, as an input.

    Args:
        block_of: finds blocks.

    Returns:
        the category of each block that a living tensor has.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        return dict(_categories(block_of))
    finally:
        if was_on:
            gc.enable()


def _categories(block_of: BlockOf) -> Iterator[tuple[LiveBlock, Category]]:
    """Blocks with their categories, the one that counts last."""
    from ..reporter.categories import Categories
    from ..tensors.living import gradient_of, living
    from ..tensors.memory import pieces_of
    from ..tensors.saved import grad_fn, held_by_graphs

    classes = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch._C._FunctionBase)
    found: dict[type, list[Any]] = {each: [] for each in classes}
    for item in living(*classes):
        found[next(each for each in classes if issubclass(type(item), each))].append(item)
    tensors, modules, optimizers, nodes = found.values()

    def blocks_of(tensor: torch.Tensor) -> Iterator[LiveBlock]:
        for piece in pieces_of(tensor):
            block = block_of(piece.number)
            if block is not None:
                yield block

    for tensor in tensors:
        for block in blocks_of(tensor):
            yield block, Category.OTHERS
    for _, tensor in held_by_graphs([*map(grad_fn, tensors), *nodes]):
        for block in blocks_of(tensor):
            in_module = block.made_in == FORWARD and block.module
            if in_module or block.made_in == FORWARD_WITH_NODE or grad_fn(tensor) is not None:
                yield block, Category.SAVED
    for tensor in tensors:
        gradient = gradient_of(tensor)
        for block in () if gradient is None else blocks_of(gradient):
            yield block, Category.GRADIENTS
    known = Categories(modules, optimizers)
    for tensor in tensors:
        category = Category(known.of(tensor))
        if category is not Category.OTHERS:
            for block in blocks_of(tensor):
                yield block, category


def _storage_numbers(tensor: torch.Tensor) -> list[int]:
    try:
        tensor = getattr(tensor, "_local_tensor", tensor)  # of a DTensor
        return [storage._cdata for storage in storages_of(tensor)]
    except Exception:  # a subclass that refuses
        return []
