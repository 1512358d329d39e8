"""Arithmetic of bfloat16 in Triton's interpreter, which has it as 16-bit integers and adds those.

Every operation widens its operands to float32 and rounds its result, as the GPU does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from ..._common.patches import Patches

_OPERATIONS = (
    *("unary_op", "binary_op", "ternary_op", "create_fabs", "create_rsqrt", "create_erf"),
    *("create_fma", "create_clampf", "create_dot"),
)
"""Methods of the interpreter's builder that compute with numbers."""

_OF_THE_LAST = frozenset({"ternary_op", "create_fma", "create_dot"})
"""Those that return the type of their third operand; the others return that of their first."""


def install(interpreter: Any, patches: Patches) -> None:
    """Let the interpreter compute with bfloat16, until undone."""
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
        if not any(one.dtype == self._narrow for one in inputs):
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
