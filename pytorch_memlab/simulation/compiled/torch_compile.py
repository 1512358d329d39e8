"""``torch.compile`` on simulated GPUs: Dynamo traces, Inductor lowers, and its wrapper runs.

What cannot be compiled runs eagerly: a warning names the reason, and the line is marked as a lower
bound.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache, partial, wraps
from types import CodeType, ModuleType
from typing import Any, Final
from weakref import ref

import torch

from ..._common.frames.compiled_code import compiled_code
from ..._common.patching.after_import import AfterImport
from ..._common.patching.patches import Patches
from ...errors import MemlabError, UnmodelledOpError
from ..dispatch import captured_ops
from ..machine import active
from ..machine.machine import Machine
from ..machine.refused_calls import refusal
from ..machine.torch_release import RELEASE

_FIRST: Final = (2, 9)
"""The first release of PyTorch whose compiler is known here."""

_UNCOUNTED: Final = "the memory of compiled code"

_NESTED: Final = (
    "this simulate() is inside of another one, and the compiler sees the GPUs of one only: end the "
    "outer one first"
)

_TIMED: Final = "max-autotune"

_INDUCTOR: Final = "torch._inductor"
_PACKAGES: Final = (
    *("aoti_compile_and_package", "aoti_load_package", "aot_compile", "compile"),
    "standalone_compile",
)
"""Functions of ``torch._inductor`` that need a GPU's kernels."""

_HIGHER_ORDER: Final = ("torch._higher_order_ops.", "torch.nn.attention.flex_attention")
"""Modules of ops that take functions, and compile to trace those."""
_BLOCK_MASK: Final = "create_block_mask"
"""What is compiled there for its speed, where a program asks for that."""

Run = Callable[..., Any]


def install(machine: Machine, patches: Patches) -> None:
    """Compile for the simulated GPUs, until undone; the compiler is imported when it is needed."""
    # What PyTorch itself compiles to run an op that takes functions, outside of compiled code, runs
    # as it is: only its arguments are traced there, and no kernel is fused.
    compilation = _Compilation(machine, patches)
    original = torch.compile

    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return partial(compile, **options)
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        if caller.startswith(_HIGHER_ORDER) and getattr(model, "__name__", "") != _BLOCK_MASK:
            return model
        return original(model, **options) if compilation.start() else compilation.marked(model)

    def compile_module(module: torch.nn.Module, *args: Any, **options: Any) -> None:
        if compilation.start():  # as nn.Module.compile does
            module._compiled_call_impl = original(module._call_impl, *args, **options)
        else:
            compilation.marked(module)

    imports = AfterImport()
    imports.call(_INDUCTOR, partial(_refuse_packages, patches))
    imports.start()
    patches.before_undo(imports.stop)
    patches.set(torch, "compile", compile)
    patches.set(torch.nn.Module, "compile", compile_module)
    frames = sys.modules.get("torch._dynamo.eval_frame")
    if frames is not None:  # what was compiled before may be called
        compilation.replace_callbacks(frames)


def _reason(error: BaseException) -> str:
    """The first line of an error, behind the name of its type."""
    return f"{type(error).__name__}: " + str(error).strip().partition("\n")[0]


def _refuse_packages(patches: Patches, module: ModuleType) -> None:
    """Let what makes or loads a library of kernels fail by name: it would end the process."""
    for name in _PACKAGES:
        if hasattr(module, name):
            patches.set(module, name, refusal(f"{_INDUCTOR}.{name}"))


