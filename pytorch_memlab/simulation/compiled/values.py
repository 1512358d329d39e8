"""The values of a compiled graph: its ops, one after the other, on the CPU."""

from __future__ import annotations

import copy
import ctypes
import inspect
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from operator import mul
from typing import Any, Final

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.node import map_arg
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

from ..._common.torch.storages import host_address
from ..dispatch.higher_order import run_with_generator
from ..dry_run.executor import ABSENT, SPECIAL, DryRunExecutor
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs, is_mask
from ..machine.tensor_values import TensorValues
from ..ops.core import random_draws
from ..ops.core.op_info import op_info

_CPU = torch.device("cpu")
_SEEDS = frozenset({"inductor_seed", "inductor_seeds"})
_READ: Final = torch.ops.aten._local_scalar_dense.default

_ALIKE: Final = {
    # Inductor keeps tensors for the backward pass in the layout that suits convolutions.
    torch.ops.aten.view.default: torch.ops.aten.reshape.default,
    # It shares memory until one of the two is written to; only PyTorch's own memory can be shared.
    torch.ops.aten._lazy_clone.default: torch.ops.aten.clone.default,
}
"""Ops that fail with some tensors, and those with the same values that do not."""

_READ_MEMORY: Final = frozenset(
    (torch.ops.aten.as_strided.default, torch.ops.aten.as_strided_scatter.default)
)
"""Those of PyTorch's ops that take a tensor for its memory."""
_OF_PYTORCH: Final = frozenset({"aten", "prims"})

Results = defaultdict[OpOverload, deque[Any]]
"""Results of each op, in the order in which a graph calls it."""

_run: Final = threading.local()
"""Of each thread: the results that the graph that runs has computed."""


def install(machine: Machine) -> None:
    """Let ops of a thread compute nothing while it asks for that."""
    compute = machine.execute
    shapes = _Shapes(TensorValues())

    def execute(op: Any, run: Any, args: Args, kwargs: Kwargs, on_gpu: bool) -> Any:
        how = compute if machine.thread.computes else shapes.execute
        return how(op, run, args, kwargs, on_gpu)

    machine.execute = execute


def _depends_on_values(op: OpOverload, args: Args) -> bool:
    """True if the size of an op's result is known from values alone, or if it is a number."""
    info = op_info(op)
    depends = info.data_dependence
    if info.takes_masks:
        return any(map(is_mask, args[1]))
    return op is _READ or (depends is not None and depends.outputs is not None)


def _sees_strides(op: Any) -> bool:
    """True for an op whose result may differ with the strides of what it is given."""
    if isinstance(op, OpOverload):
        is_known = op.namespace in _OF_PYTORCH
        return op in _READ_MEMORY or not (is_known or op._schema.is_mutable)
    return isinstance(op, HigherOrderOperator)


def _as_traced(value: Any, node: Node) -> Any:
    """A tensor's values with the strides that the graph was traced with."""
    traced = node.meta.get("val")
    if not (isinstance(value, torch.Tensor) and isinstance(traced, torch.Tensor)):
        return value
    strides, offset = traced.stride(), traced.storage_offset()
    if not all(isinstance(number, int) for number in (*strides, offset)):
        return value  # Inductor changes no layout of tensors of any size
    if not value.numel() or value.stride() == strides or 0 in strides:
        return value
    length = offset + 1 + sum(map(mul, strides, (size - 1 for size in value.size())))
    like = value.new_zeros(length).as_strided(value.size(), strides, offset)
    return like.copy_(value)


