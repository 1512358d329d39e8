"""libdevice's functions, which Triton's interpreter does not have, computed by NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...errors import UnsupportedCUDACallError


def _reciprocal_root(values: Any) -> Any:
    return 1 / np.sqrt(values)


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": np.arctan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "copysign": np.copysign,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": np.vectorize(math.erf, otypes=[float]),
    "erfc": np.vectorize(math.erfc, otypes=[float]),
    "exp": np.exp,
    "exp10": lambda values: np.power(10, values),
    "exp2": np.exp2,
    "expm1": np.expm1,
    "fabs": np.abs,
    "floor": np.floor,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "fmod": np.fmod,
    "hypot": np.hypot,
    "log": np.log,
    "log10": np.log10,
    "log1p": np.log1p,
    "log2": np.log2,
    "pow": np.power,
    "rint": np.rint,
    "rsqrt": _reciprocal_root,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
}
"""By their names without ``__nv_``, ``fast_`` and the ending of single precision."""


def extern_elementwise(handle: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs a library function in Triton's interpreter."""

    def create_extern_elementwise(
        library: str, path: str, symbol: str, values: list[Any], result: Any, is_pure: bool
    ) -> Any:
        name = symbol.removeprefix("__nv_").removeprefix("fast_")
        function = _FUNCTIONS.get(name) or _FUNCTIONS.get(name.removesuffix("f"))
        if function is None:
            raise UnsupportedCUDACallError(
                f"{symbol} of libdevice has no stand-in for Triton's interpreter"
            )
        arrays = [value.data for value in values]
        # All of these return what they take.
        return handle(np.asarray(function(*arrays)).astype(arrays[0].dtype), values[0].dtype)

    return create_extern_elementwise
