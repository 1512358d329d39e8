"""``pytorch_memlab.fit``: whether a program fits on GPUs, as a DataFrame."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from .._common.text.displayed import Displayed
from .._common.text.quoted import quoted
from ..errors import UsageError
from ..simulation.inspect import GPU, AssumedSizes, read_size
from .comparison import compare_gpus, fit_report, named_gpus
from .grid import GridSearch
from .target import FunctionTarget, ProgramTarget, Target
from .trial import Settings
from .variable import variables_of
from .verdict import FitReport


class _ReportFrame(pd.DataFrame):
    """A frame with a report, which shows it; what is selected of it is a plain frame."""

    _metadata = ["report"]  # noqa: RUF012 - as pandas has it

    report: Displayed

    @property
    def _constructor(self) -> Callable[..., pd.DataFrame]:
        return pd.DataFrame

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def __repr__(self) -> str:
        """The tables of the command line."""
        return str(self.report)


class FitFrame(_ReportFrame):
    """A row for each GPU, the smallest first; a notebook shows bars of the memory.

    Sizes are in bytes. ``capacity``: of the GPU. ``context``: what the allocator does not get, the
    CUDA context and other processes. ``peak``: the most that PyTorch's allocator takes, its cache
    included. ``active_peak``: the most bytes in use. ``graphs``: what of the peak is in pools of
    CUDA graphs, which serve no other code. ``nccl``, ``nccl_at_least`` and ``nccl_at_most``: what
    the communicators of NCCL take beside it, an estimate with its bounds. ``on_device``: what
    ``nvidia-smi`` shows, the sum of ``context``, ``peak`` and ``nccl``. ``headroom``: the rest of
    the memory, 0 where NCCL may lack some, negative where the allocator does. ``fits``: None where
    the program failed. ``fails_at`` and ``request``: the line whose request does not fit, and its
    bytes. ``assumed_at``: the lines whose sizes a dry run assumed, or that were given, with commas
    between them.

    Selections of rows or columns are plain frames. ``report`` has the verdicts, with the recorded
    allocations.
    """

    report: FitReport


class VaryFrame(_ReportFrame):
    """A row for each GPU, and for each combination of the other variables.

    The column of the variable that was searched has the largest value that fits, or nothing where
    none does. Sizes are in bytes. ``peak``: the most that PyTorch's allocator takes with that
    value, its cache included. ``headroom``: the rest without it, the CUDA context and NCCL.
    ``next``: the next value, and ``next_needs`` the memory that it needs. ``base`` and
    ``per_item``: of the line through what values need.

    A notebook shows bars of the memory. Selections of rows or columns are plain frames. ``report``
    has everything that was tried.
    """

    report: GridSearch


def fit(
    step: Callable[..., object] | str | os.PathLike[str],
    gpus: Sequence[str | int | GPU] | str | int | GPU | None = None,
    *,
    steps: int | None = None,
    num_gpus: int = 1,
    context: str | int | None = None,
    others: str | int = 0,
    vary: Mapping[str, object] | None = None,
    allow_writes: bool = False,
    assume: Mapping[str, str | int | float] | None = None,
) -> FitFrame | VaryFrame:
    """On which GPUs a program fits, without any of them.

    The program runs without values, in other processes, so nothing here changes. GPUs on
    which the same happens share a run. Tensors that a function refers to are on the GPU that they
    are on here, and count; what else is on the GPUs here does not.

    If the program fails, the result shows its error and the line; ``report.error`` is the whole
    traceback.

    Args:
        step: a function that is called until the peak of its calls repeats, or of its optimizer
            steps if it has its own loop; or the path of a script.
        gpus: names such as ``"rtx4090"``, sizes such as ``"24GiB"`` or ``GPU(...)``, one or
            several; None for all presets.
        steps: steps after which the program ends; None for when the peak repeats.
        num_gpus: how many GPUs the program has.
        context: size of the CUDA context; None for the estimate that goes with each GPU.
        others: size of the memory that other processes use on each GPU.
        vary: keyword arguments of the function, such as ``{"batch_size": (1, 512)}``: the largest
            value of this range that fits each GPU is searched. Further names have lists of values,
            each of which is tried. For a script, names are those of ``fit --vary``.
        allow_writes: True lets the runs change files, and start commands whose writes cannot be
            held back. Otherwise no file that is there is changed, and such a command is a
            ``CommandRefusedError`` in the program.
        assume: sizes that values decide, such as ``{"nonzero": 0.001}``, as ``simulate`` takes
            them.

    Returns:
        A row for each GPU; with ``vary``, for each combination of the other values.

    Raises:
        UsageError: an argument that cannot be used.
        UnknownGPUError: there is no such GPU.
    """
    target: ProgramTarget | FunctionTarget
    if isinstance(step, (str, os.PathLike)):
        target = ProgramTarget(os.fspath(step))
    else:
        target = FunctionTarget(step)
    target.check()
    settings = Settings(
        steps=_count("steps", steps) if steps is not None else None,
        num_gpus=_count("num_gpus", num_gpus),
        context=None if context is None else read_size("context", context),
        others=read_size("others", others),
        allow_writes=allow_writes,
        assume=AssumedSizes(assume).given(),
    )
    named = named_gpus(gpus)
    if not named:
        raise UsageError("gpus is empty: name one GPU at least, or leave it out for all presets")
    for _, gpu in named:
        settings.taken(gpu)
    if isinstance(target, FunctionTarget):
        target.check_gpus(settings.num_gpus)
    if vary is None:
        return _fitted(target, named, settings)
    return _varied(target, named, settings, vary)


def _fitted(target: Target, gpus: Sequence[tuple[str, GPU]], settings: Settings) -> FitFrame:
    report = fit_report(target, gpus, compare_gpus(target, gpus, settings), settings)
    frame = FitFrame(_table(report.rows()))
    frame["fits"] = frame["fits"].astype("boolean")  # None, too: a mask leaves it out
    frame.report = report
    return frame


def _varied(
    target: ProgramTarget | FunctionTarget,
    gpus: Sequence[tuple[str, GPU]],
    settings: Settings,
    vary: Mapping[str, object],
) -> VaryFrame:
    variables = variables_of(vary, is_function=isinstance(target, FunctionTarget))
    search = GridSearch(target.name, gpus, variables, settings)
    search.run(target)
    numbers = dict.fromkeys((search.variable.name, *_SIZES), "Int64")  # some may be missing
    largest = VaryFrame(_table(search.rows(), dtype=object).astype(numbers))
    largest.report = search
    return largest


def _table(rows: list[dict[str, Any]], dtype: Any = None) -> pd.DataFrame:
    index = pd.Index([row.pop("gpu") for row in rows], name="gpu", dtype=object)
    return pd.DataFrame(rows, index=index, dtype=dtype)


_SIZES = ("peak", "headroom", "capacity", "context", "next", "next_needs", "base", "per_item")


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} is an int from 1 on, not {quoted(value)}")
    return value
