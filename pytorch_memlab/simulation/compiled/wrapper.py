"""Inductor's wrapper of a graph, run on simulated GPUs.

Its statements run as they are, in order: what it allocates is allocated, what it deletes is freed,
and library calls run as they do eagerly. Kernels that Inductor writes itself take no memory but
what the wrapper gives them, and what times them at their first launch; they do nothing here.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from weakref import ref

import torch

from ..._common.frames.compiled_code import Frames
from ..machine.machine import Machine
from .kernel_timing import KernelTiming, Timings
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
_PLACE: Final = "place"
"""The argument that is added to a launch: a function that calls another one from its line."""
_ALIGNMENT: Final = 16
"""Bytes; Inductor's ``ALIGNMENT``."""


class _NoKernel:
    """A kernel that Inductor wrote: its launch takes no memory."""

    def __call__(self, *args: Any, **kwargs: Any) -> None: ...

    run = __call__


class _TritonKernel(_NoKernel):
    """A kernel of a GPU: its first launch times it, and a capture that is underway has each."""

    def __init__(self, timing: KernelTiming) -> None:
        self._timing = timing

    def run(self, *args: Any, **kwargs: Any) -> None:
        machine = self._timing.machine
        if self._timing.is_due:
            kwargs.pop(_PLACE)(self._timing.take, args, kwargs)
        index = machine.current_gpu().index
        capture = machine.current_capture(index)
        if capture is not None:
            capture.launch(machine.current_stream(index))


def load(
    machine: Machine,
    text: str,
    origins: Mapping[str, Frames],
    constants: Mapping[str, Any],
    timings: Timings,
) -> Callable[[list[Any]], Any]:
    """The function ``call`` of a wrapper, which takes its memory on simulated GPUs.

    Args:
        machine: that has the GPUs.
        text: of the wrapper.
        origins: the lines of the program that each buffer comes from, by its name.
        constants: the module's attributes that are tensors.
        timings: of kernels that were launched before.
    """
    tree = ast.parse(text)
    tree.body = [statement for statement in tree.body if _is_run(statement)]
    lines = _Lines(origins)
    code = compile(ast.fix_missing_locations(lines.visit(tree)), __file__, "exec")
    names: dict[str, Any] = {
        "__name__": __name__,
        _KERNELS: _Kernels(timings),
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
    """A function that returns a graph's inputs again, and keeps none of them alive."""
    # An input that was freed is allocated again, without values.
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

    def __init__(self, timings: Timings) -> None:
        self._timings = timings

    def triton(self, _name: str, source: str, *_args: Any, **_kwargs: Any) -> _NoKernel:
        return _TritonKernel(self._timings.of(source))

    def __getattr__(self, language: str) -> Callable[..., _NoKernel]:
        return lambda *_args, **_kwargs: _NoKernel()


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
        if _is_launch(call):
            name = f"timing of {ast.unparse(call.func).removesuffix('.run')}"
            place = self.entries.place(self._frames_of_last(call.args), name)
            call.keywords.append(ast.keyword(_PLACE, place))
            return node
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
        frames = self._frames(written)
        if not frames or name in _OWN or _is_launch(call):
            return call
        return self.entries.call(frames, call)

    def _frames(self, written: Sequence[ast.expr]) -> Frames:
        return next((self._origins[name] for name in self._known(written)), ())

    def _frames_of_last(self, args: Sequence[ast.expr]) -> Frames:
        """Those of the buffer with the highest number: results have higher ones than inputs."""
        last = max(self._known(args), key=_number, default=None)
        return () if last is None else self._origins[last]

    def _known(self, expressions: Sequence[ast.expr]) -> Iterator[str]:
        """The names of buffers in expressions."""
        for expression in expressions:
            for part in ast.walk(expression):
                if isinstance(part, ast.Name) and part.id in self._origins:
                    yield part.id


def _is_launch(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "run"


def _number(name: str) -> int:
    """That of a buffer's name."""
    digits = name[len(name.rstrip("0123456789")) :]
    return int(digits or -1)


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
