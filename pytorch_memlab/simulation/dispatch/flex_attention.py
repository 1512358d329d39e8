"""``flex_attention`` with gradients: PyTorch traces its score function, which here needs no GPU.

Note [Traced score functions]: for the backward pass PyTorch traces ``score_mod`` with fake tensors
of the GPU. Autograd in a build without CUDA ends the process there, so the trace runs with fake
tensors of the CPU, and the devices that it names become the GPU's. Where ``torch.compile`` runs
``flex_attention`` for real, it makes arguments of the tensors that the function takes from around
it; their gradients come back as those of arguments. Here a function mode does that.
"""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..machine.machine import Machine

    ScoreMod = Callable[..., torch.Tensor]

_CPU = torch.device("cpu")
_CAPTURED = "score_mod_other_buffers"


def has_gradients(op: Any) -> bool:
    """True if the installed release has the arguments that hold what a score function captures."""
    return _CAPTURED in inspect.signature(type(op).__call__).parameters


def with_captured(
    machine: Machine, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, with those GPU tensors added that its score function captures."""
    bound = inspect.signature(type(op).__call__).bind(op, *args, **kwargs)
    bound.apply_defaults()
    score_mod, given = bound.arguments["score_mod"], bound.arguments[_CAPTURED]
    captured = _captured(machine, score_mod, bound.arguments["query"].dtype, given)
    bound.arguments["score_mod"] = _with_arguments(score_mod, captured)
    bound.arguments[_CAPTURED] = (*given, *captured)
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
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = tree_map(self._replace, (args, kwargs or {}))
        return func(*args, **kwargs)


def _captured(
    machine: Machine, score_mod: ScoreMod, dtype: torch.dtype, given: tuple[Any, ...]
) -> tuple[torch.Tensor, ...]:
    """The tensors of simulated GPUs that a score function takes from around it, in their order."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    found: dict[int, tuple[torch.Tensor, FakeTensor]] = {}

    def replace(value: Any) -> Any:
        if not _is_on_gpu(machine, value):
            return _on_cpu(value)
        if id(value) not in found:
            found[id(value)] = (value, _stand_in(fake, value))
        return found[id(value)][1]

    from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    with _disable_current_modes():
        arguments = tree_map(partial(_stand_in, fake), given)
        with fake:
            score = torch.empty((), dtype=dtype)
            indices = [torch.empty((), dtype=torch.int) for _ in range(4)]
            with torch.no_grad(), TransformGetItemToIndex(), _Replacing(replace):
                score_mod(score, *indices, *arguments)
    return tuple(tensor for tensor, _ in found.values())


def _is_on_gpu(machine: Machine, value: Any) -> bool:
    if not isinstance(value, torch.Tensor) or isinstance(value, FakeTensor):
        return False
    return machine.gpu_of(value) is not None


def _with_arguments(score_mod: ScoreMod, captured: tuple[torch.Tensor, ...]) -> ScoreMod:
    """A score function that gets as its last arguments what another one captures."""
    if not captured:
        return score_mod
    count = len(captured)

    def with_arguments(*args: Any) -> torch.Tensor:
        given = {id(own): arg for own, arg in zip(captured, args[-count:], strict=True)}
        with _Replacing(lambda value: given.get(id(value), value)):
            return score_mod(*args[:-count])

    return with_arguments


def trace(
    original: Callable[..., tuple[ScoreMod, Any]],
    score_mod: ScoreMod,
    index_values: tuple[torch.Tensor, ...],
    other_buffers: tuple[Any, ...],
) -> tuple[ScoreMod, Any]:
    """The score function, and a graph of its gradients."""
    device = index_values[0].device
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with computing_on_cpu():
        stand_ins = tree_map(partial(_stand_in, fake), (index_values, other_buffers))
        _, joint_graph = original(score_mod, *stand_ins)
    _name_device(joint_graph, device)
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


def _name_device(graph: Any, device: torch.device) -> None:
    """Let what a graph makes be made on a GPU."""
    for node in graph.graph.nodes:
        if node.kwargs.get("device") == _CPU:
            node.update_kwarg("device", device)
    graph.recompile()
