"""Inductor's wrapper of a graph, run on simulated GPUs.

Its statements run as they are, in order: what it allocates is allocated, what it deletes is freed,
and library calls run as they do eagerly. Kernels that Inductor writes itself take no memory but
what the wrapper gives them; they do nothing here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import ref

import torch

from ..._common.frames.compiled_code import Frames
from ..machine.machine import Machine
from .line_entries import LineEntries

_GUARDS: Final = "assert_"
"""Begins the names of Inductor's checks of sizes, strides and addresses."""
_OWN: Final = frozenset({"reinterpret_tensor", "get_raw_stream", "copy_if_misaligned"})
"""Calls of a wrapper that take no memory, or rarely, and belong to no line of the program."""

_KERNELS: Final = "async_compile"
_WITH_TRITON: Final = (
    "triton",
    "torch._inductor.async_compile",
    "torch._inductor.runtime.triton_heuristics",
)
_ALIGNMENT: Final = 16
"""Bytes; Inductor's ``ALIGNMENT``."""


class _NoKernel:
    """A kernel that Inductor wrote: its launch takes no memory."""

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...

    run = __call__


class _CapturedKernel(_NoKernel):
    """A kernel of a GPU: a capture that is underway has its launch."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def run(self, *args: Any, **kwargs: Any) -> None:
        machine = self._machine
        index = machine.current_gpu().index
        capture = machine.current_capture(index)
        if capture is not None:
            capture.launch(machine.current_stream(index))


def load(
    machine: Machine, text: str, origins: Mapping[str, Frames], constants: Mapping[str, Any]
) -> Callable[[list[Any]], Any]:
    """The function ``call`` of a wrapper, which takes its memory on simulated GPUs.

    Args:
        machine: that has the GPUs.
        text: of the wrapper.
        origins: the lines of the program that each buffer comes from, by its name.
        constants: the module's attributes that are tensors.
    """
    tree = ast.parse(text)
    tree.body = [statement for statement in tree.body if _is_run(statement)]
    lines = _Lines(origins)
    code = compile(ast.fix_missing_locations(lines.visit(tree)), __file__, "exec")
    names: dict[str, Any] = {
        "__name__": __name__,
        _KERNELS: _Kernels(machine),
        **lines.entries.names(),
    }
    exec(code, names)  # noqa: S102 - PyTorch's compiler wrote it
    names.update(constants)
    names["empty_strided_cuda"] = _Allocation(machine).empty_strided
    names["copy_if_misaligned"] = _aligned
    names["empty_strided_cpu"] = partial(_on_cpu, names["empty_strided_cpu"])
    call: Callable[[list[Any]], Any] = names["call"]
    return call


def kept_inputs(machine: Machine, args: list[Any]) -> Callable[[], list[Any]]:
    """A function that returns a graph's inputs again, and keeps none of them alive.

    An input that was freed is allocated again, without values.
    """
    inputs = [_Input(machine, arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    return lambda: [arg.tensor() if isinstance(arg, _Input) else arg for arg in inputs]


class _Input:
    def __init__(self, machine: Machine, tensor: torch.Tensor) -> None:
        self._reference = ref(tensor)
        self._make = partial(_Allocation(machine).empty_strided, tensor.size(), tensor.stride())
        self._dtype = tensor.dtype

    def tensor(self) -> torch.Tensor:
        tensor = self._reference()
        return self._make(self._dtype) if tensor is None else tensor


def _is_run(statement: ast.stmt) -> bool:
    """True for a statement of a wrapper that does not compile kernels, and is no benchmark."""
    match statement:
        case ast.Import(names=names):
            return not any(name.name.startswith(_WITH_TRITON) for name in names)
        case ast.ImportFrom(module=module):
            return not str(module).startswith(_WITH_TRITON)
        case ast.Assign(targets=[ast.Name(id=name)]):
            return name != _KERNELS
        case ast.FunctionDef(name=name):
            return name not in ("get_args", "benchmark_compiled_module")
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name != _KERNELS
        case ast.If() | ast.Delete():
            return False
    return True


class _Kernels:
    """Stands for Inductor's ``AsyncCompile``."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def __getattr__(self, language: str) -> Callable[..., _NoKernel]:
        is_captured = language == "triton"
        kernel = _CapturedKernel(self._machine) if is_captured else _NoKernel()
        return lambda *_args, **_kwargs: kernel


class _Lines(ast.NodeTransformer):
    """Lets each call that takes memory come from the line of the program that needs the buffer."""

    def __init__(self, origins: Mapping[str, Frames]) -> None:
        self._origins = origins
        self.entries = LineEntries()

    def visit_Expr(self, node: ast.Expr) -> ast.stmt:
        call = node.value
        if not isinstance(call, ast.Call):
            return node
        if isinstance(call.func, ast.Name) and call.func.id.startswith(_GUARDS):
            return ast.copy_location(ast.Pass(), node)
        outs = [keyword.value for keyword in call.keywords if keyword.arg == "out"]
        node.value = self._from_line(call, outs or call.args)
        return node

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        frames = self._frames(node.targets)
        if isinstance(node.value, ast.Call):
            node.value = self._from_line(node.value, node.targets)
        if not frames:
            return [node]
        return [self.entries.arrival(frames), node]

    def _from_line(self, call: ast.Call, written: Sequence[ast.expr]) -> ast.Call:
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        is_launch = isinstance(call.func, ast.Attribute) and call.func.attr == "run"
        frames = self._frames(written)
        if not frames or name in _OWN or is_launch:
            return call
        return self.entries.call(frames, call)

    def _frames(self, written: Sequence[ast.expr]) -> Frames:
        names = (
            part.id
            for statement in written
            for part in ast.walk(statement)
            if isinstance(part, ast.Name)
        )
        return next((self._origins[name] for name in names if name in self._origins), ())


class _Allocation:
    """Allocates a wrapper's buffers on the current GPU."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def empty_strided(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        machine = self._machine
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            if machine.values is None:
                tensor = torch.empty_strided(size, stride, dtype=dtype, device="cpu")
            else:
                tensor = machine.values.make_strided(size, stride, dtype)
            gpu = machine.current_gpu()
            if machine.is_in_graph_pool(gpu):
                machine.put_in_pool(tensor, gpu)
            else:
                machine.put(torch._C.TensorBase.untyped_storage(tensor), gpu)
        return tensor


def _on_cpu(
    empty: Callable[..., torch.Tensor],
    size: tuple[int, ...],
    stride: tuple[int, ...],
    dtype: torch.dtype,
) -> torch.Tensor:
    """A buffer of the CPU, which no kernel fills here: whole numbers may be used as indices."""
    tensor = empty(size, stride, dtype)
    return tensor if dtype.is_floating_point or dtype.is_complex else tensor.zero_()


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor whose address Inductor's kernels can read as fast as they assume."""
    if tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
