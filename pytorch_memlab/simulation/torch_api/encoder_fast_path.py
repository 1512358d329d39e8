"""The fast path of modules in evaluation: the simulation's mode does not turn it off.

``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` leave it
where ``torch.overrides.has_torch_function`` finds a mode; on a GPU there is none but the program's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch

from ..._common.patches import Patches
from ...errors import UnmodelledOpError
from ..dispatch.function_mode import SimulatedFunctionMode
from ..machine.machine import Machine
from .jit import make_known

_has_torch_function = torch.overrides.has_torch_function
_NO_FUNCTION = torch._C._disabled_torch_function_impl
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NESTED = torch.ops.aten._nested_tensor_from_mask.default


def install(machine: Machine, patches: Patches) -> None:
    """Answer ``torch.overrides.has_torch_function`` as without the simulation."""
    makes_nested = torch.nn.TransformerEncoder.forward.__code__

    def has_torch_function(relevant_args: Iterable[Any]) -> bool:
        if not _has_torch_function(relevant_args):
            return False
        caller = sys._getframe(1)
        # A higher-order op asks whether to pass through modes, and ours has to see it.
        if caller.f_globals is vars(torch._ops) or _is_the_programs(relevant_args):
            return True
        if caller.f_code is makes_nested:
            _keep_padding(machine, relevant_args)
            return True
        return any(getattr(one, "is_nested", False) for one in relevant_args)

    patches.set(torch.overrides, "has_torch_function", has_torch_function)
    make_known(_has_torch_function, has_torch_function)


def _is_the_programs(values: Iterable[Any]) -> bool:
    """True if a mode of the program's is on, or a class of its tensors overrides functions."""
    modes = torch.overrides._get_current_function_mode_stack()
    return any(not isinstance(mode, SimulatedFunctionMode) for mode in modes) or (
        torch._C._is_torch_function_enabled() and any(map(_overrides_functions, values))
    )


def _overrides_functions(value: Any) -> bool:
    if type(value) in _PLAIN:
        return False
    return getattr(value, "__torch_function__", _NO_FUNCTION) is not _NO_FUNCTION


def _keep_padding(machine: Machine, tensors: Iterable[Any]) -> None:
    """Say that an encoder's input stays padded, where a GPU would get a nested tensor.

    Its layers then run as with ``enable_nested_tensor=False``.
    """
    source, *weights = tensors
    if torch.is_grad_enabled() and any(one.requires_grad for one in (source, *weights)):
        return
    gpu = machine.gpu_of(source)
    if gpu is None:
        return
    if machine.strict:
        raise UnmodelledOpError(
            "nn.TransformerEncoder packs a padded batch in a nested tensor, and nested tensors are "
            "not modelled: pass enable_nested_tensor=False, or run without strict=True (--strict), "
            "which keeps the padding and counts it"
        )
    machine.approximations[gpu.index].count_unmodelled(_NESTED, source)