class _Compilation:
    """Compiles for one machine."""

    def __init__(self, machine: Machine, patches: Patches) -> None:
        self._machine = machine
        self._patches = patches
        self._is_on: bool | None = None
        self._are_replaced = False
        self._callbacks: dict[int, tuple[Any, Any]] = {}
        self._backends: list[tuple[Any, Callable[[Any, list[Any]], Run]]] = []
        self._codes: set[CodeType] = set()
        self._has_warned = False
        self._is_over = False
        self._is_nested = bool(active.simulations)

    def start(self) -> bool:
        """Import the compiler, and let it see the simulated GPUs; False if that cannot be."""
        if self._is_on is None:
            obstacle = self._obstacle()
            self._is_on = obstacle is None
            if obstacle is not None:
                self._patches.before_undo(partial(setattr, self, "_is_over", True))
                self._say(obstacle, stacklevel=4)  # the line of the program, above `compile`
        if not self._is_on:
            self._refuse()
        return self._is_on

    def marked(self, model: Any) -> Any:
        """The model as it is; each line that calls it has a mark while this machine is there."""
        if not isinstance(model, torch.nn.Module):
            return wraps(model)(self._uncounted(model))
        reference = ref(model)  # it would keep itself alive

        def call(*args: Any, **kwargs: Any) -> Any:
            module: Any = reference()
            return module._call_impl(*args, **kwargs)

        model._compiled_call_impl = self._uncounted(call)
        return model

    def _obstacle(self) -> str | None:
        """Start, or the reason why that cannot be: text, an error would keep variables alive."""
        if self._is_nested:
            return _NESTED
        try:
            self._start()
        except (ImportError, AttributeError) as error:  # private names of another release
            return _reason(error)
        return None

    def _start(self) -> None:
        if RELEASE < _FIRST:
            raise ImportError(f"PyTorch {torch.__version__} is older than 2.9")
        machine, patches = self._machine, self._patches
        with patches.suspended() as replaced:
            from torch._dynamo import eval_frame

            from . import (
                dynamo,
                eager_graphs,
                graph_cache,
                graph_flops,
                inductor,
                kernel_timing,
                labelled_fakes,
                values,
            )

            dynamo.make_tables()
        labelled_fakes.install(machine, patches)
        dynamo.install(machine, replaced, patches)
        eager_graphs.install(patches)
        folder = graph_cache.folder_for(machine.gpus[0].model)
        graph_flops.install(patches)
        inductor.install(machine, patches, folder, self._program, self._instead)
        self._timings = kernel_timing.Timings(machine)
        self._timings.install(patches)
        if machine.values is None:
            values.install(machine)
        self.replace_callbacks(eval_frame)
        patches.before_undo(partial(dynamo.forget, self._codes))

    def replace_callbacks(self, frames: ModuleType) -> None:
        """Let every compiled function of the program compile for this machine."""
        if self._are_replaced or not hasattr(frames, "_callback_from_stance"):
            return
        self._are_replaced = True

        @self._patches.around(frames, "_callback_from_stance")
        def callback_from_stance(original: Callable[[Any], Any], callback: Any) -> Any:
            chosen = original(callback)
            return chosen if chosen in (None, False) else self._callback(chosen)

    def _callback(self, callback: Any) -> Any:
        """A callback for this machine in place of one of Dynamo; None: nothing is compiled."""
        if not self.start():
            self._count()
            return None
        from . import dynamo

        if isinstance(callback, dynamo.Callback):
            return callback
        if id(callback) not in self._callbacks:
            original = dynamo.backend_of(callback)
            inner = dynamo.with_backend(callback, self._backend_like(original))
            replacement = dynamo.Callback(inner, self._codes, self._warn_of)
            self._callbacks[id(callback)] = callback, replacement
        return self._callbacks[id(callback)][1]

    def _backend_like(self, original: Any) -> Callable[[Any, list[Any]], Run]:
        """One backend for all that are equal: a function with another one is compiled again."""
        for name, backend in self._backends:
            if name == original:
                return backend
        backend = self._backend(original)
        self._backends.append((original, backend))
        return backend

    def _backend(self, original: Any) -> Callable[[Any, list[Any]], Run]:
        """A backend that compiles as another one does, for this machine."""
        from . import dynamo, eager_graphs, inductor, labelled_fakes

        chosen = original
        name = getattr(original, "compiler_name", getattr(original, "__name__", ""))
        is_modelled = is_op_by_op = dynamo.is_named(original, "eager")
        if not is_op_by_op and dynamo.is_named(original, *dynamo.AOT_EAGER):
            is_modelled, chosen = True, dynamo.aot_eager(original, eager_graphs.boxed)
        is_inductor = getattr(original, "compiler_name", "") == "inductor"
        is_modelled = is_modelled or is_inductor or dynamo.is_named(original, "cudagraphs")

        def compile_graph(module: Any, inputs: list[Any]) -> Run:
            backend, is_timed = chosen, False
            if is_inductor:  # its configuration may have changed since
                backend, is_timed = inductor.without_timing(original)
            if not is_modelled:
                self.warn(f"the backend {name!r} is not modelled")
                return self._eagerly(module)
            skipped = inductor.graphs_not_recorded()
            try:
                with labelled_fakes.Calls(self._machine):
                    compiled: Run = backend(module, inputs)
            except (*dynamo.CONTROL_FLOW, MemlabError, torch.OutOfMemoryError):
                raise
            except Exception as error:
                return self._instead(error, module)
            if inductor.graphs_not_recorded() > skipped:  # CUDA records the parts that it can
                return self._uncounted(compiled)
            if is_op_by_op:
                return eager_graphs.from_lines(module, is_hit=True)(compiled)
            return self._estimated(compiled) if is_timed else compiled

        compile_graph.__name__ = name  # errors of the compiler name its backend
        return compile_graph

    def _program(self, lowered: Any) -> Run:
        """A function that runs a lowered graph on this machine."""
        from . import graph_flops, program_frames, values, wrapper

        machine = self._machine
        source, is_hit = lowered.source, not lowered.is_backward
        lines = program_frames.frames_of_ops(source.graph)
        flops = cache(partial(graph_flops.flops_of, source.graph))
        call = wrapper.load(machine, lowered.text, lowered.lines, lowered.constants, self._timings)
        graph = values.GraphValues(machine, source)
        eagerly: Run | None = None

        def run_wrapper(args: list[Any]) -> Any:
            nonlocal eagerly
            inputs = wrapper.kept_inputs(machine, args)
            try:
                if eagerly is None:
                    with compiled_code.running(lines, is_hit, flops):
                        return call(args)
            except (MemlabError, torch.OutOfMemoryError, torch.AcceleratorError):
                raise
            except Exception as error:
                eagerly = self._instead(error.with_traceback(None), source, is_hit)
            args.clear()
            return eagerly(*inputs())

        def filled(computed: Any, args: list[Any]) -> Any:
            with machine.thread.without_arithmetic(), graph.known_results():
                outputs = run_wrapper(args)
            graph.fill(outputs, computed)
            return outputs

        def run(args: list[Any]) -> Any:
            machine.overwritten.check_inputs(args)
            if machine.values is not None:
                return run_wrapper(args)
            recording = captured_ops.recording_of(machine)
            if recording is None:
                computed = graph.compute(args)
                return filled(computed, args)
            with recording.as_one_op(args) as keep:
                computed, compute_again = graph.compute_captured(args)
                outputs = filled(computed, args)
                keep(compute_again, outputs)
            return outputs

        return run

    def _instead(self, error: BaseException, module: Any, is_hit: bool = True) -> Run:
        """A function that runs a graph eagerly which cannot be compiled."""
        self._warn_of(error)
        return self._eagerly(module, is_hit)

    def _eagerly(self, module: Any, is_hit: bool = True) -> Run:
        """A function that runs a graph op by op, and marks the line that calls it."""
        from . import eager_graphs

        return self._uncounted(eager_graphs.from_lines(module, is_hit=is_hit)(module.forward))

    def _uncounted(self, run: Run) -> Run:
        """A function that marks the line that calls it."""

        def run_uncounted(*args: Any, **kwargs: Any) -> Any:
            self._count()
            return run(*args, **kwargs)

        return run_uncounted

    def _estimated(self, run: Run) -> Run:
        """A function that marks what a choice of kernels by time would change."""

        def run_estimated(*args: Any) -> Any:
            machine = self._machine
            if machine.strict:
                raise UnmodelledOpError(
                    f"{_TIMED} chooses kernels by their time, which is not known here; without "
                    "strict=True (--strict) the line is marked ~"
                )
            index = machine.current_gpu().index
            machine.approximations[index].count_estimated(_TIMED, 0)
            return run(*args)

        return run_estimated

    def warn(self, reason: str) -> None:
        """Say once why something runs eagerly, and mark the line."""
        self._count()
        self._say(reason)

    def _warn_of(self, error: BaseException) -> None:
        self.warn(_reason(error))

    def _say(self, reason: str, stacklevel: int = 3) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"torch.compile runs eagerly under simulation, without {_UNCOUNTED}: {reason}",
            stacklevel=stacklevel,
        )

    def _count(self) -> None:
        if self._is_over:
            return
        self._refuse()
        gpu = self._machine.current_gpu()
        self._machine.approximations[gpu.index].count_uncounted("torch.compile", _UNCOUNTED)

    def _refuse(self) -> None:
        if self._machine.strict:
            raise UnmodelledOpError(
                f"torch.compile runs eagerly here, and {_UNCOUNTED} is not known; without "
                "strict=True (--strict) the line is marked ?"
            )
