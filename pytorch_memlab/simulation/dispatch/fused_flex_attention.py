"""``torch.compile(flex_attention)``: the buffers of the fused kernels, without their scores.

Note [Fused flex_attention]: Inductor gives its forward kernel an output in the order of the query's
strides, the log-sum-exp and the largest score of each row (both float32), and its backward kernel
the sum of ``out * grad_out`` of each row (float32) and the gradients. The matrix of scores,
which the eager path keeps, lies in no memory of the GPU.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch._C import DispatchKey
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from .flex_attention import computing_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..machine.machine import Machine
    from ..machine.simulated_gpu import SimulatedGPU

    Estimated = Callable[[Any, SimulatedGPU, int], None]

_FUSED = "MEMLAB_FUSED"
_OPTIONS = "kernel_options"
_EAGER_WARNING = "flex_attention called without torch.compile"


def compiled(function: Any) -> Callable[..., Any] | None:
    """Replacement of ``torch.compile(flex_attention)``; None for any other function."""
    name = (getattr(function, "__module__", None), getattr(function, "__name__", None))
    if name != ("torch.nn.attention.flex_attention", "flex_attention"):
        return None
    signature = inspect.signature(function)
    if _OPTIONS not in signature.parameters:
        return None

    @functools.wraps(function)
    def fused(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        options = bound.arguments.get(_OPTIONS) or {}
        bound.arguments[_OPTIONS] = {**options, _FUSED: True}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", _EAGER_WARNING)
            return function(*bound.args, **bound.kwargs)

    return fused


def is_fused(args: tuple[Any, ...]) -> bool:
    """True if arguments of ``flex_attention`` as an op, or of its backward, come from there."""
    return any(isinstance(value, dict) and _FUSED in value for value in args)


def run(machine: Machine, estimated: Estimated, op: Any, args: tuple[Any, ...]) -> Any:
    """Run the forward or the backward kernel."""
    values = None
    if machine.values is None:
        with computing_on_cpu():
            values = op.dispatch(DispatchKey.CPU, *args)
    make = _backward if op.name() == "flex_attention_backward" else _forward
    results, nbytes = make(args)
    gpu = machine.gpu_of(args[0])
    if gpu is not None:
        estimated(op, gpu, nbytes)
    if machine.values is not None:
        for result in tree_leaves(results):
            if result is not None:
                machine.values.forget_values(result)
    else:
        with _disable_current_modes():
            _fill(results, values)
    return results


def _forward(args: tuple[Any, ...]) -> tuple[Any, int]:
    query, _, value, *_ = args
    options = next(one for one in args if isinstance(one, dict) and _FUSED in one)
    logsumexp = _per_row(query)
    largest = _per_row(query)
    out = _like((*query.shape[:3], value.shape[-1]), query)
    nbytes = logsumexp.nbytes + largest.nbytes
    if not options.get("OUTPUT_MAX"):
        largest = largest.new_empty(0)
    return (out, logsumexp, largest), nbytes


def _backward(args: tuple[Any, ...]) -> tuple[Any, int]:
    query, key, value, _, _, _, grad_logsumexp, *_ = args
    captured = args[-2]
    rows = [_per_row(query) for _ in range(1 if grad_logsumexp is None else 2)]
    batch = query.shape[0]
    grad_query = _like(query.shape, query)
    grad_value = _like((batch, *value.shape[1:]), value)
    grad_key = _like((batch, *key.shape[1:]), key)
    grads = [_gradient_of(buffer) for buffer in captured]
    if batch != key.shape[0]:
        grad_key, grad_value = (grad.sum(0, keepdim=True) for grad in (grad_key, grad_value))
    grads = [
        None if each is None else each.to(of.dtype)
        for each, of in zip(grads, captured, strict=True)
    ]
    return (grad_query, grad_key, grad_value, tuple(grads)), sum(row.nbytes for row in rows)


def _gradient_of(buffer: Any) -> torch.Tensor | None:
    """A gradient, as the kernel adds it up, in float32, of what the score function captures."""
    if not isinstance(buffer, torch.Tensor) or not buffer.requires_grad:
        return None
    return torch.empty(buffer.shape, dtype=torch.float32, device=buffer.device)


def _per_row(query: torch.Tensor) -> torch.Tensor:
    return torch.empty(query.shape[:3], dtype=torch.float32, device=query.device)


def _like(shape: Sequence[int], tensor: torch.Tensor) -> torch.Tensor:
    """An output whose dimensions lie in memory in the order of those of a tensor, without gaps."""
    order = sorted(range(3), key=tensor.stride, reverse=True)
    return torch.empty_permuted(tuple(shape), (*order, 3), dtype=tensor.dtype, device=tensor.device)


def _fill(results: Any, values: Any) -> None:
    for result, value in zip(results, values, strict=True):
        if isinstance(result, tuple):
            _fill(result, value)
        elif result is not None and result.numel():
            result.copy_(value)
