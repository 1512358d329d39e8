"""Gradients of the step before are still there in the forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._common.patches import Patches
from ..._common.prose_size import prose_size
from ...history.model import Category
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied, does_not_apply
from ..cause import Cause, NamedChange, Remedy
from ..evidence import is_in_optimizer
from ..program_lines import Line, user_lines, with_keywords

_NAME = "zero_grad"


class SetToNone(AroundProgram):
    """``zero_grad`` frees the gradients where the program asks it to keep them."""

    name = "set_to_none"
    what_it_changes = "p.grad is None after zero_grad, not a tensor of zeros"

    def patch(self, patches: Patches) -> None:
        import torch

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


class GradientsKept(Cause):
    """A forward pass runs while the gradients of the last step are in use."""

    name = "gradients of the step before"
    order = 130
    tried_by_name = (NamedChange("set_to_none", SetToNone),)

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        gradients = oom.of_category(Category.GRADIENTS)
        if oom.node or is_in_optimizer(oom) or not gradients or gradients < oom.shortage:
            return None
        return self.found(
            gradients,
            f"gradients of the step before take {prose_size(gradients)}",
            "optimizer.zero_grad(set_to_none=True)  # before the forward pass",
            change=SetToNone(),
        )
