"""Private names of ``torch._dynamo``: it traces programs while a simulation is on.

Dynamo skips every frame below a dispatch mode, and traces into function modes: those of the
simulation it must not see. Where the program compares or calls what the simulation replaced, it
must see what PyTorch has there, but for questions whose answers it keeps as constants.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import CodeType
from typing import Any

import torch
from torch._C._dynamo.eval_frame import reset_code
from torch._dynamo import (
    device_interface,
    guards,
    pgo,
    resume_execution,
    trace_rules,
    utils,
)
from torch._dynamo.backends import debugging, registry
from torch._dynamo.exc import (
    InternalTorchDynamoError,
    RestartAnalysis,
    ResumePrologueTracingError,
    SkipFrame,
    TorchRuntimeError,
    Unsupported,
    exceptions_allowed_to_be_fallback,
)
from torch._dynamo.source import TorchFunctionModeStackSource
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables import builder, optimizer, torch as torch_variables, torch_function
from torch._dynamo.variables.lazy import LazyVariableTracker
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _disable_current_modes

from ..._common.frames.compiled_code import compiled_code
from ..._common.frames.user_code import OWN_FOLDER
from ..._common.patching.patches import Patches
from ..dispatch.function_mode import SimulatedFunctionMode
from ..dispatch.modes import simulated_modes
from ..machine.machine import Machine
from ..machine.op_arguments import Args, Kwargs

Backend = Callable[[Any, list[Any]], Any]
"""Compiles a graph for example inputs: a function of the graph's inputs."""

_MODE_KEYS = (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot)
"""Dispatch keys that every tensor has while a dispatch mode is on; guards compare them."""

AOT_EAGER = ("aot_eager", "aot_eager_decomp_partition")
"""Backends that run AOTAutograd's graphs op by op: as traced, or in Inductor's ops."""

CONTROL_FLOW = (RestartAnalysis, SkipFrame, Unsupported, *exceptions_allowed_to_be_fallback)
"""Errors by which a backend tells Dynamo what to do."""

TRACING_ERRORS = (InternalTorchDynamoError, TorchRuntimeError)
"""Errors that a frame raises which a real GPU compiles, if the simulation is at fault."""

_IN_CAPTURE = "cannot JIT compile during CUDA graph capture"
"""Part of the error of ``convert_frame.trace_frame``, from PyTorch 2.14 on."""


def make_tables() -> None:
    """Let Dynamo make what it makes once, of functions of torch by their identity."""
    # A program that imports Dynamo may have let it look at what the simulation has replaced.
    trace_rules.clear_lru_cache()
    handlers = torch_variables.TorchInGraphFunctionVariable._get_handlers
    handlers.cache_clear()
    handlers()
    trace_rules.get_torch_obj_rule_map()


def install(
    machine: Machine,
    # the functions of torch that the simulation replaces, each by what stands for it
    replaced: Mapping[Any, Any],
    patches: Patches,
) -> None:
    """Let Dynamo trace as without the simulation, until undone."""
    _hide_function_mode(patches)
    _see_through_replacements(replaced, patches)
    _skip_own_frames(patches)
    _simulate_optimizers(machine, patches)
    _guard_gpus(machine, patches)

    @patches.around(utils, "run_node")
    def run_node(run: Any, tracer: Any, node: Any, args: Args, kwargs: Kwargs, module: Any) -> Any:
        with machine.thread.call_context(args, kwargs):
            replacement = machine.replacements.get(node.target)
            if replacement is not None:
                return replacement(*args, **kwargs)
            return run(tracer, node, args, kwargs, module)

    interface = device_interface.CudaInterface
    for name, call in (
        ("device_count", torch.cuda.device_count),
        ("exchange_device", torch.cuda._exchange_device),
        ("maybe_exchange_device", torch.cuda._maybe_exchange_device),
        ("get_raw_stream", torch._C._cuda_getCurrentRawStream),
    ):
        patches.set(interface, name, staticmethod(call))
    for name in ("caching_worker_device_properties", "caching_worker_current_devices"):
        patches.set(device_interface, name, {})


