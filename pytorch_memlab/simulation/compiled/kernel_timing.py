"""Triton kernels that Inductor times on the GPU when they are first launched.

Inductor writes a kernel with several configurations, the sizes of its blocks and the number of its
warps, and takes the fastest. What it takes of the GPU's memory to time them happens here too, with
Inductor's own code but its compiler and its clock: copies of the arguments that the kernel
overwrites, and a buffer that is written between two launches. A GPU keeps the result of a timing on
its disk, and a simulation has an empty disk.

Note [Reductions that are timed by their registers]
A reduction with one configuration gets a second one if its kernel needs so many registers that few
of them run at once (``CachingAutotuner._dynamic_scale_rblock``). Only the compiler of the GPU's
instructions knows how many. Such a kernel is timed here where the most registers that a thread can
have would lead to it, and the line is marked as an estimate.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch._inductor.runtime import benchmarking, hints, triton_heuristics

from ..._common.interrupts.uninterrupted import STANDARD_SIGNALS, uninterrupted
from ..._common.patching.patches import Patches
from ...errors import EstimatedMemoryError, UnmodelledOpError
from ..machine.machine import Machine

_HEURISTICS: Final = "triton_heuristics"
_HEAD: Final = re.compile(rf"^@{_HEURISTICS}\..*?^def .*?:$", re.MULTILINE | re.DOTALL)
_MOST_REGISTERS: Final = 255
"""Of a thread, on each GPU since compute capability 3.5 (CUDA C++ Programming Guide)."""
_TRITONS_CACHE: Final = 256 * 2**20
"""Bytes that Triton takes for its own cache (``get_empty_cache_for_benchmark``)."""
_TIMED: Final = "timing of Triton kernels"
_UNCOUNTED: Final = "what it takes to time Triton kernels"
_OTHER_RELEASE: Final = (
    *(AssertionError, AttributeError, ImportError, LookupError),
    *(NameError, NotImplementedError, SyntaxError, TypeError, ValueError),
)
"""Errors of private names that another release of PyTorch does not have."""


def bytes_to_flush() -> int:
    """Of the buffer that is written between two calls, so that they find nothing in the cache."""
    if isinstance(benchmarking.benchmarker, benchmarking.InductorBenchmarker):
        size: int = torch.cuda.get_device_properties().L2_cache_size
        return size
    return _TRITONS_CACHE


class Timings:
    """The kernels that one simulation has timed, or will when they are launched."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._benchmarker = _Benchmarker(machine)
        self._kernels: dict[tuple[str, str], KernelTiming] = {}

    def install(self, patches: Patches) -> None:
        """Let Inductor's code choose configurations without Triton and a clock, until undone."""
        patches.set(triton_heuristics, "benchmarker", self._benchmarker)
        config = vars(triton_heuristics).get("Config", object)
        if config is object:  # Triton is not installed
            config = _Config
            patches.set(triton_heuristics, "Config", _Config)
            if hasattr(triton_heuristics, "InductorConfig"):
                patches.set(triton_heuristics, "InductorConfig", _Config)
        patches.set(triton_heuristics, "triton", SimpleNamespace(Config=config))

    def of(self, source: str) -> KernelTiming:
        """The timing of a kernel: equal texts are one kernel, until its folder is another."""
        key = os.environ.get("TORCHINDUCTOR_CACHE_DIR", ""), source
        if key not in self._kernels:
            self._kernels[key] = KernelTiming(self._machine, self._benchmarker, source)
        return self._kernels[key]


class KernelTiming:
    """The memory of a kernel's first launch."""

    def __init__(self, machine: Machine, benchmarker: _Benchmarker, source: str) -> None:
        self.machine = machine
        self._benchmarker = benchmarker
        self._source = source
        self.is_due = True

    def take(self, args: tuple[Any, ...], options: Mapping[str, Any]) -> None:
        """Take what it takes to time the kernel with these arguments, and free it again."""
        # Raises torch.OutOfMemoryError if there is no room for it. The next launch times it again.
        try:
            kernel, is_estimate = _tuned(self._source)
            with self._benchmarker.estimating(is_estimate):
                kernel.run(*args, **options)
        except _OTHER_RELEASE:
            self._count_uncounted()
        self.is_due = False

    def _count_uncounted(self) -> None:
        machine = self.machine
        if machine.strict:
            raise UnmodelledOpError(
                f"{_UNCOUNTED} is not known with PyTorch {torch.__version__}; without strict=True "
                "(--strict) the line is marked ?"
            )
        machine.approximations[machine.current_gpu().index].count_uncounted(_TIMED, _UNCOUNTED)


