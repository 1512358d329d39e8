"""The same random numbers in every run of a cell."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from .._common.quoted import quoted
from ..errors import UsageError

if TYPE_CHECKING:
    from .cell_events import Cell

_HIGHEST = 2**32 - 1
"""Seed that NumPy takes."""


class CellSeeder:
    """Seeds Python's random numbers before every cell, and NumPy's and PyTorch's where loaded.

    While it runs, cuDNN takes deterministic algorithms alone, and does not try out which is
    fastest; afterwards it is as it was.
    """

    def __init__(self, seed: int) -> None:
        if not isinstance(seed, int) or not 0 <= seed <= _HIGHEST:
            raise UsageError(
                f"a seed is an int from 0, for none, to {_HIGHEST}, not {quoted(seed)}"
            )
        self._seed = seed
        self._cudnn: tuple[bool, bool] | None = None

    def stop(self) -> None:
        """Put cuDNN's settings back; again has no effect."""
        if self._cudnn is not None:
            cudnn = sys.modules["torch"].backends.cudnn
            (cudnn.deterministic, cudnn.benchmark), self._cudnn = self._cudnn, None

    def cell_began(self, cell: Cell, /) -> None:
        """Seed."""
        random.seed(self._seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(self._seed)
        torch = sys.modules.get("torch")
        if torch is not None:
            torch.manual_seed(self._seed)  # of every CUDA device too
            cudnn = torch.backends.cudnn
            if self._cudnn is None:
                self._cudnn = (cudnn.deterministic, cudnn.benchmark)
            cudnn.deterministic, cudnn.benchmark = True, False

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """Nothing is to be done."""
