"""The categories of blocks: by the objects that reference them, or by how they ended."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import torch

from .._common.frames.call_stacks import FrameLine, call_stacks
from .._common.frames.user_code import is_of_user
from .._common.process.garbage_collection import no_garbage_collection
from .._common.torch.storages import storages_of
from ..tensors.live_objects import gradient_of, live_objects, parameters_of, states_of, tensors_in
from ..tensors.memory import Piece, pieces_of
from ..tensors.saved import grad_fn, saved_by_graphs
from .live_blocks import BACKWARD, FORWARD, FORWARD_WITH_NODE, NOT_SEEN, LiveBlock, read_ends
from .model import Category


class TensorCategories:
    """Categories of tensors at one moment, by who holds them."""

    def __init__(
        self, modules: Iterable[torch.nn.Module], optimizers: Iterable[torch.optim.Optimizer]
    ) -> None:
        self._known: dict[int, Category] = {}
        for optimizer in optimizers:
            self._add(_tensors_of_state(optimizer), Category.OPTIMIZER_STATE)
            parameters = tensors_in(parameters_of(optimizer))
            self._add((tensor for _, tensor in parameters), Category.PARAMETERS)
        for module in modules:
            for tensors, category in _own_tensors(module):
                self._add(tensors, category)

    def of(self, tensor: torch.Tensor) -> Category:
        """The category of a tensor that is no gradient, and not saved for backward alone."""
        if issubclass(type(tensor), torch.nn.Parameter):
            return Category.PARAMETERS
        return self._known.get(id(tensor), Category.OTHERS)

    def _add(self, tensors: Iterable[torch.Tensor | None], category: Category) -> None:
        for tensor in tensors:
            if tensor is not None:
                self._known[id(tensor)] = category


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[Iterable[Any], Category]]:
    own = vars(module)
    yield (own.get("_buffers") or {}).values(), Category.BUFFERS
    yield (own.get("_parameters") or {}).values(), Category.PARAMETERS


BlockOf = Callable[[Piece], LiveBlock | None]
"""Gives the block of a piece of a tensor; None if it is not followed."""

_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))

Note = Callable[[Sequence[torch.UntypedStorage], Category], object]
"""Takes the category of storages."""

_untyped_storage = torch._C.TensorBase.untyped_storage


def mark(tensors: Iterable[torch.Tensor | None], category: Category, note: Note) -> None:
    # This runs for every tensor of an optimizer in every step: most are plain.
    storages = []
    try:
        for tensor in tensors:
            if tensor is None:
                continue
            if type(tensor) in _PLAIN and tensor.layout is torch.strided:
                storages.append(_untyped_storage(tensor))
            else:
                storages += _storages(tensor)
    finally:  # what comes before a tensor that refuses counts
        note(storages, category)


def mark_module(module: torch.nn.Module, note: Note) -> None:
    for part in module.modules():
        mark_own_tensors(part, note)


def mark_own_tensors(module: torch.nn.Module, note: Note) -> None:
    for tensors, category in _own_tensors(module):
        mark(tensors, category, note)


def mark_parameters(optimizer: torch.optim.Optimizer, note: Note) -> None:
    for group in optimizer.param_groups:
        parameters = list(group["params"])
        mark(parameters, Category.PARAMETERS, note)
        mark((parameter.grad for parameter in parameters), Category.GRADIENTS, note)


def mark_state(optimizer: torch.optim.Optimizer, note: Note) -> None:
    mark(_tensors_of_state(optimizer), Category.OPTIMIZER_STATE, note)


def _tensors_of_state(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    for _, state in states_of(optimizer):
        if type(state) is dict and _PLAIN.issuperset(map(type, state.values())):
            yield from state.values()
        else:
            yield from (tensor for _, tensor in tensors_in(state))


def live_categories(block_of: BlockOf) -> dict[LiveBlock, Category]:
    """The categories of blocks in use by all that is alive now."""
    # What autograd keeps counts as saved unless the program made it outside of modules without a
    # node, as an input.
    with no_garbage_collection(), torch._C.DisableTorchFunction():
        return dict(_categories(block_of))


def address_categories() -> dict[int, Category]:
    """The categories of blocks by all that is alive now, by the addresses of the blocks."""
    blocks: dict[int, LiveBlock] = {}

    def block_of(piece: Piece) -> LiveBlock | None:
        kind, address = piece.storage
        if kind != "address":
            return None
        return blocks.setdefault(address, LiveBlock(address, piece.nbytes, piece.nbytes))

    categories = live_categories(block_of)
    return {block.address: category for block, category in categories.items()}


def _categories(block_of: BlockOf) -> Iterator[tuple[LiveBlock, Category]]:
    """Blocks with their categories, the one that counts last."""
    tensors, modules, optimizers, nodes = live_objects()

    def blocks_of(tensor: torch.Tensor) -> Iterator[LiveBlock]:
        for piece in pieces_of(tensor):
            block = block_of(piece)
            if block is not None:
                yield block

    for tensor in tensors:
        for block in blocks_of(tensor):
            yield block, Category.OTHERS
    for _, tensor in saved_by_graphs([*map(grad_fn, tensors), *nodes]):
        for block in blocks_of(tensor):
            in_module = block.made_in == FORWARD and block.module
            if in_module or block.made_in == FORWARD_WITH_NODE or grad_fn(tensor) is not None:
                yield block, Category.SAVED
    for tensor in tensors:
        gradient = gradient_of(tensor)
        for block in () if gradient is None else blocks_of(gradient):
            yield block, Category.GRADIENTS
    categories = TensorCategories(modules, optimizers)
    for tensor in tensors:
        category = categories.of(tensor)
        if category is not Category.OTHERS:
            for block in blocks_of(tensor):
                yield block, category


def _storages(tensor: torch.Tensor) -> list[torch.UntypedStorage]:
    try:
        return storages_of(getattr(tensor, "_local_tensor", tensor))  # that of a DTensor
    except Exception:  # a subclass that refuses
        return []


_TORCH: Final = os.path.dirname(torch.__file__)
_AUTOGRAD: Final = torch.autograd.__file__
_MAKE_THEIR_OWN: Final = tuple(
    os.path.join(_TORCH, *parts, "") for parts in (("nn", "modules"), ("optim",))
)
"""Folders whose functions make parameters, buffers and state when no module is called."""


def freed_category(block: LiveBlock) -> Category:
    """The category of a block that was freed. See Note [Categories of freed blocks]."""
    if block.category is not Category.UNKNOWN:
        return block.category
    if not block.is_data:
        return Category.WORKSPACES if block.made_in != NOT_SEEN else Category.UNKNOWN
    made = call_stacks.number_of(block)
    if not made or block.end is None:
        return Category.UNKNOWN
    if block.call:
        return Category.SAVED if block.made_in == FORWARD_WITH_NODE else Category.OTHERS
    if not isinstance(block.end, int):
        read_ends((block,))
    return _of_made_and_ended(made, block.end, block.made_in == BACKWARD)


@lru_cache(maxsize=2**16)
def _of_made_and_ended(made: int, ended: int, is_backward: bool) -> Category:
    places = call_stacks.places_of(made)
    own = [place for place in places if is_of_user(place[0])]
    at_end = [place for place in call_stacks.places_of(ended) if is_of_user(place[0])]
    if is_backward and own != at_end and _leaves_gradients(places):
        return Category.GRADIENTS
    # The line that made the block, or the line of its caller, still ran when it was freed.
    if own == at_end or (len(at_end) > 1 and own[-len(at_end) :] == at_end):
        return Category.TEMPORARIES
    return Category.UNKNOWN if _is_made_by_torch(places) else Category.OTHERS


def _leaves_gradients(places: Sequence[FrameLine]) -> bool:
    """True if the backward pass that runs is one of ``backward()``, not of ``grad()``."""
    calls = (name for file, _, name in places if file == _AUTOGRAD and name in ("backward", "grad"))
    return next(calls, "") == "backward"


def _is_made_by_torch(places: Sequence[FrameLine]) -> bool:
    for filename, _, _ in places:
        if is_of_user(filename):
            return False
        if filename.startswith(_MAKE_THEIR_OWN):
            return True
    return False