def _skip_own_frames(patches: Patches) -> None:
    pattern = trace_rules.SKIP_DIRS_RE
    patches.set(trace_rules, "SKIP_DIRS", [*trace_rules.SKIP_DIRS, OWN_FOLDER])
    trace_rules._recompile_re()
    longer, trace_rules.SKIP_DIRS_RE = trace_rules.SKIP_DIRS_RE, pattern
    patches.set(trace_rules, "SKIP_DIRS_RE", longer)


def _hide_function_mode(patches: Patches) -> None:
    state = torch_function.SymbolicTorchFunctionState

    @patches.around(state, "__init__")
    def init(original: Any, self: Any, py_stack: Any, *args: Any, **kwargs: Any) -> None:
        original(self, (), *args, **kwargs)
        for position, mode in enumerate(py_stack):
            if not isinstance(mode, SimulatedFunctionMode):
                source = TorchFunctionModeStackSource(position)
                self.mode_stack.append(LazyVariableTracker.create(mode, source=source))

    @patches.around(utils, "set_torch_function_mode_stack")
    def set_stack(original: Any, modes: Any) -> None:
        """Compiled code leaves the modes that Dynamo knows: the hidden one comes back."""
        modes = list(modes)
        for position, mode in enumerate(_get_current_function_mode_stack()):
            if isinstance(mode, SimulatedFunctionMode):
                modes.insert(position, mode)
        original(modes)


def _guard_gpus(machine: Machine, patches: Patches) -> None:
    """Let a tensor on another device compile again: C++ takes all of them for CPU tensors."""
    gpu_of = machine.gpu_of

    @patches.around(guards.CheckFunctionManager, "__init__")
    def make_guards(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        with ExitStack() as keys:
            for key in _MODE_KEYS:  # the modes of the simulation are on when guards are checked
                keys.enter_context(torch._C._IncludeDispatchKeyGuard(key))
            original(self, *args, **kwargs)

    @patches.around(guards.GuardBuilder, "TENSOR_MATCH")
    def match(original: Any, self: Any, guard: Any, value: Any = None) -> None:
        original(self, guard, value)
        tensor = self.get(guard) if value is None else value
        if not isinstance(tensor, torch.Tensor):
            return
        gpu = gpu_of(tensor)
        manager, check = self.get_guard_manager(guard), lambda other: gpu_of(other) is gpu
        text = [f"device of {guard.name}"]
        try:
            manager.add_lambda_guard(check, text, guard.user_stack)
        except TypeError:  # releases before the guard had its stack
            manager.add_lambda_guard(check, text)


def _simulate_optimizers(machine: Machine, patches: Patches) -> None:
    """Let optimizers make their state on the simulated GPUs: Dynamo runs that while it traces."""

    @patches.around(optimizer.OptimizerVariable, "move_step_if_cpu")
    def move_step(original: Any, self: Any) -> None:
        with simulated_modes(machine):
            original(self)

    @patches.around(optimizer.OptimizerVariable, "call_method")
    def call_method(original: Any, self: Any, tx: Any, name: str, *args: Any) -> Any:
        if name != "_init_group" or not hasattr(self.value, name):
            return original(self, tx, name, *args)
        self.value._init_group = simulated_modes(machine)(self.value._init_group)
        try:
            return original(self, tx, name, *args)
        finally:
            del self.value._init_group


def _see_through_replacements(replaced: Mapping[Any, Any], patches: Patches) -> None:
    constant: Any = torch_variables.constant_fold_functions
    guarded: Any = torch_variables.constant_fold_functions_need_guards
    rules = trace_rules.get_torch_obj_rule_map()
    originals: dict[int, Any] = {}
    for original, value in replaced.items():
        if original in constant:
            constant[value] = None
            rules[value] = rules[original]
            if original in guarded:
                guarded[value] = None
        else:
            originals[id(value)] = originals.get(id(original), original)

    def forget() -> None:
        for value in replaced.values():
            for table in (constant, guarded, rules):
                table.pop(value, None)

    patches.before_undo(forget)

    @patches.around(builder.VariableBuilder, "_wrap")
    def wrap(original: Any, self: Any, value: Any) -> Any:
        return original(self, originals.get(id(value), value))


@contextmanager
def _plain_module_calls() -> Iterator[None]:
    """Within: modules are called without what this package has put around that."""
    replaced: Any = torch.nn.Module.__call__
    plain: Any = inspect.unwrap(replaced, stop=_is_not_own)
    torch.nn.Module.__call__ = plain  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.nn.Module.__call__ = replaced  # type: ignore[method-assign]


def _is_not_own(function: Any) -> bool:
    return not function.__code__.co_filename.startswith(OWN_FOLDER)


class Callback:
    """Compiles a frame for the simulated GPUs, in place of what the program's context calls."""

    def __init__(
        self, inner: Any, codes: set[CodeType], on_error: Callable[[BaseException], None]
    ) -> None:
        self._torchdynamo_orig_backend = inner  # C++ finds the backend of a compiled frame there
        self._codes = codes  # of all frames that were compiled
        self._on_error = on_error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torchdynamo_orig_backend, name)

    def __call__(self, frame: Any, *args: Any) -> Any:
        code: CodeType = frame.f_code
        self._codes.add(code)
        original = _original(code)
        if original is not code:
            compiled_code.replace(original, code, is_start=False)
        try:
            with compiled_code.compiling(), _disable_current_modes(), _plain_module_calls():
                converted = self._torchdynamo_orig_backend(frame, *args)
            if converted.guarded_code is not None:
                generated = converted.guarded_code.code
                compiled_code.replace(original, generated, is_start=original is code)
            return converted
        except TRACING_ERRORS as error:
            if isinstance(error, ResumePrologueTracingError) or _IN_CAPTURE in str(error):
                raise
            self._on_error(error)
            return ConvertFrameReturn()


