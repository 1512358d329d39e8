"""Composite ops that choose by the device: for tensors of simulated GPUs, as CUDA chooses."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import torch

from ...machine import active
from ...machine.op_arguments import tensors_in
from ...machine.refused_calls import mixed_devices
from ...machine.simulated_gpu import SimulatedGPU
from .registry import as_on_cpu, definition_of, definitions

_CPU_KEYS: Final = {
    torch.strided: torch._C.DispatchKey.CPU,
    torch.sparse_coo: torch._C.DispatchKey.SparseCPU,
}
_COMPRESSED: Final = torch._C.DispatchKey.SparseCsrCPU
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd
_EXPLICIT: Final = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
)
_KEYS: Final = ("CPU", "AutogradCPU")
_KEYS_OF_NESTED: Final = ("NestedTensorCPU", "AutogradNestedTensor")
_libraries: list[torch.library.Library] = []


@contextmanager
def installed() -> Iterator[None]:
    """Register the dispatch of CUDA; a simulation inside another finds it registered."""
    if _libraries:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, kernel, keys in _kernels():
                for key in keys:
                    library.impl(name, kernel, key)
        yield
    finally:
        _libraries.pop()._destroy()


@functools.cache
def _kernels() -> list[tuple[str, Any, tuple[str, ...]]]:
    """The kernels of all simulations, with the dispatch keys that they are registered for."""
    kernels: list[tuple[str, Any, tuple[str, ...]]] = []
    for name, definition in definitions().items():
        if definition.cuda_dispatch is not None:
            keys = (*_KEYS, *_KEYS_OF_NESTED) if definition.takes_nested else _KEYS
            kernels.append((name, cuda_dispatch_of(overload_named(name)), keys))
        elif definition.cpu_kernel is not None:
            kernels.append((name, definition.cpu_kernel, ("CPU",)))
    return kernels


@functools.cache
def cuda_dispatch_of(op: Any) -> Callable[..., Any] | None:
    """The function that runs in place of an op that calls other ops."""
    definition = definition_of(op)
    if definition is not None and definition.cuda_dispatch is not None:
        composite = functools.partial(op._op_dk, _COMPOSITE)
        return functools.partial(_dispatch, definition.cuda_dispatch, composite)
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if definition is not None and definition.composite is not None:
        if definition.memory is not None:
            return functools.partial(_dispatch, definition.composite, as_on_cpu)
        # PyTorch ends the process when a kernel is called that is not there.
        kernel: Callable[..., Any] = functools.partial(_run_on_cpu, op)
        if not has_kernel(op.name(), "CPU"):
            keys = (key for key in _EXPLICIT if has_kernel(op.name(), key))
            kernel = next((functools.partial(op._op_dk, key) for key in keys), _refuse_on_cpu)
        if kernel is _refuse_on_cpu and definition.composite is as_on_cpu:
            return None
        return functools.partial(_dispatch, definition.composite, kernel)
    if has_kernel(op.name(), _COMPOSITE) and not has_kernel(op.name(), "CPU"):
        composite = functools.partial(op._op_dk, _COMPOSITE)
        of_nested = has_kernel(op.name(), "NestedTensorCPU")
        return functools.partial(_unless_nested, composite) if of_nested else composite
    return None


def _unless_nested(composite: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Take an op apart but for nested tensors, of which it has a kernel."""
    values = (*args, *kwargs.values())
    if any(isinstance(value, torch.Tensor) and value.is_nested for value in values):
        return NotImplemented
    return composite(*args, **kwargs)


def _dispatch(
    on_cuda: Callable[..., Any], otherwise: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    alone = (value for value in args if isinstance(value, torch.Tensor))
    first = next(chain(alone, tensors_in(args, {})), None)
    gpu = None if first is None else active.gpu_of(first)
    if gpu is not None:
        result = on_cuda(gpu, *args, **kwargs)
        if result is not NotImplemented:
            return result
    return otherwise(*args, **kwargs)


def _run_on_cpu(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the CPU's kernel of an op for the layout of its first tensor."""
    return op._op_dk(_CPU_KEYS.get(args[0].layout, _COMPRESSED), *args, **kwargs)


def _refuse_on_cpu(*_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError("this op has no kernel for tensors of the CPU: move them to the GPU")


def overload_named(name: str) -> Any:
    """The op of ATen with a name such as ``aten::max.dim`` or ``max.dim``."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def refuse_cpu_tensors(op: Any, gpu: SimulatedGPU, *tensors: torch.Tensor | None) -> None:
    """Fail as CUDA's kernels do where one of the tensors is on the CPU and is no number."""
    with_dims = (tensor for tensor in tensors if tensor is not None and tensor.dim())
    if None in map(active.gpu_of, with_dims):
        raise mixed_devices(op, gpu, "cpu")
