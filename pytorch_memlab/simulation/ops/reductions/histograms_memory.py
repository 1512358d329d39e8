"""``histc``: without bounds, the smallest and the largest element are found first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from ..op_call import Launch


def histogram(launch: Launch) -> None:
    """``histc``, after its result: two reductions, unless the program gives the bounds."""
    source: torch.Tensor = launch.args[0]
    if launch.argument(2, "min", 0) != launch.argument(3, "max", 0) or not source.numel():
        return
    for _ in ("smallest", "largest"):
        with launch.scope():
            launch.borrow(source.element_size())
            stage_values(launch, source)


ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::histc": Entry(histogram, "aten/src/ATen/native/cuda/SummaryOps.cu", Basis.SOURCE),
}