class _Benchmarker:
    """Stands for ``benchmarking.benchmarker``: all configurations are equally fast."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._thread = threading.local()

    @contextmanager
    def estimating(self, is_estimate: bool) -> Iterator[None]:
        """Within: what is taken may be taken on a GPU, if so."""
        self._thread.is_estimate = is_estimate
        try:
            yield
        finally:
            self._thread.is_estimate = False

    def benchmark(self, fn: Callable[[], Any], *_args: Any, **_options: Any) -> float:
        """Take what ``InductorBenchmarker.benchmark_gpu`` takes, which calls it oftener."""
        machine = self._machine
        torch.cuda.synchronize()
        fn()
        gpu, nbytes = machine.current_gpu(), bytes_to_flush()
        is_estimate: bool = self._thread.is_estimate
        if is_estimate:
            self._count_estimated(nbytes)
        with uninterrupted(*STANDARD_SIGNALS):
            buffer = gpu.allocate(
                nbytes, machine.current_stream(gpu.index), is_estimate=is_estimate, is_data=True
            )
        try:
            fn()
            torch.cuda.synchronize()
        finally:
            gpu.release(buffer)
        return 1.0

    benchmark_gpu = benchmark

    def _count_estimated(self, nbytes: int) -> None:
        machine = self._machine
        if machine.strict == "estimates":
            raise EstimatedMemoryError(
                f"a Triton kernel may be timed, which takes {nbytes} bytes: that depends on its "
                "registers; strict=True (--strict) counts them, and the line is marked ~"
            )
        machine.approximations[machine.current_gpu().index].count_estimated(_TIMED, nbytes)


class _Config:
    """Stands for ``triton.Config`` where Triton is not installed."""

    def __init__(
        self,
        kwargs: dict[str, Any],
        num_warps: int = 4,
        num_stages: int = 3,
        **options: Any,
    ) -> None:
        self.kwargs = kwargs
        self.num_warps = num_warps
        self.num_stages = num_stages
        vars(self).update(options)


class _Launcher:
    """A configuration of a kernel that no compiler made; a launch does nothing."""

    n_spills = 0
    shared = 0
    cache_hash = ""
    store_cubin = False

    def __init__(self, config: Any, registers: int | None) -> None:
        self.config = config
        self.n_regs = registers
        self.kernel = self

    def make_launcher(self) -> _Launcher:
        return self

    def __call__(self, *_args: Any, **_options: Any) -> None: ...


def _tuned(source: str) -> tuple[Any, bool]:
    """A kernel with all of its configurations, and True if one of them may not be there."""
    # See Note [Reductions that are timed by their registers].
    kernel = _kernel(source)
    if len(kernel.launchers) == 1 and kernel.heuristic_type == hints.HeuristicType.REDUCTION:
        slow = _kernel(source, _MOST_REGISTERS)
        if len(slow.launchers) > 1:
            return slow, True
    return kernel, False


def _kernel(source: str, registers: int | None = None) -> Any:
    """Inductor's object of a kernel, from its text, whose configurations nothing compiles."""
    function, heuristic = _decorated(source)
    scope = {_HEURISTICS: triton_heuristics, "torch": torch, **vars(builtins), **vars(hints)}
    names = {node.id for node in ast.walk(heuristic) if isinstance(node, ast.Name)}
    scope |= {name: _Unknown() for name in names - scope.keys()}
    scope["__file__"] = function.name

    def value(expression: ast.expr) -> Any:
        return eval(compile(ast.Expression(expression), "", "eval"), scope)  # noqa: S307 - PyTorch wrote it

    options = {str(keyword.arg): value(keyword.value) for keyword in heuristic.keywords}
    meta = options["inductor_meta"]
    meta["force_disable_caches"] = True
    meta.pop("profile_bandwidth", None)
    signature = options["triton_meta"]["signature"]
    for argument in function.args.args:  # without Triton, the text is that for an old one
        signature.setdefault(argument.arg, "constexpr")
    decorate = value(heuristic.func)(*map(value, heuristic.args), **options)
    with _triton_cache_named():
        kernel = decorate(_jit_function(function, source))
    left = iter([registers])  # what a second one of a reduction needs is less
    kernel._precompile_config = lambda config: _Launcher(config, next(left, None))
    kernel.precompile()
    return kernel


class _Unknown:
    """Something of Triton's that no choice of configurations reads."""

    def __call__(self, *_args: Any, **_options: Any) -> None: ...

    def __getattr__(self, name: str) -> _Unknown:
        return self


@lru_cache(maxsize=1)
def _decorated(source: str) -> tuple[ast.FunctionDef, ast.Call]:
    """The head of the kernel in a text, and the heuristic that decorates it."""
    head = _HEAD.search(source)
    if head is None:
        raise LookupError(f"no kernel is decorated with {_HEURISTICS}")
    match ast.parse(f"{head[0]} ...").body:
        case [ast.FunctionDef(decorator_list=[ast.Call() as heuristic, *_]) as function]:
            return function, heuristic
    raise LookupError(f"{head[0]} is no decorated function")


def _jit_function(function: ast.FunctionDef, source: str) -> Any:
    """Stands for ``triton.JITFunction``."""
    names = [argument.arg for argument in function.args.args]
    return SimpleNamespace(
        __name__=function.name,
        fn=eval(f"lambda {', '.join(names)}: None"),  # noqa: S307 - the names of PyTorch's kernel
        src=source,
        arg_names=names,
    )


@contextmanager
def _triton_cache_named() -> Iterator[None]:
    """Within: a folder for Triton's cache is in the environment, so that Inductor names none."""
    name = "TRITON_CACHE_DIR"
    if name in os.environ:
        yield
        return
    os.environ[name] = ""
    try:
        yield
    finally:
        os.environ.pop(name, None)
