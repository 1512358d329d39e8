"""Runs one launch of a Triton kernel by Triton's own interpreter, though it was not asked for.

``TRITON_INTERPRET=1`` decides for a whole process, when a kernel is decorated. Here kernels are
decorated for a GPU, so every launch interprets copies of its functions, and puts back what the
interpreter replaces.
"""

from __future__ import annotations

import inspect
import math
import threading
import types
from collections.abc import Callable, Collection
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ..._common.patching.patches import Patches
from ...errors import UnsupportedCUDACallError

_SAME_IN_NUMPY = frozenset(
    {"cbrt", "ceil", "copysign", "cos", "cosh", "exp", "exp2", "expm1", "fabs", "floor", "fmax"}
    | {"fmin", "fmod", "hypot", "log", "log10", "log1p", "log2", "rint", "sin", "sinh", "sqrt"}
    | {"tan", "tanh", "trunc"}
)
"""Functions of libdevice, by their names without ``__nv_``, ``fast_`` and the ending of single
precision, that NumPy has under the same name."""

_IN_NUMPY: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in _SAME_IN_NUMPY},
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "exp10": lambda values: np.power(10, values),
    "pow": np.power,
    "rsqrt": lambda values: 1 / np.sqrt(values),
}

_OPERATIONS = (
    *("unary_op", "binary_op", "ternary_op", "create_fabs", "create_rsqrt", "create_erf"),
    *("create_fma", "create_clampf", "create_dot"),
)
"""Methods of the interpreter's builder that compute with numbers."""

_OF_THE_LAST = frozenset({"ternary_op", "create_fma", "create_dot"})
"""Those that return the type of their third operand; the others return that of their first."""

_one_at_a_time = threading.RLock()  # the interpreter replaces names of modules
_LIBDEVICE = "triton.language.extra.libdevice"
_CUDA_LIBDEVICE = "triton.language.extra.cuda.libdevice"


def compute(kernel: Any, arguments: dict[str, Any], blocks: tuple[int, ...]) -> None:
    if getattr(kernel, "is_gluon", bool)():
        raise _cannot(kernel, "it is written in Gluon, which Triton's interpreter does not run")
    interpreter = import_module("triton.runtime.interpreter")
    failures = (import_module("triton.runtime.errors").InterpreterError, NotImplementedError)
    with _one_at_a_time, _Interpretation(interpreter) as interpretation:
        function = interpretation.function(kernel.fn)
        executor = interpreter.GridExecutor(function, list(arguments), tuple(blocks))
        executor._init_args_hst = lambda args, kwargs: (list(args), kwargs)
        executor._restore_args_dev = lambda *_arguments: None
        try:
            with np.errstate(all="ignore"):
                executor(**interpretation.numbers(arguments, executor.constexprs))
        except failures as error:
            raise _cannot(kernel, f"Triton's interpreter ended with {error}") from error


def _cannot(kernel: Any, reason: str) -> UnsupportedCUDACallError:
    return UnsupportedCUDACallError(
        f"the Triton kernel {kernel.__name__} cannot be computed without a GPU: {reason}; "
        "simulate(compute=False) (--dry-run) runs the program without computing it"
    )


