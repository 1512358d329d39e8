"""The program is right, and its batch is too large for this GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from typing import Final

from ..._common.text.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import BlockInUse, OutOfMemory
from ..batch_size import BatchNumber, batch_number
from ..cause import Basis, Cause, Remedy
from ..evidence import FIXED

_OF_WORDS: Final = ("int64", "int32")
_CHANNELS: Final = (1, 3, 4)  # of grey, of colours, of latents or of colours that let light through
_RECURRENT: Final = "CudnnRnn"  # the beginning of such a name
_TAKES_IMAGES: Final = ("Conv", "CudnnConv")  # beginnings of names of nodes of autograd


class Batch(Cause):
    """Most of the memory grows with the batch, and nothing else is wrong."""

    name = "the size of the batch"
    order = 193
    is_last_resort = True

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        sizes = Counter[int]()
        for block in oom.blocks:
            if block.category not in FIXED and len(block.shape) > 1:
                sizes[block.shape[0]] += block.size
        batch, size = _batch_of_most(oom, sizes)
        if size * 4 < oom.in_use or not size:
            return None
        total = size + oom.request.requested
        tokens = {block.shape[0] * block.shape[1] for block in oom.blocks if len(block.shape) > 2}
        second = _second_dimension(oom)
        lengths = [*second, batch, *(length for length, _ in sizes.most_common())]
        number = batch_number(oom, lengths, sorted(tokens), is_second=bool(second))
        change = None
        if number is not None:
            room = oom.request.capacity - (oom.in_use - size)
            smaller = max(1, min(number.value // 2, number.value * room // (total * 2)))
            change = number.changed_to(smaller)
        return self.found(
            oom.shortage,
            f"tensors whose first dimension is {batch} or a multiple of it take {prose_size(total)}"
            if number is None
            else f"{_described(oom, number, batch)} take {prose_size(total)}",
            *(
                ["a smaller batch  # pytorch-memlab fit --vary finds the largest that fits"]
                if change is None
                else change.code
            ),
            basis=Basis.ESTIMATED,
            change=change,
        )


def _batch_of_most(oom: OutOfMemory, sizes: Counter[int]) -> tuple[int, int]:
    """The length that is a batch of most bytes, and these; 0 of each if there is none."""
    # Samples times heads, or times words, are multiples of the samples.
    least = sizes.total() / 10
    of_steps = sum(block.size for block in oom.blocks if _is_of_steps(block))
    multiples = {
        batch: of_steps + sum(size for length, size in sizes.items() if length % batch == 0)
        for batch, size in sizes.most_common()
        if batch > 1 and size >= least
    }
    return max(multiples.items(), key=lambda pair: pair[1], default=(0, 0))


def _described(oom: OutOfMemory, number: BatchNumber, batch: int) -> str:
    """A batch as several of something, or by the option that the program has for a dimension."""
    if number.given is not None and number.is_dimension:
        return f"tensors of {number.given.text(number.value)}"
    return f"{number.value} {_unit(oom, number, batch)} at a time"


def _unit(oom: OutOfMemory, number: BatchNumber, batch: int) -> str:
    """The name of what a batch has several of."""
    if number.is_of_tokens:
        return "tokens"
    lengths = {
        block.shape[1] for block in oom.blocks if len(block.shape) == 3 and "float" in block.dtype
    }
    of_batch = [
        block
        for block in oom.blocks
        if block.category not in FIXED and block.shape[:1] in ((batch,), (number.value,))
    ]
    has_sequences = any(map(_is_of_sequences, of_batch)) or _has_columns(oom, number.value)
    has_images = any(_is_of_images(block, lengths) for block in of_batch)
    if has_sequences == has_images:  # none, or images and their captions
        return "samples"
    return "sequences" if has_sequences else "images"


def _is_of_sequences(block: BlockInUse) -> bool:
    """True for numbers of words, as rows."""
    return len(block.shape) == 2 and block.shape[1] > 1 and block.dtype in _OF_WORDS


def _has_columns(oom: OutOfMemory, batch: int) -> bool:
    """True for numbers of words as columns, and what is computed of them in the same layout."""
    columns = [block for block in oom.blocks if block.shape[1:2] == (batch,)]
    return any(map(_is_of_sequences, columns)) and any(
        len(block.shape) == 3 and "float" in block.dtype for block in columns
    )


def _second_dimension(oom: OutOfMemory) -> list[int]:
    """The batch of a recurrent layer whose tensors have it behind the length, if there is one."""
    # Its states have the batch there too. With ``batch_first`` what it reads has not.
    shapes = {
        block.shape
        for block in oom.blocks
        if len(block.shape) == 3
        and "float" in block.dtype
        and block.node.startswith(_RECURRENT)
        and block.category not in FIXED
    }
    batches = {shape[1] for shape in shapes}
    return sorted(batches) if len(shapes) > 1 and len(batches) == 1 else []


def _is_of_steps(block: BlockInUse) -> bool:
    """True for what cuDNN keeps of each step of a recurrent layer, as bytes without a shape."""
    is_flat = len(block.shape) == 1 and block.dtype == "uint8"
    return is_flat and block.node.startswith(_RECURRENT)


def _is_of_images(block: BlockInUse, lengths: Container[int]) -> bool:
    """True for colours or latents; False for scores and masks of attention, which are square."""
    if len(block.shape) != 4 or block.shape[1] not in _CHANNELS:
        return False
    if block.shape[2] == block.shape[3] and block.shape[2] in lengths:
        return False
    is_input = block.category is Category.OTHERS or block.node.startswith(_TAKES_IMAGES)
    return is_input and ("float" in block.dtype or block.dtype == "uint8")
