"""Ops of libraries whose kernels are Python functions (``torch.library``): what they call is seen.

PyTorch calls such a kernel below every mode. Here it runs inside the simulation's, so that each op
in it is accounted for, as on a GPU, and may name one.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

_KEYS = ("CUDA", "CompositeExplicitAutograd")
"""Where a GPU's kernel is looked for; one of the CPU says nothing of it."""


def python_kernel_of(op: Any) -> Callable[..., Any] | None:
    """The Python function that is an op's kernel on a GPU.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        a function of the op's arguments; None if its kernel is none of Python's.
    """
    if op.namespace == "aten":
        return None
    name = op.name().replace("::", "/")
    written_in_python: set[str] = getattr(torch.library, "_impls", set())
    for key in _KEYS:
        if f"{name}/{key}" in written_in_python:
            return partial(op._op_dk, getattr(torch._C.DispatchKey, key))
    return None