class _Interpretation:
    """The replacements that the interpreter needs during a launch."""

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._patches = Patches()
        self._functions: dict[Any, Callable[..., Any]] = {}
        self._language = import_module("triton.language")

    def __enter__(self) -> _Interpretation:
        jit = import_module("triton.runtime.jit")
        self._patches.around(jit.JITFunction, "__call__")(self._call)
        # Reading a kernel's source makes a kernel of the copy, and enters it here.
        registry = getattr(jit, "_triton_jit_function_registry", None)
        if registry is not None:
            self._patches.set(jit, "_triton_jit_function_registry", {**registry})
        # Setting the attribute would set the environment's variable too.
        self._knobs = vars(
            getattr(getattr(import_module("triton"), "knobs", self), "runtime", self)
        )
        self._knobs["interpret"] = True
        builder = self._interpreter.interpreter_builder
        extern = partial(_extern_elementwise, self._interpreter.TensorHandle)
        self._patches.set(builder, "create_extern_elementwise", extern)
        _install_bfloat16(self._interpreter, self._patches)
        language = self._language
        everything = types.SimpleNamespace(__globals__={"tl": language, "core": language.core})
        self._scope = self._interpreter._patch_lang(everything)
        return self

    def _call(self, _compiled: Any, kernel: Any, *args: Any, **kwargs: Any) -> Any:
        return self.function(kernel.fn)(*args, **kwargs)

    def __exit__(self, *exc: object) -> None:
        self._scope.restore()
        del self._knobs["interpret"]
        self._patches.undo()

    def function(self, original: Any) -> Callable[..., Any]:
        """A function that the interpreter can run, of a kernel's or of one that a kernel calls."""
        interpreted = self._functions.get(original)
        if interpreted is not None:
            return interpreted
        copy = types.FunctionType(
            original.__code__, self._globals(original), original.__name__, original.__defaults__,
            original.__closure__,
        )  # fmt: skip
        for name in ("__kwdefaults__", "__annotations__", "__module__", "__qualname__"):
            setattr(copy, name, getattr(original, name))
        rewritten: Callable[..., Any] = self._interpreter.FunctionRewriter(copy).rewrite_ast()
        self._functions[original] = rewritten
        return rewritten

    def numbers(self, arguments: dict[str, Any], constants: Collection[str]) -> dict[str, Any]:
        """Arguments with floats of Triton's in place of Python's, as a launch makes them."""
        handle, language = self._interpreter.TensorHandle, self._language

        def number(value: float) -> Any:
            single = handle(np.array([value], dtype=np.float32), language.float32)
            return language.tensor(single, language.float32)

        return {
            name: number(value) if type(value) is float and name not in constants else value
            for name, value in arguments.items()
        }

    def _globals(self, function: Any) -> dict[str, Any]:
        """Globals of a function, and what it closes over, which the rewriting forgets."""
        names = {**function.__globals__, **inspect.getclosurevars(function).nonlocals}
        return {name: self._interpretable(value) for name, value in names.items()}

    def _interpretable(self, value: Any) -> Any:
        """Replacement of a value that only the compiler understands."""
        if isinstance(value, types.ModuleType):
            is_libdevice = value.__name__ in (_LIBDEVICE, _CUDA_LIBDEVICE)
            return _Libdevice(self._builtin) if is_libdevice else value
        if getattr(value, "__module__", None) == _LIBDEVICE:
            value = getattr(import_module(_CUDA_LIBDEVICE), value.__name__, value)
        if isinstance(value, types.FunctionType) and self._language.core.is_builtin(value):
            return self._builtin(value)
        return value

    def _builtin(self, function: Any) -> Callable[..., Any]:
        semantic = self._interpreter.interpreter_semantic

        def builtin(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **{**kwargs, "_semantic": semantic})

        return builtin


def _extern_elementwise(
    handle: Any, library: str, path: str, symbol: str, values: list[Any], result: Any, is_pure: bool
) -> Any:
    """Run a function of libdevice, which Triton's interpreter does not have, by NumPy."""
    name = symbol.removeprefix("__nv_").removeprefix("fast_")
    function = _IN_NUMPY.get(name) or _IN_NUMPY.get(name.removesuffix("f"))
    if function is None:
        raise UnsupportedCUDACallError(
            f"{symbol} of libdevice has no stand-in for Triton's interpreter"
        )
    arrays = [value.data for value in values]
    # All of these return what they take.
    return handle(np.asarray(function(*arrays)).astype(arrays[0].dtype), values[0].dtype)


class _Libdevice:
    """Stands for the module of libdevice's functions."""

    def __init__(self, builtin: Callable[[Any], Callable[..., Any]]) -> None:
        self._builtin = builtin
        self._module = import_module(_CUDA_LIBDEVICE)

    def __getattr__(self, name: str) -> Any:
        return self._builtin(getattr(self._module, name))


