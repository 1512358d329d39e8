"""Reference implementations and the dispatch: gradients by autograd, conjugate tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

_key: Final = torch._C.DispatchKey
_AUTOCAST: Final = (_key.AutocastCUDA, _key.AutocastCPU)
_LAZY: Final = (_key.Conjugate, _key.Negative)
_AUTOGRAD: Final = (_key.AutogradCPU, _key.ADInplaceOrView)


def gradients(
    function: Callable[..., Sequence[torch.Tensor]],
    inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, ...]:
    """The gradients of a function's inputs, zeros for one that no output depends on."""
    with dispatch_keys(*_AUTOGRAD), torch.enable_grad():
        leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
        pairs = [
            (output, grad.detach().to(output.dtype, copy=True))
            for output, grad in zip(function(*leaves), grad_outputs, strict=False)
            if grad is not None
        ]
        outputs, passed = zip(*pairs, strict=True)
        return torch.autograd.grad(
            outputs, leaves, passed, allow_unused=True, materialize_grads=True
        )


def lazy_conjugation() -> Any:
    """The dispatch of ops that see the conjugate bit of a tensor, and its negative bit."""
    # PyTorch leaves these keys out below a dispatch mode. A kernel that takes ``mH`` of a matrix
    # and multiplies it, such as ``linalg_pinv``, would multiply by the transposed one.
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _LAZY:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)


def dispatch_keys(*wanted: Any) -> Any:
    """The dispatch of ops without casts, and with what is wanted: a mode has no autograd."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    for key in _AUTOCAST:
        excluded = excluded.add(key)
    for key in wanted:
        excluded = excluded.remove(key)
    return torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded)
