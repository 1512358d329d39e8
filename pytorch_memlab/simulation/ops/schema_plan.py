"""How an op runs when tensors have no values, read off its schema once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .library_ops import is_of_library, runs_on_host

if TYPE_CHECKING:
    from collections.abc import Iterator

_RUN_AS_THEY_ARE = frozenset(
    {
        "aten::_unsafe_view",
        "aten::lift",
        "aten::lift_fresh",
        "aten::_sparse_coo_tensor_with_dims_and_tensors",
        "aten::_sparse_coo_tensor_unsafe",
        "aten::_fused_sdp_choice",
        "_c10d_functional::wait_tensor",
    }
)
"""Ops that touch no element, though their schemas do not say so."""

_SILENT_WRITES = {
    "aten::native_batch_norm": (3, 4),
    "aten::cudnn_batch_norm": (3, 4),
    "aten::batch_norm": (3, 4),
    "aten::_batch_norm_impl_index": (3, 4),
}
"""Arguments that an op writes to without its schema saying so, by their positions."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of an op before it runs.

    Args:
        name: of the op.
        touches_nothing: it makes views or changes sizes only.
        returns_tensors: some result is a tensor, or a list of tensors.
        is_factory: it takes no tensor and makes one.
        may_resize: what it writes to may change its size.
        runs_on_host: the host can compute it.
        written: position and name of each argument that it writes to.
        returned: for each result the position of it in ``written`` if it is that argument,
            None if the result is new.
    """

    name: str
    touches_nothing: bool
    returns_tensors: bool
    is_factory: bool
    may_resize: bool
    runs_on_host: bool
    written: tuple[tuple[int, str], ...]
    returned: tuple[int | None, ...]

    @property
    def makes_nothing(self) -> bool:
        """Whether every result is an argument that it writes to."""
        return None not in self.returned and bool(self.written)

    def argument(self, position: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One of the arguments that a call writes to.

        Args:
            position: in ``written``.
            args: of the call.
            kwargs: of the call.

        Returns:
            the argument, None if it was not given.
        """
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


_known: dict[Any, Plan] = {}


def plan_of(op: Any) -> Plan:
    """Plan of an op.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        its plan.

    >>> plan_of(torch.ops.aten.t.default).touches_nothing
    True
    >>> plan_of(torch.ops.aten.add_.Tensor).written
    ((0, 'self'),)
    """
    plan = _known.get(op)
    if plan is None:
        plan = _known[op] = _read(op)
    return plan


def _read(op: Any) -> Plan:
    schema = op._schema
    name: str = schema.name
    written: list[tuple[int, str]] = []
    marks: dict[str, int] = {}
    for position, argument in enumerate(schema.arguments):
        info = argument.alias_info
        if info is not None and info.is_write:
            marks.update(dict.fromkeys(info.before_set, len(written)))
            written.append((position, argument.name))
    silent = _SILENT_WRITES.get(name, ())
    written.extend((position, schema.arguments[position].name) for position in silent)
    tensors = [result for result in schema.returns if "Tensor" in str(result.type)]
    aliases = [result.alias_info for result in tensors]
    views = bool(tensors) and all(info is not None and not info.is_write for info in aliases)
    takes_tensors = any("Tensor" in str(argument.type) for argument in schema.arguments)
    return Plan(
        name=name,
        touches_nothing=(views or name in _RUN_AS_THEY_ARE or torch.Tag.inplace_view in op.tags),
        returns_tensors=bool(tensors),
        is_factory=bool(tensors) and not takes_tensors,
        may_resize=any(argument.is_out for argument in schema.arguments),
        runs_on_host=not is_of_library(op) or runs_on_host(op),
        written=tuple(written),
        returned=tuple(_source(result.alias_info, marks) for result in schema.returns),
    )


def _source(info: Any, marks: dict[str, int]) -> int | None:
    if info is None or not info.is_write:
        return None
    return next((marks[mark] for mark in info.before_set if mark in marks), None)
