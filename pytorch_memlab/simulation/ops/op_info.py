"""What the placement of an op's results depends on, read off the op's schema once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..dispatch.gradient_accumulation import IN_PLACE
from .cuda_dispatch import choice_of
from .cuda_only import compute_of, host_results_of
from .library_ops import host_kernel_of, is_of_library, python_kernel_of, runs_on_host
from .no_workspace import takes_nothing
from .random.random_draws import draws
from .registry import entry_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .memory_model import Entry

_HOST_ARGUMENTS_ALLOWED = frozenset(
    {
        "aten::copy_",
        "aten::_copy_from",
        "aten::_copy_from_and_resize",
        "aten::_to_copy",
        "aten::to",
        "aten::index",
        "aten::_unsafe_index",
        "aten::index_put",
        "aten::index_put_",
        "aten::_index_put_impl_",
        "aten::_unsafe_index_put",
        "aten::_pack_padded_sequence",
        "aten::_pack_padded_sequence_backward",
        "aten::_ctc_loss",
        "aten::_ctc_loss_backward",
        "aten::_cudnn_ctc_loss",
        "aten::tensor_split",
        "aten::set_",
        "aten::is_same_size",
        "aten::is_set_to",
        "aten::_has_same_storage_numel",
        "aten::resize_as_",
        "aten::_fused_adam_",
        "aten::_fused_adamw_",
    }
)
"""Ops whose CUDA kernels take some arguments from the host."""

_HOST_RESULTS = {"aten::_pack_padded_sequence": frozenset({1})}
"""Results that a CUDA kernel makes on the host, by their position."""

_LEAVING = frozenset({"aten::_to_copy"})
"""Ops that take memory of a GPU which their results leave."""

_RESIZING = frozenset({"aten::resize_", "aten::resize_as_", "aten::set_"})


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of an op before it runs.

    Args:
        makes_tensors: some result may own new memory.
        may_resize: it may change the size of a storage that exists.
        mutates_first: it changes its first argument, of which a sparse one gets new parts.
        mixes_devices: it takes arguments of the host beside those of a GPU.
        may_leave: its results may go to the host, and its kernels take memory of its input's GPU.
        is_foreach: the n-th result belongs where the n-th tensor of the first list is.
        host_results: positions of results that stay on the host.
        kernel: what its kernels take besides, None if nothing is known of it.
        is_modelled: what its kernels take is known, be it nothing.
        may_be_in_place: a backward pass on a GPU may run it in place.
        draws: it draws random numbers.
        device_position: where among the positional arguments a device may be; None: nowhere.
        composite: calls the ops that it is made of; None if it is none. Autograd has taken
            composites apart before they come here, except in inference mode, and those that
            have a kernel of their own.
        compute: computes on the host what CUDA's kernel returns; None: the op itself does.
        python_kernel: what Python registered to run on CUDA, for an op of another library.
        runs_on_host: the host has a kernel of it.
    """

    makes_tensors: bool
    may_resize: bool
    mutates_first: bool
    mixes_devices: bool
    may_leave: bool
    is_foreach: bool
    host_results: frozenset[int]
    kernel: Entry | None
    is_modelled: bool
    may_be_in_place: bool
    draws: bool
    device_position: int | None
    composite: Callable[..., Any] | None
    compute: Callable[..., Any] | None
    python_kernel: Callable[..., Any] | None = None
    runs_on_host: bool = True


_known: dict[Any, Traits] = {}


def traits_of(op: Any) -> Traits:
    """Traits of an op.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        its traits.
    """
    traits = _known.get(op)
    if traits is None:
        traits = _known[op] = _read(op)
    return traits


def _read(op: Any) -> Traits:
    schema = op._schema
    name: str = schema.name
    kernel = entry_of(op)
    writes_out = any(argument.is_out for argument in schema.arguments)
    makes_tensors = any(
        "Tensor" in str(result.type) and result.alias_info is None for result in schema.returns
    )
    is_library = is_of_library(op)
    python_kernel = None if kernel is not None else python_kernel_of(op)
    if is_library:
        takes_nothing_more = python_kernel is not None or op.is_view
    else:
        takes_nothing_more = takes_nothing(op) or not (makes_tensors or writes_out)
    return Traits(
        makes_tensors=makes_tensors,
        may_resize=writes_out or name in _RESIZING,
        mutates_first=_mutates_first(schema),
        mixes_devices=name in _HOST_ARGUMENTS_ALLOWED or is_library,
        may_leave=name in _LEAVING,
        is_foreach=name.startswith("aten::_foreach_"),
        host_results=_HOST_RESULTS.get(name, host_results_of(op)),
        kernel=kernel,
        is_modelled=kernel is not None or takes_nothing_more,
        may_be_in_place=op in IN_PLACE,
        draws=draws(op),
        device_position=_device_position(schema),
        composite=choice_of(op),
        compute=host_kernel_of(op) or compute_of(op),
        python_kernel=python_kernel,
        runs_on_host=not is_library or runs_on_host(op),
    )


def _mutates_first(schema: Any) -> bool:
    first = schema.arguments[0].alias_info if schema.arguments else None
    return first is not None and first.is_write


def _device_position(schema: Any) -> int | None:
    for position, argument in enumerate(schema.arguments):
        if "Device" in str(argument.type) and not argument.kwarg_only:
            return position
    return None