def _install_bfloat16(interpreter: Any, patches: Patches) -> None:
    """Let the interpreter compute with bfloat16, which it has as 16-bit integers and adds those."""
    # Every operation widens its operands to float32 and rounds its result, as the GPU does.
    language = import_module("triton.language")
    numbers = _Numbers(interpreter.TensorHandle, language)
    builder = interpreter.interpreter_builder
    for name in _OPERATIONS:
        if hasattr(builder, name):
            decides = 2 if name in _OF_THE_LAST else 0
            patches.around(builder, name)(partial(numbers.operate, decides))
    patches.around(builder, "cast_impl")(numbers.cast)
    patches.around(builder, "create_atomic_rmw")(numbers.update)
    for kind in (interpreter.ReduceOps, interpreter.ScanOps):
        patches.around(kind, "apply_impl")(numbers.reduce)


def widened(bits: Any) -> Any:
    """float32 values of bfloat16's bits."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def rounded(values: Any) -> Any:
    """Bits of the bfloat16 values next to float32 values, to the even one between two.

    >>> widened(rounded(np.float32([1.0, 1.00390625, 1.01171875]))).tolist()
    [1.0, 1.0, 1.015625]
    """
    values = np.ascontiguousarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, nearest).astype(np.uint16)


class _Numbers:
    """Replacements of the interpreter's functions."""

    def __init__(self, handle: Any, language: Any) -> None:
        self._handle = handle
        self._language = language
        self._narrow = language.bfloat16
        self._wide = language.float32

    def _is_narrow(self, value: Any) -> bool:
        return isinstance(value, self._handle) and value.dtype == self._narrow

    def _widen(self, value: Any) -> Any:
        if self._is_narrow(value):
            return self._handle(widened(value.data), self._wide)
        return value

    def _round(self, value: Any) -> Any:
        is_wide = value.data.dtype == np.float32
        return self._handle(rounded(value.data) if is_wide else value.data, self._narrow)

    def operate(self, decides: int, original: Callable[..., Any], *args: Any) -> Any:
        """Compute with operands, of which one decides the type of the result."""
        if not any(map(self._is_narrow, args)):
            return original(*args)
        result = original(*map(self._widen, args))
        return self._round(result) if self._is_narrow(args[decides]) else result

    def cast(self, original: Callable[..., Any], source: Any, target: Any) -> Any:
        """Convert one type to another."""
        if source.dtype.scalar == target.scalar:
            return original(source, target)
        if target.scalar == self._narrow:
            return self._round(original(self._widen(source), self._wide))
        return original(self._widen(source), target)

    def update(
        self, original: Callable[..., Any], operation: Any, pointer: Any, value: Any, *args: Any
    ) -> Any:
        """Read, compute and write at once, in memory."""
        if self._is_narrow(value):
            raise NotImplementedError("atomic operations on bfloat16")
        return original(operation, pointer, value, *args)

    def reduce(self, original: Callable[..., Any], reduction: Any, inputs: tuple[Any, ...]) -> Any:
        """Reduce or scan tensors."""
        if not any(operand.dtype == self._narrow for operand in inputs):
            return original(reduction, inputs)
        if len(inputs) > 1:
            raise NotImplementedError("reductions of bfloat16 together with other values")
        result = original(reduction, (self._converted(inputs[0], self._wide),))
        [result] = result if isinstance(result, (list, tuple)) else [result]
        return [self._converted(result, self._narrow)]

    def _converted(self, tensor: Any, dtype: Any) -> Any:
        """A tensor of Triton's language, of float32 or of bfloat16."""
        convert = widened if dtype == self._wide else rounded
        shape = [int(size) for size in tensor.shape]
        kind = self._language.block_type(dtype, shape) if shape else dtype
        return self._language.tensor(self._handle(convert(tensor.handle.data), dtype), kind)
