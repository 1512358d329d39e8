"""``flex_attention`` with gradients: PyTorch traces its score function, which here needs no GPU.

Note [Traced score functions]: for the backward pass PyTorch traces ``score_mod`` with fake tensors
of the GPU. Autograd in a build without CUDA ends the process there, so the trace runs with fake
tensors of the CPU, and the devices that it names become the GPU's. Where ``torch.compile`` runs
``flex_attention`` for real, it makes arguments of the tensors that the function takes from around
it; their gradients come back as those of arguments. Here a function mode does that.

Note [Fused flex_attention]: Inductor gives its forward kernel an output in the order of the query's
strides, the log-sum-exp and the largest score of each row (both float32), and its backward kernel
the sum of ``out * grad_out`` of each row (float32) and the gradients. The matrix of scores,
which the eager path keeps, lies in no memory of the GPU.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch._C import DispatchKey
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs
from ..machine.simulated_gpu import SimulatedGPU

ScoreMod = Callable[..., torch.Tensor]
Estimated = Callable[[Any, SimulatedGPU, int], None]
_CPU = torch.device("cpu")
_CAPTURED = "score_mod_other_buffers"


def takes_captured(op: Any) -> bool:
    """True if the installed release has an argument for what a score function captures."""
    return _CAPTURED in inspect.signature(type(op).__call__).parameters


def with_captured(machine: Machine, op: Any, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
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
        self, func: Any, types: Any, args: Args = (), kwargs: Kwargs | None = None
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
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        if not is_real or machine.gpu_of(value) is None:
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


def is_fused(args: Args) -> bool:
    """True if arguments of ``flex_attention`` as an op, or of its backward, come from there."""
    return any(isinstance(value, dict) and _FUSED in value for value in args)


def run(machine: Machine, estimated: Estimated, op: Any, args: Args) -> Any:
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


def _forward(args: Args) -> tuple[Any, int]:
    query, _, value, *_ = args
    options = next(one for one in args if isinstance(one, dict) and _FUSED in one)
    logsumexp = _per_row(query)
    largest = _per_row(query)
    out = _like((*query.shape[:3], value.shape[-1]), query)
    nbytes = logsumexp.nbytes + largest.nbytes
    if not options.get("OUTPUT_MAX"):
        largest = largest.new_empty(0)
    return (out, logsumexp, largest), nbytes


def _backward(args: Args) -> tuple[Any, int]:
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
