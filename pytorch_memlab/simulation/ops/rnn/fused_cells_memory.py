"""Cells of recurrent networks: the order of what they make, and the sums of biases' gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry, nothing
from ..output_order import in_order
from ..reduction_workspace import stage_sum

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import OpCall


def lstm_gradients(call: OpCall) -> None:
    """``_thnn_fused_lstm_cell_backward_impl``: both biases have one gradient."""
    of_gates, of_cell, of_bias = call.result
    call.alloc_outputs(of_gates, of_cell, of_bias)
    if of_bias is not None:
        stage_sum(call, of_gates, 0)


def gru_gradients(call: OpCall) -> None:
    """``_thnn_fused_gru_cell_backward``: each bias has a gradient of its own."""
    of_input, of_hidden, of_state, *of_biases = call.result
    call.alloc_outputs(of_input, of_hidden, of_state)
    for of_gates, of_bias in zip((of_input, of_hidden), of_biases, strict=True):
        if of_bias is not None:
            call.alloc_outputs(of_bias)
            stage_sum(call, of_gates, 0)


_SOURCE: Final = "aten/src/ATen/native/cuda/RNN.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::_thnn_fused_lstm_cell": Entry(nothing, _SOURCE, Basis.SOURCE, make=in_order(2, 0, 1)),
    "aten::_thnn_fused_gru_cell": Entry(nothing, _SOURCE, Basis.SOURCE, make=in_order(1, 0)),
    "aten::_thnn_fused_lstm_cell_backward_impl": Entry(
        nothing, _SOURCE, Basis.SOURCE, make=lstm_gradients
    ),
    "aten::_thnn_fused_gru_cell_backward": Entry(
        nothing, _SOURCE, Basis.SOURCE, make=gru_gradients
    ),
}
