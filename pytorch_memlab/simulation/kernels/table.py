"""The table: which entry each op has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import (
    attention,
    batch_norm,
    convolution,
    copies,
    cublas,
    cudnn,
    distances,
    embeddings,
    foreach,
    fused_cells,
    grouped_matrices,
    histograms,
    indexing,
    losses,
    mixed_matrices,
    norms,
    reductions,
    result_order,
    sampling,
    scaled_matrices,
    scans,
    selection,
    softmax,
    sorting,
    spatial,
    uniques,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .entry import Entry

ENTRIES: Final[Mapping[str, Entry]] = {
    **attention.ENTRIES,
    **batch_norm.ENTRIES,
    **convolution.ENTRIES,
    **copies.ENTRIES,
    **cublas.ENTRIES,
    **cudnn.ENTRIES,
    **distances.ENTRIES,
    **embeddings.ENTRIES,
    **foreach.ENTRIES,
    **fused_cells.ENTRIES,
    **grouped_matrices.ENTRIES,
    **histograms.ENTRIES,
    **indexing.ENTRIES,
    **losses.ENTRIES,
    **mixed_matrices.ENTRIES,
    **norms.ENTRIES,
    **reductions.ENTRIES,
    **result_order.ENTRIES,
    **sampling.ENTRIES,
    **scaled_matrices.ENTRIES,
    **scans.ENTRIES,
    **selection.ENTRIES,
    **softmax.ENTRIES,
    **sorting.ENTRIES,
    **spatial.ENTRIES,
    **uniques.ENTRIES,
}
"""Entry of each op, by its name, with the overload's behind a dot where it has one."""


def entry_of(op: Any) -> Entry | None:
    """The entry of an op; one that writes to ``out=`` has that of the op that makes its result.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        the entry, None if the table has none.
    """
    if any(argument.is_out for argument in op._schema.arguments):
        given = _inputs(op)
        packet = op.overloadpacket
        overloads = (getattr(packet, overload) for overload in packet.overloads())
        twins = (one for one in overloads if one is not op and _inputs(one) == given)
        return next((entry for entry in map(_named, twins) if entry is not None), None)
    return _named(op)


def _named(op: Any) -> Entry | None:
    name, overload = op._schema.name, op._schema.overload_name
    return ENTRIES.get(f"{name}.{overload}" if overload else name)


def _inputs(op: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in op._schema.arguments if not one.is_out]
