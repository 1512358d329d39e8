"""The casts of autocast: which tensors of an op's arguments are cast, and weights' casts kept."""

from __future__ import annotations

import functools
import weakref
from typing import Any

import torch

from ..machine import active
from ..machine.op_arguments import tensors_in
from ..ops.rnn.cudnn_rnn import Call, views

_cast_to = torch.ops.aten.to.dtype
_lower_precision = torch.get_autocast_dtype
_HALF = torch.float16


class WeightCache:
    """The casts of weights, kept until the outermost autocast exits."""

    def __init__(self) -> None:
        self._casts: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._outlived: list[torch.Tensor] = []

    def cast(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """A weight's cast, the same one for every use."""
        key: int = tensor._cdata
        entry = self._casts.get(key)
        if entry is not None:
            if entry[0]() is tensor:
                return entry[1]
            # CUDA keeps the cast of a weight that was freed, like all others.
            self._outlived.append(entry[1])
        with torch.set_grad_enabled(torch.is_grad_enabled() or casts_serve_training()):
            cast: torch.Tensor = _cast_to(tensor, dtype)
        self._casts[key] = (weakref.ref(tensor), cast)
        return cast

    def clear(self) -> None:
        """Release all casts."""
        self._casts.clear()
        self._outlived.clear()


cache = WeightCache()
"""One for all threads, as CUDA's is."""


@functools.cache
def casts_serve_training() -> bool:
    """True if training can use every cast that this release of PyTorch caches.

    Then a cast that is made under ``no_grad`` has a gradient all the same, and none is cached in
    inference mode. Earlier releases cache in every mode what the mode makes. PyTorch's own
    autocast of the CPU shows which release this is: both devices share one cache.
    """
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(1, 1, device="cpu", requires_grad=True)
        other = torch.ones(1, 1, device="cpu")
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=True):
            with torch.no_grad():
                torch.mm(other, weight)
            return torch.mm(other, weight).requires_grad


def call_with_casts(
    op: Any, dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an op on casts of its arguments.

    Arguments are cast from the last to the first, a list's tensors from the first on, and all
    casts are freed from the first on: so the compiler arranges it that builds PyTorch.
    """
    values = [*args, *kwargs.values()]
    made: list[torch.Tensor] = []
    for position in reversed(range(len(values))):
        casts: list[torch.Tensor] = []
        values[position] = _cast(values[position], dtype, casts)
        made = casts + made
    del casts
    named = dict(zip(kwargs, values[len(args) :], strict=True))
    del values[len(args) :]
    result = op(*values, **named)
    del values, named
    while made:
        del made[0]
    return result


def widest(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype:
    """The dtype in which CUDA's promote list runs an op."""
    lower = _lower_precision("cuda")
    found = lower
    for tensor in tensors_in(args, kwargs):
        if is_eligible(tensor) and tensor.dtype != lower:
            if tensor.dtype != torch.float32 and found != torch.float32:
                raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
            found = torch.float32
    return found


def is_eligible(tensor: torch.Tensor) -> bool:
    """True if autocast casts a tensor: it lives on a simulated GPU, and is no double."""
    return tensor.is_floating_point() and tensor.dtype != torch.float64 and is_on_gpu(tensor)


def is_on_gpu(tensor: torch.Tensor) -> bool:
    """True if a tensor lives on a simulated GPU."""
    machine = active.machine
    return machine is not None and machine.allocations.find(tensor) is not None


def _cast(value: Any, dtype: torch.dtype, made: list[torch.Tensor]) -> Any:
    if isinstance(value, (list, tuple)):
        return [_cast(one, dtype, made) for one in value]
    if not isinstance(value, torch.Tensor) or value.dtype == dtype or not is_eligible(value):
        return value
    cast: torch.Tensor = (
        cache.cast(value, dtype) if _is_cached(value, dtype) else _cast_to(value, dtype)
    )
    made.append(cast)
    return cast


def _is_cached(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    return (
        tensor.dtype == torch.float32
        and tensor.requires_grad
        and tensor.is_leaf
        and not tensor._is_view()
        and dtype == _lower_precision("cuda")
        and torch.is_autocast_cache_enabled()
        and not (torch.is_inference_mode_enabled() and casts_serve_training())
    )


def call_with_flat_casts(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run ``_cudnn_rnn`` on casts of its arguments: all weights are cast into a new flat buffer.

    As ``aten/src/ATen/cudnn/AutocastRNN.cpp`` does it at each call: to float16, whatever autocast's
    dtype is, and within autograd.
    """
    call = Call(*args)
    known = call.weights[0] if call.buffer is None else call.buffer
    if known.dtype != _HALF and is_eligible(known):
        buffer, weights = _flattened(call)
        args = (args[0], weights, args[2], buffer, *args[4:])
        del buffer, weights
    del call, known
    return call_with_casts(op, _HALF, args, kwargs)


def _flattened(call: Call) -> tuple[torch.Tensor, list[torch.Tensor]]:
    flat = call.weights[0].detach().new_zeros(call.network.numel(), dtype=_HALF)
    flat_views = views(flat, call.network.parts(call.weight_stride0))
    cast = []
    for view, weight in zip(flat_views, call.weights, strict=True):
        # A separate tensor that shares memory: autograd must see no views of one base.
        own = view if view.is_inference() else view.data
        cast.append(own.copy_(weight.view_as(own)))
    return flat, cast
