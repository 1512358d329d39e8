"""One kernel for all calls of ``scaled_dot_product_attention``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
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

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Choose the backend while all that were switched on are so."""
        self._calls = self._changed = self._alike = 0
        self._against: str | None = None
        self._backend, self._member = _BACKENDS[self.name]
        self._before = _enabled()
        with Patches() as patches:
            select = attention_backends.select
            patches.set_by_name((select, self._choosing(select)))
            yield

    def finding(self) -> Finding:
        """Applied if another backend ran before."""
        if self._against is not None:
            return does_not_apply(self._against)
        if not self._calls:
            return does_not_apply("scaled_dot_product_attention is never called")
        if self._changed:
            others = [switch for member, switch in _SWITCHES.items() if member != self._member]
            return applied([f"torch.backends.cuda.enable_{switch}(False)" for switch in others])
        if self._alike:
            return already_used("all attention runs on it")
        return does_not_apply("the program chooses the kernel of attention itself")

    def _choosing(self, original: _Select) -> _Select:
        @wraps(original)
        def choose(call: attention_backends.Call) -> Backend:
            self._calls += 1
            without = original(call)
            if without is self._backend:
                self._alike += 1
                return without
            if _enabled() != self._before:  # the program chooses here
                return without
            self._against = self._against or attention_backends.against(self._backend, call)
            if self._against is not None:  # there is an error where it is the only one
                return without
            self._changed += 1
            return self._backend

        return choose


def _enabled() -> list[str]:
    """Members of ``SDPBackend`` that are switched on."""
    cuda: Any = torch.backends.cuda
    return [
        member
        for member, switch in _SWITCHES.items()
        if getattr(cuda, f"{switch}_enabled", lambda: False)()
    ]
