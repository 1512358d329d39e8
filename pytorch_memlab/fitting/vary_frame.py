"""The largest values that fit on GPUs, as a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pandas as pd

from .grid import GridReport, GridSearch

if TYPE_CHECKING:
    from ..simulation.hardware.gpu import GPU
    from .comparison import Settings
    from .target import Target
    from .variable import Variable


class VaryFrame(pd.DataFrame):
    """A row for each GPU, and for each combination of the other variables.

    The column of the variable that was searched has the largest value that fits, or nothing where
    none does. Sizes are in bytes. ``peak``: the most that PyTorch's allocator takes with that
    value, its cache included. ``headroom``: what is left beside it and the CUDA context. ``next``:
    the next value, and ``next_needs`` the memory that it needs. ``base`` and ``per_item``: of the
    line through what values need.

    A notebook shows bars of the memory. Selections of rows or columns are plain frames. ``report``
    has everything that was tried.
    """

    _metadata = ["report"]  # noqa: RUF012 - as pandas has it
    report: GridReport

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def _repr_html_(self) -> str:
        from ..render import curve_html

        return curve_html.fragment(self.report)

    def __repr__(self) -> str:
        """The tables of the command line."""
        from ..render import curve

        return curve.text(self.report).rstrip("\n")


def vary_frame(
    target: Target,
    gpus: Sequence[tuple[str, GPU]],
    variables: Sequence[Variable],
    settings: Settings,
) -> VaryFrame:
    """Search the largest values that fit."""
    search = GridSearch(target, gpus, variables, settings)
    search.run()
    report = search.report()
    rows = report.rows()
    index = pd.Index([row.pop("gpu") for row in rows], name="gpu", dtype=object)
    numbers = dict.fromkeys((report.variable.name, *_SIZES), "Int64")  # some may be missing
    frame = VaryFrame(pd.DataFrame(rows, index=index, dtype=object).astype(numbers))
    frame.report = report
    return frame


_SIZES = (
    "peak",
    "headroom",
    "capacity",
    "context",
    "next",
    "next_needs",
    "base",
    "per_item",
)
