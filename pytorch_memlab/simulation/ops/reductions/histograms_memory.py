"""``histc``: without bounds, the smallest and the largest element are found first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import OpCall


def histogram(call: OpCall) -> None:
    """``histc``, after its result: two reductions, unless the program gives the bounds."""
    source: torch.Tensor = call.args[0]
    if call.argument(2, "min", 0) != call.argument(3, "max", 0) or not source.numel():
        return
    for _ in ("smallest", "largest"):
        with call.scope():
            call.alloc_temp(source.element_size())
            stage_values(call, source)


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::histc": Entry(histogram, "aten/src/ATen/native/cuda/SummaryOps.cu", Basis.SOURCE),
}
