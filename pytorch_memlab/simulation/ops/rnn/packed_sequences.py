"""Packed sequences: copies of the steps that are joined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import OpCall


def pack(call: OpCall) -> None:
    """``_pack_padded_sequence``: contiguous copies of runs of steps that are as wide, joined."""
    source, lengths, batch_first = call.args[:3]
    steps: torch.Tensor = source.transpose(0, 1) if batch_first else source
    copies = []
    joined = 0
    for shorter, length in enumerate(reversed(lengths.tolist())):
        if length > joined:
            run = steps[joined:length, : steps.shape[1] - shorter]
            joined = length
            if not run.is_contiguous():
                copies.append(call.alloc_temp(run.numel() * run.element_size()))
    call.alloc_outputs(call.result[0])
    for allocation in copies:  # a C++ vector frees its first element first
        call.free_temp(allocation)


_PACKED: Final = "aten/src/ATen/native/PackedSequence.cpp"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_pack_padded_sequence": Entry(nothing, _PACKED, Basis.SOURCE, make=pack),
}
