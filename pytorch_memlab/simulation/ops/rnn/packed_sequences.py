"""Packed sequences: copies of the steps that are joined."""

from __future__ import annotations

from typing import Any, Final

import torch

from ...machine.tensor_values import TensorValues
from ..data_dependence import DataDependence
from ..op_call import OpCall
from ..registry import define, op


def _packed(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sequences, lengths, batch_first = args
    if not values.is_known(lengths):
        _PACKED.count(values, "aten::_pack_padded_sequence")
        length = sequences.shape[1 if batch_first else 0]
        lengths = torch.full(lengths.shape, length)
    outline = torch.zeros(sequences.shape[:2])
    packed, sizes = torch.ops.aten._pack_padded_sequence.default(
        outline.unsqueeze(-1), lengths, batch_first
    )
    return values.make((packed.shape[0], *sequences.shape[2:]), sequences.dtype), sizes


def _unpacked(values: TensorValues, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return values.make(tuple(args[1]), args[0].dtype)


_PACKED: Final = DataDependence(
    "pack_padded_sequence", "every length the longest", _packed, counts_itself=True
)

define(
    "aten::_pack_padded_sequence_backward",
    takes_cpu_tensors=True,
    data_dependence=DataDependence("", "", _unpacked, counts_itself=True),
)


@op(
    "aten::_pack_padded_sequence",
    source="aten/src/ATen/native/PackedSequence.cpp",
    cpu_outputs=frozenset({1}),
    takes_cpu_tensors=True,
    data_dependence=_PACKED,
)
def _memory(call: OpCall) -> None:
    """Contiguous copies of runs of steps that are as wide, joined."""
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
