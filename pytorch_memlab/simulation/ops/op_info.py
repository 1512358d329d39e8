"""The one cached record per op: what its schema, PyTorch's registrations and its definition say."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import torch

from .cuda_dispatch import cuda_dispatch_of
from .library_ops import cpu_kernel_of, has_cpu_kernel, is_of_library, python_kernel_of
from .random.random_draws import draws
from .registry import OpDefinition, Provenance, definition_of


@dataclass(frozen=True, slots=True, kw_only=True)
class OpInfo(OpDefinition):
    """The facts of an op that are known before it runs, those of its definition among them.

    ``name`` is without that of the overload. ``composite`` is None also for an op with a kernel:
    autograd has taken other composites apart, except in inference mode.

    Args:
        makes_tensors: some output may own new memory.
        returns_tensors: some output is a tensor, or a list of tensors.
        is_factory: it takes no tensor and makes one.
        writes_out: it writes to ``out=``, whose size may change.
        may_resize: it may change the size of a storage that exists.
        mutates_first: it writes to its first argument; a sparse one gets new parts.
        may_outgrow: its outputs may be larger than its arguments.
        is_pointwise: it computes element by element of its broadcast arguments.
        sizes: where among the arguments sizes or factors of sizes of the output are.
        is_foreach: the n-th output belongs where the n-th tensor of the first list is.
        is_confirmed: a recording confirms the temporaries.
        is_modelled: what its kernels allocate is known.
        draws: it draws random numbers.
        device_position: where among the positional arguments a device may be; None: nowhere.
        python_kernel: registered in Python to run on CUDA, for an op of another library.
        runs_on_cpu: the CPU has a kernel of it.
        written: position and name of each argument that it writes to.
        returned: for each output the position of it in ``written`` if it is that argument,
            None if the output is new.
    """

    meta: Callable[..., Any]
    makes_tensors: bool
    returns_tensors: bool
    is_factory: bool
    writes_out: bool
    may_resize: bool
    mutates_first: bool
    may_outgrow: bool
    is_pointwise: bool
    sizes: tuple[int, ...]
    is_foreach: bool
    is_confirmed: bool
    is_modelled: bool
    draws: bool
    device_position: int | None
    python_kernel: Callable[..., Any] | None
    runs_on_cpu: bool
    written: tuple[tuple[int, str], ...]
    returned: tuple[int | None, ...]

    @property
    def only_writes(self) -> bool:
        """True if every output is an argument that it writes to."""
        return None not in self.returned and bool(self.written)

    @property
    def takes_masks(self) -> bool:
        """True if its second argument holds indices, among which may be masks."""
        return self.data_dependence is not None and self.data_dependence.outputs is None

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
                yield from (one for one in value if isinstance(one, torch.Tensor))

    def written_result(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of a call that only writes to its arguments."""
        results = tuple(
            self.argument(source, args, kwargs) for source in self.returned if source is not None
        )
        return results[0] if len(results) == 1 else results or None


_known: dict[Any, OpInfo] = {}
_NOTHING = OpDefinition(name="")
_SIZES = frozenset({"size", "output_size", "repeats", "pad", "scale_factors"})


def op_info(op: Any) -> OpInfo:
    """The record of an op.

    Args:
        op: a ``torch._ops.OpOverload``.

    >>> op_info(torch.ops.aten.t.default).touches_no_element
    True
    >>> op_info(torch.ops.aten.add_.Tensor).written
    ((0, 'self'),)
    """
    info = _known.get(op)
    if info is None:
        info = _known[op] = _read(op)
    return info


def _read(op: Any) -> OpInfo:
    schema = op._schema
    name: str = schema.name
    definition = definition_of(op) or _NOTHING
    tensors = [result for result in schema.returns if "Tensor" in str(result.type)]
    aliases = [result.alias_info for result in tensors]
    writes_out = any(argument.is_out for argument in schema.arguments)
    makes_tensors = any(info is None for info in aliases)
    is_library = is_of_library(op)
    runs_on_cpu = not is_library or has_cpu_kernel(op)
    is_modelled = definition.provenance is not None
    python_kernel = None if is_modelled else python_kernel_of(op)
    if is_library:
        has_none = python_kernel is not None or op.is_view
    else:
        has_none = _has_no_workspace(op) or not (makes_tensors or writes_out)
    written, returned = _written(schema, definition.writes)
    is_view = bool(tensors) and all(info is not None and not info.is_write for info in aliases)
    touches_no_element = (
        is_view or definition.touches_no_element or torch.Tag.inplace_view in op.tags
    )
    facts = {one.name: getattr(definition, one.name) for one in fields(definition)}
    derived = {
        "name": name,
        "touches_no_element": touches_no_element,
        "takes_cpu_tensors": definition.takes_cpu_tensors or is_library,
        "composite": cuda_dispatch_of(op),
        "reference": cpu_kernel_of(op) or definition.reference,
        "meta": definition.meta or op,
    }
    return OpInfo(
        **{**facts, **derived},
        makes_tensors=makes_tensors,
        returns_tensors=bool(tensors),
        is_factory=bool(tensors) and not any("Tensor" in str(one.type) for one in schema.arguments),
        writes_out=writes_out,
        may_resize=writes_out or definition.resizes,
        mutates_first=any(position == 0 for position, _ in written),
        may_outgrow=makes_tensors
        and not written
        and definition.data_dependence is None
        and not name.startswith("aten::_foreach_"),
        is_pointwise=torch.Tag.pointwise in op.tags,
        sizes=tuple(
            position
            for position, argument in enumerate(schema.arguments)
            if argument.name in _SIZES
        ),
        is_foreach=name.startswith("aten::_foreach_"),
        is_confirmed=definition.provenance is Provenance.RECORDING,
        is_modelled=is_modelled or has_none,
        draws=draws(op),
        device_position=next(
            (
                position
                for position, argument in enumerate(schema.arguments)
                if "Device" in str(argument.type) and not argument.kwarg_only
            ),
            None,
        ),
        python_kernel=python_kernel,
        runs_on_cpu=runs_on_cpu,
        written=written,
        returned=returned,
    )


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
    returned = (next((marks[one] for one in names if one in marks), None) for names in sources)
    return tuple(written), tuple(returned)


_COLLECTIVES: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of collectives: NCCL has buffers that serve all of them, counted for none."""


@functools.cache
def ops_without_workspace() -> frozenset[str]:
    """Names of ops, without ``aten::``, that allocate their outputs only."""
    lines = Path(__file__).with_name("no_workspace.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if not line.startswith("#"))


def _has_no_workspace(op: Any) -> bool:
    """True if the kernels of an op are known to allocate its outputs only.

    Args:
        op: a ``torch._ops.OpOverload``; one that writes to ``out=`` is as the one without.
    """
    if _is_out(op):
        packet = op.overloadpacket
        overloads = (getattr(packet, overload) for overload in packet.overloads())
        return any(_has_no_workspace(one) for one in overloads if not _is_out(one))
    name = op._schema.name.removeprefix("aten::")
    return (
        torch.Tag.pointwise in op.tags
        or name in ops_without_workspace()
        or name.startswith("_foreach_")
        or op.namespace in _COLLECTIVES
        or not any(result.alias_info is None for result in op._schema.returns)
    )


def _is_out(op: Any) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)
