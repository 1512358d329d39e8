"""The one cached record per op: what its schema, PyTorch's registrations and its definition say."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch

from .cuda_dispatch import cuda_dispatch_of
from .library_ops import cpu_kernel_of, has_cpu_kernel, is_of_library, python_kernel_of
from .random_draws import draws
from .registry import MASKS, OpDefinition, Provenance, definition_of, is_out, overloads_of

_UNREGISTERED: Final = OpDefinition(name="")
_SIZES: Final = frozenset({"size", "output_size", "repeats", "pad", "scale_factors"})


class OpInfo(OpDefinition):
    """The facts of an op that are known before it runs, those of its definition among them."""

    # ``name`` is without that of the overload. ``composite`` is None also for an op with a kernel:
    # autograd has taken other composites apart, except in inference mode.

    def __init__(
        self,
        op: Any,  # a ``torch._ops.OpOverload``
    ) -> None:
        definition = definition_of(op) or _UNREGISTERED
        super().__init__(
            **{field.name: getattr(definition, field.name) for field in fields(definition)}
        )
        schema = op._schema
        arguments = list(enumerate(schema.arguments))
        tensors = [result for result in schema.returns if "Tensor" in str(result.type)]
        aliases = [result.alias_info for result in tensors]
        is_library = is_of_library(op)
        is_view = bool(tensors) and all(info is not None and not info.is_write for info in aliases)

        self.op = op
        self.name = schema.name
        self.touches_no_element |= is_view or torch.Tag.inplace_view in op.tags
        self.takes_cpu_tensors |= is_library
        self.takes_cpu_numbers = not is_library and not _compares_all_devices(op)
        self.composite = cuda_dispatch_of(op)
        self.reference = cpu_kernel_of(op) or definition.reference

        # Position and name of each argument that it writes to; for each output the position among
        # these if it is that argument, None if the output is new.
        self.written, self.returned = _written(schema, definition.writes)
        self.only_writes = None not in self.returned and bool(self.written)  # no output is new
        self.mutates_first = any(position == 0 for position, _ in self.written)
        self.writes_out = any(argument.is_out for _, argument in arguments)
        self.may_resize = self.writes_out or definition.resizes

        self.returns_tensors = bool(tensors)  # or lists of tensors
        self.makes_tensors = None in aliases  # some may own new memory
        self.is_factory = bool(tensors) and not any("Tensor" in str(a.type) for _, a in arguments)
        self.is_pointwise = torch.Tag.pointwise in op.tags
        self.is_foreach = schema.name.startswith("aten::_foreach_")
        self.may_outgrow = (  # its arguments
            self.makes_tensors
            and not (self.written or self.is_foreach)
            and definition.data_dependence is None
        )
        self.takes_masks = (
            definition.data_dependence is MASKS
        )  # among its second argument's indices
        # Positions of sizes, or factors of sizes, of the output, and of a positional device.
        self.sizes = tuple(position for position, a in arguments if a.name in _SIZES)
        devices = (place for place, a in arguments if "Device" in str(a.type) and not a.kwarg_only)
        self.device_position = next(devices, None)
        self.draws = draws(op)
        self.is_plain = (  # it runs as a whole, whatever its arguments are
            self.composite is None
            and definition.composite_of_sparse is None
            and self.device_position is None
            and not (self.is_foreach or self.may_resize)
        )
        self.is_mark = op.namespace == "profiler"  # of a profile, as each step of an optimizer has

        is_modelled = definition.provenance is not None
        self.is_confirmed = definition.provenance is Provenance.RECORDING
        self.runs_on_cpu = not is_library or has_cpu_kernel(op)
        # Registered in Python to run on CUDA, for an op of another library.
        self.python_kernel = None if is_modelled else python_kernel_of(op)
        if is_library:
            takes_no_more = self.python_kernel is not None or op.is_view
        else:
            takes_no_more = _has_no_workspace(op) or not (self.makes_tensors or self.writes_out)
        self.is_modelled = is_modelled or takes_no_more
        self.is_view_of_one = (  # its first argument; every call of an op without any model
            is_view
            and self.is_plain
            and self.is_modelled
            and ["Tensor" in str(a.type) for _, a in arguments].count(True) == 1
            and str(arguments[0][1].type) == "Tensor"
            and self.memory is self.reference is self.python_kernel is None
            and not (self.draws or self.written or is_library)
            and not any(kind in self.name for kind in ("nested", "sparse"))
        )

    def argument(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The argument at a position of ``written``; None if it was not given."""
        place, name = self.written[position]
        return args[place] if place < len(args) else kwargs.get(name)

    def written_in(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
        """The tensors that a call writes to."""
        for position in range(len(self.written)):
            value = self.argument(position, args, kwargs)
            if isinstance(value, torch.Tensor):
                yield value
            elif isinstance(value, (list, tuple)):
                yield from (tensor for tensor in value if isinstance(tensor, torch.Tensor))

    def written_result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that only writes to its arguments."""
        results = tuple(
            self.argument(source, args, kwargs) for source in self.returned if source is not None
        )
        return results[0] if len(results) == 1 else results or None


records: Final[dict[int, OpInfo]] = {}
"""Those that were made, by the ids of their ops."""


def op_info(op: Any) -> OpInfo:
    """The record of an op, made once.

    >>> op_info(torch.ops.aten.t.default).touches_no_element
    True
    >>> op_info(torch.ops.aten.add_.Tensor).written
    ((0, 'self'),)
    """
    # By its id: the hash of an op is a function of Python. The record keeps the op alive.
    info = records.get(id(op))
    if info is None:
        info = records[id(op)] = OpInfo(op)
    return info


def _written(
    schema: Any, more: tuple[int, ...]
) -> tuple[tuple[tuple[int, str], ...], tuple[int | None, ...]]:
    """Arguments that an op writes to, and which of them each output is."""
    written: list[tuple[int, str]] = []
    marks: dict[str, int] = {}
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is not None and info.is_write:
            marks.update(dict.fromkeys(info.before_set, len(written)))
            written.append((position, argument.name))
    written.extend((position, schema.arguments[position].name) for position in more)
    infos = (result.alias_info for result in schema.returns)
    sources = (info.before_set if info is not None and info.is_write else () for info in infos)
    returned = (next((marks[name] for name in names if name in marks), None) for names in sources)
    return tuple(written), tuple(returned)


_COLLECTIVES: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of collectives: NCCL has buffers that serve all of them, counted for none."""


@functools.cache
def ops_without_workspace() -> frozenset[str]:
    """Names of ops, without ``aten::``, that allocate their outputs only."""
    return _listed_in("no_workspace.txt")


def _listed_in(file_name: str) -> frozenset[str]:
    lines = Path(__file__).with_name(file_name).read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


@functools.cache
def same_device_ops() -> frozenset[str]:
    """Names of ops, without ``aten::``, that take no number of the CPU beside a GPU's tensor."""
    return _listed_in("same_device.txt")


def _compares_all_devices(op: Any) -> bool:
    name = op._schema.name.removeprefix("aten::")
    return not same_device_ops().isdisjoint({name, f"{name}.{op._overloadname}"})


def _has_no_workspace(op: Any) -> bool:
    """True if the kernels of an op are known to allocate its outputs only."""
    if is_out(op):
        return any(
            _has_no_workspace(overload) for overload in overloads_of(op) if not is_out(overload)
        )
    name = op._schema.name.removeprefix("aten::")
    return (
        torch.Tag.pointwise in op.tags
        or name in ops_without_workspace()
        or name.startswith("_foreach_")
        or op.namespace in _COLLECTIVES
        or not any(result.alias_info is None for result in op._schema.returns)
    )
