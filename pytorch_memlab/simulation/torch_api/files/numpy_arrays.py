"""NumPy arrays of tensors without values: they say so, also when they are copied or written."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from ...._common.frames.traceback_frames import passes_on
from ...._common.patching.patches import Patches
from ...dry_run.files.marks import MARK, WithoutValues, is_marked
from ...dry_run.files.opening import leave_room, watched_file
from ...dry_run.files.overlay import Overlay
from ...machine.tensor_values import TensorValues
from ..compilers import make_known


class BytesWithoutValues(WithoutValues, bytes):
    """The bytes of an array without values."""


class ArrayWithoutValues(WithoutValues, np.ndarray[Any, Any]):
    """An array of a tensor without values, or one that was computed from such an array."""

    __array_priority__ = 1.0

    def __array_wrap__(self, array: Any, *_context: Any) -> Any:
        """A scalar where plain arrays give one."""
        return array[()] if array.shape == () else array.view(type(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the shape alone."""
        return _without_values, (self.shape, self.dtype.str, MARK)

    def tofile(self, fid: Any, sep: str = "", format: str = "%s") -> None:
        """Write to a file: as for any array, but the file is kept from being written."""
        if isinstance(fid, (str, bytes, os.PathLike)):
            with open(fid, "wb") as file:
                self.tofile(file, sep, format)
            return
        leave_room(fid, self.nbytes)

    def tobytes(self, order: Any = "C") -> bytes:
        """The bytes, which say that they have no values."""
        return BytesWithoutValues(super().tobytes(order))


def _without_values(shape: tuple[int, ...], dtype: str, _mark: bytes) -> Any:
    """An array without values, from a pickle."""
    return np.zeros(shape, dtype).view(ArrayWithoutValues)


def lacks_values(values: TensorValues, value: Any) -> bool:
    """True if a tensor or an array has no values."""
    if isinstance(value, torch.Tensor):
        return values.lacks_values(value)
    # Other objects have a base too: that of a dtype is the dtype.
    base = value.base if isinstance(value, np.ndarray) else None
    return is_marked(value) or (base is not None and lacks_values(values, base))


def install(values: TensorValues, kept: Overlay, patches: Patches) -> None:
    lacks = partial(lacks_values, values)

    @patches.around(np, "array")
    def array(make: Callable[..., Any], object: Any, *args: Any, **kwargs: Any) -> Any:
        parts = object if isinstance(object, (list, tuple)) else (object,)
        made = make(object, *args, **kwargs)
        return made.view(ArrayWithoutValues) if any(map(lacks, parts)) else made

    @patches.around(np.lib.format, "write_array")
    def write(write: Callable[..., Any], fp: Any, array: Any, *args: Any, **kwargs: Any) -> None:
        if lacks(array):
            array = np.asanyarray(array).view(ArrayWithoutValues)
            watched = watched_file(fp)
            if watched is not None:
                watched.divert()
        write(fp, array, *args, **kwargs)

    @patches.around(np, "savetxt")
    def save(savetxt: Callable[..., Any], fname: Any, X: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N803
        if not lacks(X):
            savetxt(fname, X, *args, **kwargs)
        elif isinstance(fname, (str, bytes, os.PathLike)):
            with kept.written(fname, lacks_values=True) as target:
                savetxt(target, X, *args, **kwargs)
        else:
            name = getattr(fname, "name", "<file>")
            kept.name(os.path.realpath(name), name)

    @patches.around(np, "load", "fromfile", "loadtxt")
    def read(read: Callable[..., Any], file: Any, *args: Any, **kwargs: Any) -> Any:
        path = kept.to_read(file)
        made = read(path, *args, **kwargs)
        if path is file or not isinstance(made, np.ndarray) or not kept.is_marked_file(path):
            return made
        return made.view(ArrayWithoutValues)

    _forget_values_of_arrays(values, patches)


def _forget_values_of_arrays(values: TensorValues, patches: Patches) -> None:
    """Let tensors that are made of arrays without values have none."""
    for name in ("from_numpy", "as_tensor", "tensor"):
        original = getattr(torch, name)

        @patches.around(torch, name)
        @passes_on
        def tensor(make: Callable[..., Any], data: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            made: torch.Tensor = make(data, *args, **kwargs)
            if isinstance(data, np.ndarray) and lacks_values(values, data):
                values.forget_values(made)
            return made

        make_known(original, getattr(torch, name))
