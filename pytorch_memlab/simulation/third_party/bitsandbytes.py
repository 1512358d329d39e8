"""bitsandbytes on simulated GPUs: its kernels' own Python, beside a library that does nothing.

What its ops take on CUDA, they take in Python, before they hand pointers to a library of kernels.
So that Python runs as on a GPU, with all that it chooses by the GPU's generation; where values
count, the kernels for the CPU compute them.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves, tree_map

from ..._common.patching.patches import Patches
from ...errors import UnsupportedCUDACallError
from ..machine import active
from ..machine.machine import Machine
from ..machine.tensor_values import uncommitted
from ..ops.core.library_ops import RUNNERS

_USERS_OF_THE_LIBRARY: Final = ("cextension", "functional", "backends.cuda.ops")


def install(machine: Machine, patches: Patches, _package: ModuleType) -> None:
    library = _Library(machine)
    # The package imports its kernels for CUDA where it finds a GPU.
    for name in _USERS_OF_THE_LIBRARY:
        patches.set(import_module(f"bitsandbytes.{name}"), "lib", library)
    kernels = import_module("bitsandbytes.backends.cuda.ops")
    raw_stream = vars(torch._C)["_cuda_getCurrentRawStream"]
    patches.set(kernels, "_get_raw_stream", raw_stream)
    functional = import_module("bitsandbytes.functional")
    patches.set(functional.CUBLAS_Context, "_instance", None)
    patches.set(functional, "name2qmap", {})  # tensors of the GPU that was used first
    for name, value in vars(kernels).copy().items():
        if isinstance(value, functools._lru_cache_wrapper):  # it remembers the GPU
            patches.set(kernels, name, value.__wrapped__)
        elif isinstance(value, dict):  # functions of the library
            patches.set(kernels, name, tree_map(lambda _function: library.cprefetch, value))


def _run(kernel: Callable[..., Any], compute: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run an op."""
    _thread.is_in_kernel = True
    try:
        result = kernel(*args, **kwargs)
    finally:
        _thread.is_in_kernel = False
    if active.machine is not None and active.values() is None:
        values = compute(*args, **kwargs)
        for own, computed in zip(tree_leaves(result), tree_leaves(values), strict=True):
            if isinstance(own, torch.Tensor):
                _fill(own, computed)
    return result


RUNNERS["bitsandbytes"] = _run


def _fill(result: torch.Tensor, values: torch.Tensor) -> None:
    if (result.shape, result.dtype) != (values.shape, values.dtype):
        raise UnsupportedCUDACallError(
            f"bitsandbytes returns {values.dtype} of {tuple(values.shape)} on the CPU, and "
            f"{result.dtype} of {tuple(result.shape)} on a GPU: these values cannot be computed "
            "without one; simulate(compute=False) (--dry-run) runs the program without them"
        )
    with torch._C._DisableTorchDispatch():
        result.copy_(values)


class _ThreadState(threading.local):
    is_in_kernel = False  # whose values are computed elsewhere


_thread = _ThreadState()


class _Library:
    """Stands for the library of CUDA kernels."""

    compiled_with_cuda = True

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._managed: list[torch.Tensor] = []

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        # The program may declare types of a function as its attributes.
        function = functools.partial(self._implementation(name))
        setattr(self, name, function)
        return function

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return getattr(self, name)  # type: ignore[no-any-return]

    def _implementation(self, name: str) -> Callable[..., Any]:
        if name == "cget_managed_ptr":
            return self._take_managed
        if name.startswith("cfill_"):
            return self._fill
        does_nothing = name in ("cprefetch", "get_context")

        def call(*_args: Any) -> int:
            if not (does_nothing or _thread.is_in_kernel or self._machine.values is not None):
                raise UnsupportedCUDACallError(
                    f"{name} of bitsandbytes' library of CUDA kernels cannot be computed without a "
                    "GPU; simulate(compute=False) (--dry-run) runs the program without it"
                )
            return 0

        return call

    def _take_managed(self, size: ctypes.c_size_t) -> int:
        """Managed memory, which CUDA moves between CPU and GPU: not PyTorch's allocator."""
        memory = uncommitted((max(size.value, 1),), (1,), torch.uint8)
        self._managed.append(memory)
        return memory.data_ptr()

    def _fill(self, pointer: Any, _other: Any, value: Any, count: Any) -> None:
        if self._machine.values is None:
            array = (type(value) * count.value).from_address(pointer.value)
            ctypes.memset(array, 0, ctypes.sizeof(array))
            if value.value:
                array[:] = [value.value] * count.value
