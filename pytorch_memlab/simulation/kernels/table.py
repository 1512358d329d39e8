"""The table: which entry each op has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import (
    affine_grids,
    attention,
    batch_norm,
    bilinear,
    convolution,
    copies,
    cublas,
    cudnn,
    distances,
    embeddings,
    foreach,
    fourier,
    fused_cells,
    grouped_matrices,
    histograms,
    indexing,
    jagged,
    losses,
    margin_losses,
    membership,
    mixed_matrices,
    native_attention,
    norms,
    packed_sequences,
    pooling,
    quantization,
    reductions,
    result_order,
    sampling,
    scaled_matrices,
    scans,
    scatters,
    selection,
    sharding,
    softmax,
    sorting,
    spatial,
    triangular,
    uniques,
    windows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .entry import Entry

ENTRIES: Final[Mapping[str, Entry]] = {
    **affine_grids.ENTRIES,
    **attention.ENTRIES,
    **batch_norm.ENTRIES,
    **bilinear.ENTRIES,
    **convolution.ENTRIES,
    **copies.ENTRIES,
    **cublas.ENTRIES,
    **cudnn.ENTRIES,
    **distances.ENTRIES,
    **embeddings.ENTRIES,
    **foreach.ENTRIES,
    **fourier.ENTRIES,
    **fused_cells.ENTRIES,
    **grouped_matrices.ENTRIES,
    **histograms.ENTRIES,
    **indexing.ENTRIES,
    **jagged.ENTRIES,
    **losses.ENTRIES,
    **margin_losses.ENTRIES,
    **membership.ENTRIES,
    **mixed_matrices.ENTRIES,
    **native_attention.ENTRIES,
    **norms.ENTRIES,
    **packed_sequences.ENTRIES,
    **pooling.ENTRIES,
    **quantization.ENTRIES,
    **reductions.ENTRIES,
    **result_order.ENTRIES,
    **sampling.ENTRIES,
    **scaled_matrices.ENTRIES,
    **scans.ENTRIES,
    **scatters.ENTRIES,
    **selection.ENTRIES,
    **sharding.ENTRIES,
    **softmax.ENTRIES,
    **sorting.ENTRIES,
    **spatial.ENTRIES,
    **triangular.ENTRIES,
    **uniques.ENTRIES,
    **windows.ENTRIES,
}
"""Entry of each op, by its name, with the overload's behind a dot where it has one."""


def entry_of(op: Any) -> Entry | None:
    """The entry of an op; one that writes to ``out=`` may have that of the op without.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        the entry, None if the table has none.
    """
    own = _named(op)
    if own is not None or not any(argument.is_out for argument in op._schema.arguments):
        return own
    given = _inputs(op)
    packet = op.overloadpacket
    overloads = (getattr(packet, overload) for overload in packet.overloads())
    twins = (one for one in overloads if one is not op and _inputs(one) == given)
    return next((entry for entry in map(_named, twins) if entry is not None), None)


def _named(op: Any) -> Entry | None:
    name, overload = op._schema.name, op._schema.overload_name
    return ENTRIES.get(f"{name}.{overload}" if overload else name)


def _inputs(op: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.type)) for one in op._schema.arguments if not one.is_out]
