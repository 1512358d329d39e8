"""``scaled_dot_product_attention`` runs without a fused kernel, as that of three dimensions."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Final

from ..._common.patching.patches import Patches
from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied, does_not_apply
from ..cause import Cause, NamedChange, Remedy, at_line
from ..evidence import is_score_matrix

if TYPE_CHECKING:
    from ...simulation.inspect import attention_backends

_Select = Callable[["attention_backends.AttentionCall"], "attention_backends.SDPBackend"]

_SWITCHES: Final = {
    "FLASH_ATTENTION": "flash_sdp",
    "EFFICIENT_ATTENTION": "mem_efficient_sdp",
    "CUDNN_ATTENTION": "cudnn_sdp",
    "MATH": "math_sdp",
}
"""By member of ``SDPBackend``, the end of the names in ``torch.backends.cuda``."""

_BACKENDS: Final = {
    "sdpa_flash": ("FLASH", "FLASH_ATTENTION"),
    "sdpa_efficient": ("EFFICIENT", "EFFICIENT_ATTENTION"),
    "sdpa_cudnn": ("CUDNN", "CUDNN_ATTENTION"),
    "sdpa_math": ("MATH", "MATH"),
}


class AttentionBackend(AroundProgram):
    """Attention runs on one backend wherever the program leaves the choice to PyTorch."""

    def __init__(self, name: str) -> None:
        self.name = name
        kernels = "slower attention" if name == "sdpa_math" else "kernels"
        self.what_it_changes = f"{kernels}; sums in another order"

    def patch(self, patches: Patches) -> None:
        from ...simulation.inspect import attention_backends

        self._is_called = self._is_changed = self._is_alike = False
        self._against: str | None = None
        backend, self._member = _BACKENDS[self.name]
        self._backend = attention_backends.SDPBackend[backend]
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

    def _choose(
        self, original: _Select, call: attention_backends.AttentionCall
    ) -> attention_backends.SDPBackend:
        from ...simulation.inspect import attention_backends

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
    import torch

    cuda: Any = torch.backends.cuda
    return [
        member
        for member, switch in _SWITCHES.items()
        if getattr(cuda, f"{switch}_enabled", lambda: False)()
    ]


class AttentionKernel(Cause):
    """No fused kernel of attention takes three dimensions."""

    name = "attention with three dimensions"
    order = 80
    has_edit = False
    tried_by_name = tuple(NamedChange(name, partial(AttentionBackend, name)) for name in _BACKENDS)

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for call in oom.attention:
            line = (call.file, call.line)
            size = sum(
                block.size
                for block in oom.blocks
                if block.place is not None
                and (block.place.file, block.place.line) == line
                and is_score_matrix(block)
            )
            if oom.frames and oom.frames[0].place == call:
                size += oom.request.requested
            if size >= oom.shortage:
                return self.found(
                    size,
                    f"attention{at_line(call.line)} has 3 dimensions, so no fused kernel runs:"
                    f" {prose_size(size)}",
                    "q, k, v = (x.unsqueeze(1) for x in (q, k, v))  # and result.squeeze(1)",
                )
        return None
