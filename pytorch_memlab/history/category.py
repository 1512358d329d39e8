"""Categories of blocks: parameters, gradients, optimizer state, and others."""

from __future__ import annotations

from enum import Enum


class Category(str, Enum):
    """The category of a block; equal to its name in a report."""

    number: int  # its place among the categories

    PARAMETERS = "parameters"  # of modules, also those that only an optimizer has
    GRADIENTS = "gradients"  # of parameters and of other leaves
    OPTIMIZER_STATE = "optimizer state"  # what optimizers keep between steps
    BUFFERS = "buffers"  # of modules
    # what the forward pass made and autograd keeps until the backward pass
    SAVED = "activations saved for backward"
    TEMPORARIES = "temporaries"  # what is freed before the pass that made it ends
    WORKSPACES = "workspaces"  # what kernels take next to their results
    OTHERS = "inputs and other tensors"  # tensors that are none of these, such as inputs
    UNKNOWN = "unknown"  # not known

    def __str__(self) -> str:
        """The name: Python 3.12 would format the member's."""
        return str(self.value)


for _number, _category in enumerate(Category):
    _category.number = _number

_BY_NAME = {category.value: category for category in Category}


def category_named(name: object) -> Category:
    """The category of a name that a file has; ``UNKNOWN`` for any other.

    >>> category_named("gradients"), category_named(7)
    (<Category.GRADIENTS: 'gradients'>, <Category.UNKNOWN: 'unknown'>)
    """
    return _BY_NAME.get(name, Category.UNKNOWN) if isinstance(name, str) else Category.UNKNOWN
