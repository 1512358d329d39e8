"""Ops of other libraries and of programs: ``torch.library``, and extensions in C++."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

from ...._common.torch.storages import host_address
from ....errors import UnsupportedCUDACallError
from ...machine.refused_calls import unsupported

_ON_CUDA: Final = ("CUDA", "CompositeExplicitAutograd")
"""Dispatch keys of kernels that run on CUDA's tensors below autograd."""

_OF_PYTORCH: Final = frozenset(
    {"_c10d_functional", "_c10d_functional_autograd", "_dtensor", "_inductor_test", "_native"}
    | {"_quantized", "_test", "aten", "c10d", "c10d_functional", "debug_mode_ops", "debugprims"}
    | {"export", "flex_lib", "fsdp", "inductor", "inductor_prims", "mkl", "mkldnn"}
    | {"mkldnn_prepacked", "onednn", "onnx", "onnx_symbolic", "prim", "prims", "profiler"}
    | {"quantization", "quantized", "rngprims", "sparse", "static_runtime", "streams", "symm_mem"}
)
"""Namespaces of PyTorch's own ops."""

_EXTENSIONS: Final = frozenset({"flash_attn"})
"""Namespaces whose kernels Python registers, and compiled code takes memory for."""

RUNNERS: Final[dict[str, Callable[..., Any]]] = {}
"""By a library's namespace, a function that runs its kernels for CUDA: takes the kernel, the kernel
for the CPU and the arguments. ``third_party`` fills it."""


def is_of_library(op: Any) -> bool:
    """True if an op is none of PyTorch's own."""
    return op.namespace not in _OF_PYTORCH


def python_kernel_of(op: Any) -> Callable[..., Any] | None:
    """The Python kernel registered for an op on CUDA."""
    # All that it takes of PyTorch's memory it takes by ops, also where it calls compiled code, and
    # those are counted one by one.
    if op.namespace == "aten" or op.namespace in _EXTENSIONS:
        return None
    key = next((key for key in _ON_CUDA if _is_registered(op, key)), None)
    if key is None:
        return None
    kernel = functools.partial(op._op_dk, getattr(torch._C.DispatchKey, key))
    run = RUNNERS.get(op.namespace) if key == "CUDA" else None
    return kernel if run is None else functools.partial(run, kernel, functools.partial(on_cpu, op))


def cpu_kernel_of(op: Any) -> Callable[..., Any] | None:
    """The Python kernel registered for an op on the CPU, for tensors of simulated GPUs."""
    is_python = is_of_library(op) and _is_registered(op, "CPU")
    return functools.partial(on_cpu, op) if is_python else None


def on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an op by its kernel for the CPU, to which its tensors are tensors of the CPU."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return op(*tree_map(_unlabelled, args), **tree_map(_unlabelled, kwargs))


def _unlabelled(value: Any) -> Any:
    """A tensor's memory under another storage, of which no simulated GPU knows."""
    if not isinstance(value, torch.Tensor):
        return torch.device("cpu") if isinstance(value, torch.device) else value
    storage = value.untyped_storage()
    twin = torch._C._construct_storage_from_data_pointer(
        host_address(storage), torch.device("cpu"), storage.nbytes()
    )
    empty = torch.empty(0, dtype=value.dtype)
    return empty.set_(twin, value.storage_offset(), value.size(), value.stride())


def _is_registered(op: Any, key: str) -> bool:
    """True if Python registered a kernel of an op under a dispatch key."""
    namespace, _, name = op.name().partition("::")
    return f"{namespace}/{name}/{key}" in torch.library._impls


def has_cpu_kernel(op: Any) -> bool:
    """True if an op has a kernel for the CPU."""
    has_kernel: bool = torch._C._dispatch_has_computed_kernel_for_dispatch_key(op.name(), "CPU")
    return has_kernel


def refuse_to_compute(op: Any) -> UnsupportedCUDACallError:
    """The error of an op whose results only CUDA can compute."""
    return UnsupportedCUDACallError(
        f"{op.name()} has a kernel for CUDA only, so that its values cannot be computed without a "
        "GPU; simulate(compute=False) (--dry-run) runs it for its shapes, by its fake kernel"
    )


def refuse_its_shape(op: Any) -> UnsupportedCUDACallError:
    """The error of an op of which nothing tells the results' shapes."""
    name = op._schema.name
    if has_cpu_kernel(op):
        return UnsupportedCUDACallError(
            f"{name} has no shape without values: simulate(compute=True) runs it"
        )
    if not is_of_library(op):
        return unsupported(name)
    return UnsupportedCUDACallError(
        f"{name} has neither a kernel for the CPU nor a fake kernel, which tells its results' "
        f"shapes: give it one with torch.library.register_fake({name!r})"
    )
