"""Autocast of cuDNN's recurrent networks: all weights are cast into a new flat buffer.

As ``aten/src/ATen/cudnn/AutocastRNN.cpp`` does it at each call: to float16, whatever autocast's
dtype is, and within autograd.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ops.rnn.call import Call
from ..ops.rnn.layout import given_parts, views
from .casts import call_with_casts, is_eligible

_HALF = torch.float16


def with_flat_casts(op: Any) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """A function that runs ``_cudnn_rnn`` on casts of its arguments."""

    def cast(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = Call(*args)
        known = call.weights[0] if call.buffer is None else call.buffer
        if known.dtype != _HALF and is_eligible(known):
            buffer, weights = _flattened(call)
            args = (args[0], weights, args[2], buffer, *args[4:])
            del buffer, weights
        del call, known
        return call_with_casts(op, _HALF, args, kwargs)

    return cast


def _flattened(call: Call) -> tuple[torch.Tensor, list[torch.Tensor]]:
    flat = call.weights[0].detach().new_zeros(call.network.numel(), dtype=_HALF)
    parts = [given_parts(layer, call.count) for layer in call.network.parts()]
    cast = []
    for view, weight in zip(
        (view for layer in views(flat, parts) for view in layer), call.weights, strict=True
    ):
        # A separate tensor that shares memory: autograd must see no views of one base.
        own = view if view.is_inference() else view.data
        cast.append(own.copy_(weight.view_as(own)))
    return flat, cast
