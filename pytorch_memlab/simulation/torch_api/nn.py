"""``torch.nn`` and ``torch.optim``: what their Python and their C++ ask about devices and values.

Note [Fast path of encoders]
``nn.MultiheadAttention``, ``nn.TransformerEncoderLayer`` and ``nn.TransformerEncoder`` in
evaluation leave their fast path where ``torch.overrides.has_torch_function`` finds a mode. On a
GPU there is none but the program's, so here it does not see those of the simulation.

Note [Rounds of trunc_normal_]
From torch 2.13 on ``nn.init.trunc_normal_`` draws again until no element lies outside of its
bounds, and reads after each round whether one does. Without values the answer is the one that is
expected: it does while the expected number of elements outside is one or more. From the second
round on, the function takes more memory.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from ..._common.patching.patches import Patches
from ...errors import UnmodelledOpError
from ..dispatch.function_mode import SimulatedFunctionMode
from ..machine.machine import Machine
from ..machine.refused_calls import unsupported
from .compilers import make_known

Groups = dict[tuple[torch.device, torch.dtype], tuple[list[list[Any]], list[int]]]

_TRUNC_NORMAL: Final = "_no_grad_trunc_normal_"
_MOST_ROUNDS: Final = 100
_ROOT_2: Final = math.sqrt(2)
_FAR: Final = 37.0  # beyond, erfc has no digits
_DRAWN_FROM_NORMAL: Final = 0.3
"""Share of the distribution within the bounds from which on it is drawn from, as PyTorch decides.
Below, numbers are drawn evenly, and kept or not."""
_has_torch_function = torch.overrides.has_torch_function
_NO_FUNCTION = torch._C._disabled_torch_function_impl
_PLAIN = (torch.Tensor, torch.nn.Parameter)
_NESTED = torch.ops.aten._nested_tensor_from_mask.default


def install(machine: Machine, patches: Patches) -> None:
    _install_parse_to(machine, patches)
    _install_grouping(machine, patches)
    _install_trunc_normal(machine, patches)
    _install_fast_path(machine, patches)


def _install_parse_to(machine: Machine, patches: Patches) -> None:
    """Let a number, and a tensor, in ``Module.to`` and its like mean a simulated GPU."""

    @patches.around(torch._C._nn, "_parse_to")
    def parse_to(parse: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if args and type(args[0]) is int:
            args = (machine.gpu(args[0]).device, *args[1:])
        if type(kwargs.get("device")) is int:
            kwargs["device"] = machine.gpu(kwargs["device"]).device
        device, *options = parse(*args, **kwargs)
        like = args[0] if args else kwargs.get("tensor")
        return like.device if isinstance(like, torch.Tensor) else device, *options


def _install_grouping(machine: Machine, patches: Patches) -> None:
    """Sort tensors of optimizers and gradient clipping by the devices that they live on."""

    @patches.around(torch._C, "_group_tensors_by_device_and_dtype")
    def group(
        group_on_cpu: Callable[..., Groups], tensors: list[list[Any]], with_indices: bool = False
    ) -> Groups:
        groups: Groups = {}
        for (device, dtype), (lists, indices) in group_on_cpu(tensors, True).items():
            gpus = [machine.gpu_of(tensor) for tensor in lists[0]]
            devices = [device if gpu is None else gpu.device for gpu in gpus]
            if len(set(devices)) == 1 and (devices[0], dtype) not in groups:
                groups[devices[0], dtype] = lists, indices if with_indices else []
                continue
            for position, (its_device, index) in enumerate(zip(devices, indices, strict=True)):
                key = its_device, dtype
                parts, kept = groups.setdefault(key, ([[] for _ in lists], []))
                for part, whole_list in zip(parts, lists, strict=True):
                    part.extend(whole_list[position : position + 1])
                if with_indices:
                    kept.append(index)
        return groups


def _install_trunc_normal(machine: Machine, patches: Patches) -> None:
    """Answer what ``trunc_normal_`` reads; Note [Rounds of trunc_normal_]."""
    values = machine.values
    if values is None or not hasattr(torch.nn.init, _TRUNC_NORMAL):
        return

    @patches.around(torch.nn.init, _TRUNC_NORMAL)
    def drawn(
        draw: Callable[..., torch.Tensor],
        tensor: torch.Tensor,
        mean: float,
        std: float,
        a: float,
        b: float,
        *rest: Any,
        **named: Any,
    ) -> torch.Tensor:
        with values.answered(*rounds(tensor.numel(), mean, std, a, b) * [True]):
            return draw(tensor, mean, std, a, b, *rest, **named)


def rounds(count: int, mean: float, std: float, a: float, b: float) -> int:
    """The expected rounds of drawing that leave elements outside of the bounds.

    >>> rounds(1_000_000, 0.0, 1.0, -2.0, 2.0), rounds(1_000_000, 0.0, 0.02, -2.0, 2.0)
    (4, 0)
    """
    if std <= 0 or b <= a or not count:
        return 0
    low, high = (a - mean) / std, (b - mean) / std
    share = (math.erf(high / _ROOT_2) - math.erf(low / _ROOT_2)) / 2
    if share <= _DRAWN_FROM_NORMAL:
        if low < 0 < high:
            area = share * math.sqrt(2 * math.pi)
        else:  # of a tail, whose share may be too small for a number, beside its highest value
            near, far = sorted((abs(low), abs(high)))
            area = _tail(near) - math.exp((near * near - far * far) / 2) * _tail(far)
        share = area / (high - low)
    outside = 1 - min(share, 1.0)
    if count * outside < 1:
        return 0
    if outside >= 1:
        return _MOST_ROUNDS
    return min(_MOST_ROUNDS, int(math.log(count) / -math.log(outside)))


def _tail(bound: float) -> float:
    """The area below the normal curve from a bound on, if the curve is 1 there."""
    if bound < _FAR:
        return math.sqrt(math.pi / 2) * math.erfc(bound / _ROOT_2) * math.exp(bound * bound / 2)
    return 1 / bound - 1 / bound**3  # its asymptotic series, exact to a millionth here


def _install_fast_path(machine: Machine, patches: Patches) -> None:
    """Ask for overriding functions as without the simulation; Note [Fast path of encoders]."""
    makes_nested = torch.nn.TransformerEncoder.forward.__code__

    def has_torch_function(relevant_args: Iterable[Any]) -> bool:
        if not _has_torch_function(relevant_args):
            return False
        caller = sys._getframe(1)
        # A higher-order op asks whether to pass through modes, and ours has to see it.
        if caller.f_globals is vars(torch._ops) or _is_the_programs(relevant_args):
            return True
        if caller.f_code is makes_nested:
            return _keeps_padding(machine, relevant_args)
        if any(_is_nested_on_a_gpu(machine, value) for value in relevant_args):
            _refuse_nested(relevant_args)
        return False

    patches.set(torch.overrides, "has_torch_function", has_torch_function)
    make_known(_has_torch_function, has_torch_function)


def _is_nested_on_a_gpu(machine: Machine, value: Any) -> bool:
    return getattr(value, "is_nested", False) and machine.gpu_of(value) is not None


def _is_the_programs(values: Iterable[Any]) -> bool:
    """True if a mode of the program's is on, or a class of its tensors overrides functions."""
    modes = torch.overrides._get_current_function_mode_stack()
    return any(not isinstance(mode, SimulatedFunctionMode) for mode in modes) or (
        torch._C._is_torch_function_enabled()
        and any(
            getattr(value, "__torch_function__", _NO_FUNCTION) is not _NO_FUNCTION
            for value in values
            if type(value) not in _PLAIN
        )
    )


def _refuse_nested(tensors: Iterable[Any]) -> None:
    """Refuse the fast path of nested tensors; in training there is none, and PyTorch says so."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return
    raise unsupported("the fast path of nn.MultiheadAttention with nested tensors")


def _keeps_padding(machine: Machine, tensors: Iterable[Any]) -> bool:
    """True if an encoder's input stays padded, which is noted where a GPU gets a nested tensor."""
    # Its layers then run as with ``enable_nested_tensor=False``.
    source, *weights = tensors
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (source, *weights)):
        return True
    gpu = machine.gpu_of(source)
    if gpu is None:
        return machine.values is not None  # a mask without values packs nothing
    if machine.strict:
        raise UnmodelledOpError(
            "nn.TransformerEncoder packs a padded batch in a nested tensor, and nested tensors are "
            "not modelled: pass enable_nested_tensor=False, or run without strict=True (--strict), "
            "which keeps the padding and counts it"
        )
    machine.approximations[gpu.index].count_unmodelled(_NESTED, source)
    return True
