"""One kernel for all calls of ``scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Final

import torch

from ..._common.patches import Patches
from ...simulation.inspect import attention_backends
from .remedy import Finding, Remedy, already_used, applied, does_not_apply

Backend = attention_backends.Backend

_Select = Callable[[attention_backends.Call], Backend]

_SWITCHES: Final = {
    "FLASH_ATTENTION": "flash_sdp",
    "EFFICIENT_ATTENTION": "mem_efficient_sdp",
    "CUDNN_ATTENTION": "cudnn_sdp",
    "MATH": "math_sdp",
}
"""By member of ``SDPBackend``, the end of the names in ``torch.backends.cuda``."""

_BACKENDS: Final = {
    "sdpa_flash": (Backend.FLASH, "FLASH_ATTENTION"),
    "sdpa_efficient": (Backend.EFFICIENT, "EFFICIENT_ATTENTION"),
    "sdpa_cudnn": (Backend.CUDNN, "CUDNN_ATTENTION"),
    "sdpa_math": (Backend.MATH, "MATH"),
}


class AttentionBackend(Remedy):
    """Attention runs on one backend wherever the program leaves the choice to PyTorch."""

    def __init__(self, name: str, what_it_changes: str) -> None:
        self.name = name
        self.what_it_changes = what_it_changes

    def patch(self, patches: Patches) -> None:
        self._is_called = self._is_changed = self._is_alike = False
        self._against: str | None = None
        self._backend, self._member = _BACKENDS[self.name]
        self._before = _enabled()
        select = attention_backends.select
        patches.set_by_name((select, wraps(select)(partial(self._choose, select))))

    def finding(self) -> Finding:
        if self._against is not None:
            return does_not_apply(self._against)
        if not self._is_called:
            return does_not_apply("scaled_dot_product_attention is never called")
        if self._is_changed:
            others = [switch for member, switch in _SWITCHES.items() if member != self._member]
            return applied([f"torch.backends.cuda.enable_{switch}(False)" for switch in others])
        if self._is_alike:
            return already_used("all attention runs on it")
        return does_not_apply("the program chooses the kernel of attention itself")

    def _choose(self, original: _Select, call: attention_backends.Call) -> Backend:
        self._is_called = True
        without = original(call)
        if without is self._backend:
            self._is_alike = True
            return without
        if _enabled() != self._before:  # the program chooses here
            return without
        self._against = self._against or attention_backends.against(self._backend, call)
        if self._against is not None:  # there is an error where it is the only one
            return without
        self._is_changed = True
        return self._backend


def _enabled() -> list[str]:
    """Members of ``SDPBackend`` that are switched on."""
    cuda: Any = torch.backends.cuda
    return [
        member
        for member, switch in _SWITCHES.items()
        if getattr(cuda, f"{switch}_enabled", lambda: False)()
    ]
