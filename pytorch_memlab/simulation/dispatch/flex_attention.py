"""``flex_attention`` with gradients: PyTorch traces its score function, which here needs no GPU.

Note [Traced score functions]: for the backward pass PyTorch traces ``score_mod`` with fake tensors
of the GPU. Autograd in a build without CUDA ends the process there, so the trace runs with fake
tensors of the CPU, and the devices that it names become the GPU's. PyTorch compiles the op to make
arguments of the tensors that the function takes from around it; their gradients come back as those
of arguments. Here a function mode does that. In the program's own compiled code, the compiler does.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs
from . import fake_tensors

ScoreMod = Callable[..., torch.Tensor]
_CPU = torch.device("cpu")
_CAPTURED = "score_mod_other_buffers"


def takes_captured(op: Any) -> bool:
    """True if the installed release has an argument for what a score function captures."""
    return _CAPTURED in inspect.signature(type(op).__call__).parameters


def with_captured(machine: Machine, op: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """The arguments of a call, with those GPU tensors added that its score function captures."""
    bound = inspect.signature(type(op).__call__).bind(op, *args, **kwargs)
    bound.apply_defaults()
    score_mod, buffers = bound.arguments["score_mod"], bound.arguments[_CAPTURED]
    captured = _captured(machine, score_mod, bound.arguments["query"].dtype, buffers)
    bound.arguments["score_mod"] = _with_arguments(score_mod, captured)
    bound.arguments[_CAPTURED] = (*buffers, *captured)
    return bound.args[1:], bound.kwargs


@contextmanager
def computing_on_cpu() -> Iterator[None]:
    """Ops in here run on the memory of simulated GPUs as on the CPU's, and are counted nowhere."""
    with _disable_current_modes(), _Replacing(_on_cpu):
        yield


class _Replacing(TorchFunctionMode):
    """Gives functions other tensors than those that the program names."""

    def __init__(self, replace: Callable[[Any], Any]) -> None:
        super().__init__()
        self._replace = replace

    def __torch_function__(
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        args, kwargs = tree_map(self._replace, (args, kwargs or {}))
        return func(*args, **kwargs)


def _captured(
    machine: Machine, score_mod: ScoreMod, dtype: torch.dtype, buffers: tuple[Any, ...]
) -> tuple[torch.Tensor, ...]:
    """The tensors of simulated GPUs that a score function takes from around it, in their order."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    fakes: dict[int, tuple[torch.Tensor, FakeTensor]] = {}

    def replace(value: Any) -> Any:
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        if not is_real or machine.gpu_of(value) is None:
            return _on_cpu(value)
        if id(value) not in fakes:
            fakes[id(value)] = (value, _stand_in(fake, value))
        return fakes[id(value)][1]

    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    with _disable_current_modes():
        arguments = tree_map(partial(_stand_in, fake), buffers)
        with fake:
            score = torch.empty((), dtype=dtype)
            indices = [torch.empty((), dtype=torch.int) for _ in range(4)]
            with torch.no_grad(), TransformGetItemToIndex(), _Replacing(replace):
                score_mod(score, *indices, *arguments)
    return tuple(tensor for tensor, _ in fakes.values())


def _with_arguments(score_mod: ScoreMod, captured: tuple[torch.Tensor, ...]) -> ScoreMod:
    """A score function that gets as its last arguments what another one captures."""
    if not captured:
        return score_mod
    count = len(captured)

    def with_arguments(*args: Any) -> torch.Tensor:
        arg_of = {id(own): arg for own, arg in zip(captured, args[-count:], strict=True)}
        with _Replacing(lambda value: arg_of.get(id(value), value)):
            return score_mod(*args[:-count])

    return with_arguments


def trace(
    original: Callable[..., tuple[ScoreMod, Any]],
    score_mod: ScoreMod,
    index_values: tuple[torch.Tensor, ...],
    other_buffers: tuple[Any, ...],
) -> tuple[ScoreMod, Any]:
    """The score function, and a graph of its gradients."""
    if fake_tensors.are_on():  # Note [Labelled fake tensors]
        return original(score_mod, index_values, other_buffers)
    device = index_values[0].device
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with computing_on_cpu():
        stand_ins = tree_map(partial(_stand_in, fake), (index_values, other_buffers))
        _, joint_graph = original(score_mod, *stand_ins)
    for node in joint_graph.graph.nodes:
        if node.kwargs.get("device") == _CPU:
            node.update_kwarg("device", device)
    joint_graph.recompile()
    return score_mod, joint_graph


def _stand_in(mode: FakeTensorMode, value: Any) -> Any:
    """A fake tensor of the CPU with the shape of a tensor."""
    if not isinstance(value, torch.Tensor):
        return value
    with mode:
        return torch.empty_strided(
            value.size(),
            value.stride(),
            dtype=value.dtype,
            device=_CPU,
            requires_grad=value.requires_grad,
        )


def _on_cpu(value: Any) -> Any:
    return _CPU if isinstance(value, torch.device) and value.type == "cuda" else value
