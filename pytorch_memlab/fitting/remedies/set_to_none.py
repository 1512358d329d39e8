"""Gradients that are freed rather than filled with zeros."""

from __future__ import annotations

from collections.abc import Callable
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

    def patch(self, patches: Patches) -> None:
        self._is_called = self._is_changed = False
        self._lines: dict[Line, None] = {}
        for owner in (torch.optim.Optimizer, torch.nn.Module):
            patches.around(owner, _NAME)(self._zero_grad)

    def finding(self) -> Finding:
        if self._is_changed:
            edits = [with_keywords(line, _NAME, {"set_to_none": "True"}) for line in self._lines]
            return applied(["optimizer.zero_grad(set_to_none=True)"], edits)
        if self._is_called:
            return already_used("zero_grad sets gradients to None")
        return does_not_apply("zero_grad is never called")

    def _zero_grad(
        self, original: Callable[..., None], owner: Any, set_to_none: bool = True
    ) -> None:
        self._is_called = True
        if not set_to_none:
            self._is_changed = True
            self._lines |= dict.fromkeys(user_lines()[:1])
        original(owner, True)