def _original(code: CodeType) -> CodeType:
    """The program's code that a code is, or goes on with after a graph break."""
    resumptions: Any = resume_execution.ContinueExecutionCache.generated_code_metadata
    while code in resumptions:
        code = resumptions[code].code
    return code


def forget(codes: set[CodeType]) -> None:
    """Drop all that was compiled of some code, and the shapes that were seen."""
    compiled_code.forget()
    for code in codes:
        reset_code(code)
    if codes:
        pgo.reset_code_state()
    codes.clear()


def with_backend(callback: Any, backend: Backend) -> Any:
    """A callback like another one, which compiles with another backend."""
    callback = copy.copy(callback)
    inner = callback._torchdynamo_orig_backend
    callback._torchdynamo_orig_backend = inner._clone_with_backend(backend)
    return callback


def backend_of(callback: Any) -> Any:
    while hasattr(callback, "_torchdynamo_orig_backend"):
        callback = callback._torchdynamo_orig_backend
    return callback


def is_named(backend: Any, *names: str) -> bool:
    """True if a backend is one of those that Dynamo has under these names."""
    function = getattr(backend, "compiler_fn", backend)
    return any(function is registry.lookup_backend(name) for name in names)


def aot_eager(backend: Any, boxed: Callable[..., Callable[..., Any]]) -> Backend:
    """A backend of `AOT_EAGER`, whose graphs run as ``boxed`` lets them."""
    forward = boxed(debugging.boxed_nop, is_hit=True)
    backward = boxed(debugging.boxed_nop, is_hit=False)

    compiler, options = getattr(backend, "compiler_fn", backend), getattr(backend, "kwargs", {})

    def compile_graph(module: Any, inputs: list[Any]) -> Any:
        if is_named(backend, AOT_EAGER[0]):
            return compiler(module, inputs, fw_compiler=forward, bw_compiler=backward, **options)
        asked = debugging.get_nop_func
        debugging.get_nop_func = partial(next, iter((forward, backward)))
        try:
            return compiler(module, inputs, **options)
        finally:
            debugging.get_nop_func = asked

    return compile_graph