class _Shapes(DryRunExecutor):
    """Runs ops on tensors whose values mean nothing, whatever they are."""

    # Where a size or a number depends on values, it is what the graph has computed: Inductor's
    # wrapper calls these ops in the order of the graph.

    def execute(self, func: Any, run: Any, args: Args, kwargs: Kwargs, on_gpu: bool) -> Any:
        results: Results | None = getattr(_run, "results", None)
        if results and results.get(func) and _depends_on_values(func, args):
            return tree_map_only(torch.Tensor, self._like, results[func].popleft())
        return super().execute(func, run, args, kwargs, on_gpu)

    def _like(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._values.make_strided(tensor.size(), tensor.stride(), tensor.dtype)

    def _look_at(self, tensors: list[torch.Tensor]) -> tuple[int, bool]:
        state, _ = super()._look_at(tensors)
        return (state if state == SPECIAL else ABSENT), False


class GraphValues(Interpreter):
    """Computes a graph on the memory of simulated GPUs, and counts nothing."""

    def __init__(self, machine: Machine, module: GraphModule) -> None:
        super().__init__(module, garbage_collect_values=True)
        self._machine = machine
        self._on_cpu: dict[str, GraphModule] = {}  # graphs that ops call, by their names
        self._results: Results = defaultdict(deque)

    def compute(self, inputs: list[Any]) -> Any:
        """The graph's outputs; what the graph writes to its inputs is written there."""
        self._results = defaultdict(deque)
        with (
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
            torch.no_grad(),
            self._machine.thread.host_addresses(),
        ):
            try:
                return self.run(*map(_on_cpu, inputs))
            finally:
                self.env, self.args_iter = {}, iter(())

    @contextmanager
    def known_results(self) -> Iterator[None]:
        """Within: ops whose results depend on values have those of the last computation."""
        outer = getattr(_run, "results", None)
        _run.results = self._results
        try:
            yield
        finally:
            _run.results = outer

    def compute_captured(self, inputs: list[Any]) -> tuple[Any, Callable[[list[Any]], Any]]:
        """The graph's outputs, and a function that computes them as a replay does."""
        # A replay has moved the generator on already; the graph draws last in the capture.
        machine = self._machine
        device = machine.thread.device
        state, capture = machine.generators[device].state, machine.current_capture(device)
        offsets = {} if capture is None else state.captures
        key = -1 if capture is None else capture.id
        before = offsets.get(key, 0)
        computed = self.compute(inputs)
        drawn = offsets.get(key, 0) - before

        def compute_again(inputs: list[Any]) -> Any:
            end = state.offset
            state.offset = end - drawn
            try:
                return self.compute(inputs)
            finally:
                state.offset = end

        return computed, compute_again

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        if not isinstance(value, GraphModule):
            return value
        if target not in self._on_cpu:
            self._on_cpu[target] = _copy_on_cpu(value)
        return self._on_cpu[target]

    def map_nodes_to_values(self, args: Any, n: Node) -> Any:
        if not _sees_strides(n.target):
            return super().map_nodes_to_values(args, n)
        return map_arg(args, lambda node: _as_traced(self.env[node], node))

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        args, kwargs = tree_map_only(torch.device, lambda _device: _CPU, (args, kwargs))
        run = target
        if isinstance(target, OpOverload):
            info = op_info(target)
            run = info.reference or _ALIKE.get(target, target)
            if info.draws and not random_draws.draws_nothing(target, args, kwargs):
                run = self._drawing(target, run)
        elif getattr(target, "__name__", "") == "graphsafe_run_with_rng_state":
            return run_with_generator(partial(self._call_op, args[0]), *args[1:], **kwargs)
        elif getattr(target, "__name__", "") in _SEEDS:
            run = self._drawing(torch.ops.aten.randint.low, run)
        elif getattr(target, "__name__", "") == "flex_attention_backward":
            args = _with_gradients(target, args, kwargs)
        result = run(*args, **kwargs)
        if isinstance(target, OpOverload) and _depends_on_values(target, args):
            self._results[target].append(result)
        return result

    def _drawing(self, op: Any, run: Any) -> Any:
        """A function that runs an op with the generator of the current GPU."""
        generator = self._machine.generators[self._machine.thread.device]
        source = generator.state.source(generator.start_draw())
        return random_draws.drawing(op, run, False, source)

    def _call_op(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        return self.call_function(op, args, kwargs)

    def fill(self, outputs: Any, values: Any) -> None:
        """Write values to the outputs of the graph, which were made without."""
        with (
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
            torch.no_grad(),
            self._machine.thread.host_addresses(),
        ):
            for output, value in zip(outputs, values, strict=True):
                if isinstance(output, torch.Tensor) and output.data_ptr() != value.data_ptr():
                    output.copy_(value)


def _with_gradients(op: Any, args: Args, kwargs: Kwargs) -> Args:
    """Arguments of the op, whose captured tensors need gradients where its graph makes some."""
    bound = inspect.signature(type(op).__call__).bind(op, *args, **kwargs)
    graph, captured = bound.arguments["joint_graph"], bound.arguments["score_mod_other_buffers"]
    if isinstance(graph, GraphModule):
        *_, output = graph.graph.nodes
        gradients = output.args[0][-len(captured) :] if captured else ()
        captured = tuple(
            value if gradient is None else value.detach().requires_grad_()
            for value, gradient in zip(captured, gradients, strict=True)
        )
    bound.arguments["score_mod_other_buffers"] = captured
    return bound.args[1:]


def _copy_on_cpu(module: GraphModule) -> GraphModule:
    """A graph like one that an op calls, which makes its tensors on the CPU."""
    module = copy.deepcopy(module)
    for submodule in module.modules():
        if isinstance(submodule, GraphModule):
            for node in submodule.graph.nodes:
                node.args, node.kwargs = tree_map_only(
                    torch.device, lambda _device: _CPU, (node.args, node.kwargs)
                )
            submodule.recompile()
    return module


def _on_cpu(value: Any) -> Any:
    """A tensor with the memory of another one, in a storage that no GPU holds."""
    if not isinstance(value, torch.Tensor) or not value.numel():
        return value
    storage = value.untyped_storage()
    region = (ctypes.c_char * storage.nbytes()).from_address(host_address(storage))
    memory = torch.frombuffer(region, dtype=torch.uint8).untyped_storage()
    alias = torch.empty(0, dtype=value.dtype)
    return alias.set_(memory, value.storage_offset(), value.size(), value.stride())
