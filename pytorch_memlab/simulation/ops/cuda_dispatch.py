"""Composite ops that choose by the device: for tensors of simulated GPUs, as CUDA chooses."""

from __future__ import annotations

import functools
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import torch

from ..machine import active
from . import direct_calls
from .attention import native as native_attention
from .attention import scaled_dot_product as attention
from .losses import ctc
from .norms import batch_norm, rms_norm
from .random import dropout
from .reductions import softmax
from .rnn import cells as rnn_cells
from .rnn import rnn
from .sparse import conversions as sparse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ..machine.machine import Machine
    from ..machine.simulated_gpu import SimulatedGPU

    Choice = Callable[..., Any]

CHOICES: Final[Mapping[str, Choice]] = {
    **attention.CHOICES,
    **batch_norm.CHOICES,
    **ctc.CHOICES,
    **dropout.CHOICES,
    **rnn.CHOICES,
    **rnn_cells.CHOICES,
    **softmax.CHOICES,
}
"""By the op's name, with the overload's behind a dot where it has one.

Each is called as the op is, with the simulated GPU of its first tensor before the op's arguments,
above autograd and within every mode; ``NotImplemented`` leaves the op to PyTorch.
"""

COMPOUND: Final[Mapping[str, Choice | None]] = {
    **native_attention.COMPOUND,
    **direct_calls.COMPOUND,
    **sparse.COMPOUND,
}
"""Ops with kernels of their own that call other ops, by their names; called below autograd.

Each is called as those of ``CHOICES`` are. Where it is None or returns ``NotImplemented``, the
host's kernel calls the ops that CUDA's does.
"""

_HOST_KEYS: Final = {
    torch.strided: torch._C.DispatchKey.CPU,
    torch.sparse_coo: torch._C.DispatchKey.SparseCPU,
}
_COMPRESSED: Final = torch._C.DispatchKey.SparseCsrCPU
_COMPOSITE: Final = torch._C.DispatchKey.CompositeImplicitAutograd
_KEYS: Final = ("CPU", "AutogradCPU")
_libraries: list[torch.library.Library] = []


@contextmanager
def installed() -> Iterator[None]:
    """Make CUDA's choices while this lasts; a simulation inside another finds them made."""
    if _libraries:
        yield
        return
    library = torch.library.Library("aten", "IMPL")
    _libraries.append(library)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name in CHOICES:
                op = _overload(name)
                for key in _KEYS:
                    library.impl(op, choice_of(op), key)
            for name, kernel in rms_norm.KERNELS.items():
                library.impl(_overload(name), kernel, "CPU")
        yield
    finally:
        _libraries.pop()._destroy()


@functools.cache
def choice_of(op: Any) -> Choice | None:
    """What runs in place of an op that calls other ops.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        a function of the op's arguments that makes CUDA's choice for tensors of simulated GPUs,
        and PyTorch's for others; None if the op is a kernel.
    """
    schema = op._schema
    name = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    choice = CHOICES.get(name)
    if choice is not None:
        return functools.partial(_choose, choice, functools.partial(op._op_dk, _COMPOSITE))
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if name in COMPOUND:
        # PyTorch ends the process when a kernel is called that is not there.
        kernel = _run_on_host if has_kernel(op.name(), "CPU") else _refuse_on_cpu
        return functools.partial(_choose, COMPOUND[name], functools.partial(kernel, op))
    if has_kernel(op.name(), _COMPOSITE) and not has_kernel(op.name(), "CPU"):
        return functools.partial(op._op_dk, _COMPOSITE)
    return None


def _choose(choice: Choice | None, composite: Choice, *args: Any, **kwargs: Any) -> Any:
    gpu = _gpu_of(active.machine, args)
    if gpu is not None and choice is not None:
        result = choice(gpu, *args, **kwargs)
        if result is not NotImplemented:
            return result
    return composite(*args, **kwargs)


def _run_on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the host's kernel of an op, as the layout of its first tensor asks for it."""
    return op._op_dk(_HOST_KEYS.get(args[0].layout, _COMPRESSED), *args, **kwargs)


def _refuse_on_cpu(*_args: Any, **_kwargs: Any) -> Any:
    raise NotImplementedError("this op has no kernel for tensors of the CPU: move them to the GPU")


def _gpu_of(machine: Machine | None, args: tuple[Any, ...]) -> SimulatedGPU | None:
    """The simulated GPU of a call's first tensor, None if that is one of the host."""
    first = next((value for value in args if isinstance(value, torch.Tensor)), None)
    if machine is None or first is None:
        return None
    place = machine.place_of(first)
    return machine.gpus[place] if place >= 0 else None


def _overload(name: str) -> Any:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")
