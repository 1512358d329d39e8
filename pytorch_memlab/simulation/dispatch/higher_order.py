"""Ops that take functions (``torch.cond``, ``flex_attention``): what those call is placed too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._ops import _higher_order_ops
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_leaves

from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs
from ..machine.refused_calls import unsupported
from . import flex_attention

_NEVER = frozenset({"scan", "map_impl", "strict_mode"})
"""Ops that refuse to run under a dispatch mode."""

_NOT_TRACED = frozenset(
    {
        "custom_function_call",
        "triton_kernel_wrapper_mutation",
        "triton_kernel_wrapper_functional",
    }
)
"""Custom functions inside ``torch.func``, and ops of which autograd knows nothing."""


def prepare(machine: Machine, op: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Refuse what would fail deep inside PyTorch, or end the process."""
    # For gradients PyTorch traces the functions with fake tensors of the GPU, of which autograd in
    # a build without CUDA knows nothing.
    _give_rules()
    name: str = op.name()
    if name in _NEVER:
        raise unsupported(name)
    if not torch.is_grad_enabled() or name in _NOT_TRACED:
        return args, kwargs
    if name == "flex_attention" and flex_attention.takes_captured(op):
        return flex_attention.with_captured(machine, op, args, kwargs)
    leaves = tree_leaves((args, kwargs))
    if any(isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves):
        raise unsupported(f"{name} with gradients")
    return args, kwargs


def _give_rules() -> None:
    """Older releases ask an op for the rule of a mode, where later ones ask the mode."""
    if hasattr(TorchDispatchMode, "supports_higher_order_operators"):
        return
    for mode in _get_current_dispatch_mode_stack():
        if getattr(mode, "supports_higher_order_operators", False):
            for op in _higher_order_ops.values():  # a backward pass calls others
                if type(mode) not in op.python_key_table:
                    op.py_impl(type(mode))(partial(_by_rule, op))


def _by_rule(op: Any, mode: AbstractContextManager[Any], *args: Any, **kwargs: Any) -> Any:
    return run(op, mode, args, kwargs)


def run(
    op: Any,
    mode: AbstractContextManager[Any],
    args: Args,
    kwargs: Kwargs,
) -> Any:
    """Run an op that takes functions on the CPU, as outside of ``torch.compile``."""
    with mode:
        instead = _INSTEAD.get(op.name())
        if instead is not None:
            return instead(*args, **kwargs)
        return op.dispatch(DispatchKey.CPU, *args, **kwargs)


def run_with_generator(op: Any, *args: Any, rng_state: Any, **kwargs: Any) -> Any:
    """Run an op that draws from the state of a generator that was kept."""
    generator = torch.cuda.default_generators[rng_state.device.index]
    before = generator.graphsafe_get_state()
    generator.graphsafe_set_state(rng_state)
    try:
        return op(*args, **kwargs)
    finally:
        generator.graphsafe_set_state(before)


_INSTEAD: dict[str, Callable[..., Any]] = {
    "cond": lambda pred, true_fn, false_fn, operands=(): (true_fn if pred else false_fn)(*operands),
    # Random numbers come from the CPU: they have no offset that moves by rank.
    "graphsafe_run_with_rng_state": run_with_generator,
    "run_dtensor_rng_op": lambda _start, _end, op, *args, **kwargs: op(*args, **kwargs),
}
"""Replacements of implementations that a CPU cannot run."""
