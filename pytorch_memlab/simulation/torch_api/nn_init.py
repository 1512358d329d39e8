"""``nn.init.trunc_normal_`` without values: as many rounds as so many elements would need.

From torch 2.13 on it draws again until no element lies outside of its bounds, and reads after each
round whether one does. The answer is the one that is expected: it does while the expected number of
elements outside is one or more. From the second round on, the function takes more memory.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Final

import torch

from ..._common.patches import Patches
from ..machine.machine import Machine

_NAME: Final = "_no_grad_trunc_normal_"
_MOST_ROUNDS: Final = 100
_DRAWN_FROM_NORMAL: Final = 0.3
"""Share of the distribution within the bounds from which on it is drawn from, as PyTorch decides.
Below, numbers are drawn evenly, and kept or not."""


def install(machine: Machine, patches: Patches) -> None:
    """Answer what the function reads, until undone."""
    values = machine.values
    original = getattr(torch.nn.init, _NAME, None)
    if original is None or values is None:
        return

    @functools.wraps(original)
    def drawn(
        tensor: torch.Tensor, mean: float, std: float, a: float, b: float, *rest: Any, **named: Any
    ) -> torch.Tensor:
        values.answers = rounds(tensor.numel(), mean, std, a, b) * [True]
        try:
            result: torch.Tensor = original(tensor, mean, std, a, b, *rest, **named)
        finally:
            values.answers = []
        return result

    patches.set(torch.nn.init, _NAME, drawn)


def rounds(count: int, mean: float, std: float, a: float, b: float) -> int:
    """The expected rounds of drawing that leave elements outside of the bounds.

    >>> rounds(1_000_000, 0.0, 1.0, -2.0, 2.0), rounds(1_000_000, 0.0, 0.02, -2.0, 2.0)
    (4, 0)
    """
    if std <= 0 or b <= a or not count:
        return 0
    share = (_below((b - mean) / std) - _below((a - mean) / std)) / 2
    if share <= _DRAWN_FROM_NORMAL:
        mode = max(a, min(mean, b))
        highest = math.exp(-0.5 * ((mode - mean) / std) ** 2)
        share *= std * math.sqrt(2 * math.pi) / max((b - a) * highest, math.ulp(0.0))
    outside = 1 - min(share, 1.0)
    if count * outside < 1:
        return 0
    return (
        _MOST_ROUNDS
        if outside >= 1
        else min(_MOST_ROUNDS, int(math.log(count) / -math.log(outside)))
    )


def _below(bound: float) -> float:
    return math.erf(bound / math.sqrt(2))
