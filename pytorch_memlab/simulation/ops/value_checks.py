"""Composite ops that fail, or warn, where values are not as they should be.

A dry run takes them to be so: zeros that stand for values would fail.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from ..machine import active
from ..machine.simulated_gpu import SimulatedGPU
from .core.registry import define

_aten: Final = torch.ops.aten
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd


def _overlapping(_gpu: SimulatedGPU, *args: Any, **kwargs: Any) -> Any:
    """``istft`` refuses windows whose sum is zero anywhere."""
    values = active.values()
    if values is None:
        return NotImplemented
    with values.answered(False):
        return _aten.istft.default._op_dk(_COMPOSITE, *args, **kwargs)


_ANSWERS: Final = {
    _aten.ge.Scalar: True,  # no weight is below zero
    _aten.ne.Scalar: True,  # their sum is not zero
    _aten.le.Scalar: False,  # there is something to divide by
}


def _covariance(_gpu: SimulatedGPU, *args: Any, **kwargs: Any) -> Any:
    """``cov`` refuses weights below zero, those that sum to zero, and too few of them."""
    machine = active.machine
    values = active.values()
    if machine is None or values is None:
        return NotImplemented

    def compare(op: Any) -> None:
        if op in _ANSWERS:
            values.answers = [_ANSWERS[op]]

    observers = machine.op_observers
    machine.op_observers = (*observers, compare)
    try:
        with values.answered():
            return _aten.cov.default._op_dk(_COMPOSITE, *args, **kwargs)
    finally:
        machine.op_observers = observers


def _factorized(_gpu: SimulatedGPU, infos: torch.Tensor, *_args: Any, **_kwargs: Any) -> Any:
    """CUDA asks first whether any matrix failed, which takes a result."""
    values = active.values()
    failed = infos.any()
    lacks_values = values is not None and values.lacks_values(failed)
    return None if lacks_values or not failed.item() else NotImplemented


define("aten::istft", cuda_dispatch=_overlapping)
define("aten::cov", cuda_dispatch=_covariance)
define("aten::_linalg_check_errors", composite=_factorized)
