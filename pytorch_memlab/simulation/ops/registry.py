"""The table: which entry each op has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from . import output_order as result_order
from .attention import memory as attention
from .attention import native_memory as native_attention
from .convolution import cudnn_memory as cudnn
from .convolution import memory as convolution
from .copies import copies
from .distributed import fsdp_copies as sharding
from .fft import fft as fourier
from .fft import window_functions as windows
from .indexing import embeddings, indexing
from .indexing import nonzero as selection
from .indexing import scatter_reduce as scatters
from .losses import distances, losses, margin_losses
from .matmul import bilinear, cublas, triangular
from .matmul import grouped_memory as grouped_matrices
from .matmul import mixed_dtypes_memory as mixed_matrices
from .matmul import scaled as scaled_matrices
from .nested import nested as jagged
from .norms import batch_norm_memory as batch_norm
from .norms import memory as norms
from .pointwise import foreach, quantization
from .pooling import affine_grids
from .pooling import channels_last_pooling as pooling
from .pooling import pooling_and_padding as spatial
from .random import sampling
from .reductions import histograms_memory as histograms
from .reductions import reductions, scans
from .reductions import softmax_memory as softmax
from .rnn import fused_cells_memory as fused_cells
from .rnn import packed_sequences
from .sorting import isin as membership
from .sorting import sorting
from .sorting import unique_memory as uniques

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .memory_model import Entry

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
