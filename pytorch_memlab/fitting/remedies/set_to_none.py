"""Gradients that are freed rather than filled with zeros."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch

from ..._common.patches import Patches
from .program_lines import Line, user_lines, with_keywords
from .remedy import Finding, Remedy, already_used, applied, does_not_apply

_NAME = "zero_grad"


class SetToNone(Remedy):
    """``zero_grad`` frees the gradients where the program asks it to keep them."""

    name = "set_to_none"
    what_it_changes = "p.grad is None after zero_grad, not a tensor of zeros"

    def __init__(self) -> None:
        self._calls = 0
        self._lines: dict[Line, None] = {}
        self._changed = 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Free gradients in every ``zero_grad`` of an optimizer or a module."""
        with Patches() as patches:
            for owner in (torch.optim.Optimizer, torch.nn.Module):
                patches.set(owner, _NAME, self._freeing(getattr(owner, _NAME)))
            yield

    def finding(self) -> Finding:
        """Applied if the program kept gradients."""
        if self._changed:
            edits = [with_keywords(line, _NAME, {"set_to_none": "True"}) for line in self._lines]
            return applied(["optimizer.zero_grad(set_to_none=True)"], edits)
        if self._calls:
            return already_used("zero_grad sets gradients to None")
        return does_not_apply("zero_grad is never called")

    def _freeing(self, original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def zero_grad(owner: Any, set_to_none: bool = True) -> None:
            self._calls += 1
            if not set_to_none:
                self._changed += 1
                lines = user_lines()
                if lines:
                    self._lines[lines[0]] = None
            original(owner, True)

        return zero_grad
