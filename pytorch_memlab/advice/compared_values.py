"""The values of a program, with an edit and without it: its losses, and the numbers that it prints.

Note [Compared values]
Both run with values, the same seeds, one thread and without dropout, whose random numbers differ
from kernel to kernel. The program runs twice as it is: what differs then, such as times, is not
compared. Losses are read where they reach ``backward``.
"""

from __future__ import annotations

import math
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TextIO

from .._common.patching.patches import Patches
from ..fitting.change import Change

_NUMBER: Final = re.compile(
    r"(?<![\w.:])[-+]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|nan|inf)(?![\w.])"
)
_NEAR: Final = 1 + 1e-9
"""Two numbers with one digit more or less differ by about that digit."""
_MOST: Final = 10_000
"""Number of losses, and of printed numbers, that are kept."""
_MOST_LOSSES: Final = 10
"""Number of losses that are compared: what rounding changes grows with every step."""


@dataclass(frozen=True, slots=True)
class Values:
    """The values of one run."""

    losses: tuple[float, ...]
    printed: tuple[str, ...]
    has_dropout: bool


@dataclass(frozen=True, slots=True)
class Comparison:
    """The values of a program with an edit, next to those without it."""

    names: str  # of the values: loss, printed numbers, or both
    same: int
    total: int
    difference: float  # the largest, as a part of the value
    is_without_dropout: bool

    def is_same_model(self, tolerance: float) -> bool:
        return self.difference <= tolerance


class RecordedValues(Change):
    """Keeps the values of a program, which runs with fixed seeds and without dropout."""

    name = "values"

    @contextmanager
    def applied(self) -> Iterator[None]:
        import torch

        self._losses: list[float] = []
        self._printed: list[str] = []
        self._has_dropout = False
        self._depth = 0
        _seed()
        with Patches() as patches:
            patches.around(torch.autograd, "backward")(self._backward)
            patches.around(torch.nn.functional, "dropout")(self._dropout)
            attention = "scaled_dot_product_attention"
            patches.around(torch.nn.functional, attention)(self._attention)
            patches.set(sys, "stdout", _Listener(sys.stdout, self._print))
            yield

    def finding(self) -> Values:
        return Values(tuple(self._losses), tuple(self._printed), self._has_dropout)

    def _print(self, text: str) -> None:
        if len(self._printed) < _MOST:
            self._printed += _NUMBER.findall(text)

    def _backward(
        self, original: Callable[..., Any], tensors: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not self._depth and len(self._losses) < _MOST:
            several = tensors if isinstance(tensors, Sequence) else [tensors]
            self._losses += [float(loss.detach().double().mean()) for loss in several]
        self._depth += 1
        try:
            return original(tensors, *args, **kwargs)
        finally:
            self._depth -= 1

    def _dropout(
        self,
        original: Callable[..., Any],
        input: Any,  # the name that PyTorch gives it
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        self._has_dropout |= training and p > 0
        return original(input, 0.0, training, inplace)

    def _attention(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        p = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
        if p:
            self._has_dropout = True
            kwargs.pop("dropout_p", None)
            args = (*args[:4], *((0.0, *args[5:]) if len(args) > 4 else ()))
        return original(*args, **kwargs)


class _Listener:
    """A stream whose text is heard too."""

    def __init__(self, stream: TextIO, hear: Callable[[str], None]) -> None:
        self._stream = stream
        self._hear = hear
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._hear(line)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _seed() -> None:
    import torch

    torch.manual_seed(0)
    random.seed(0)
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(0)


def compared(first: Values, again: Values, edited: Values) -> Comparison | None:
    """Compare a run of the edited program with two of the program; None if there is nothing."""
    losses = list(zip(first.losses, again.losses, edited.losses, strict=False))[:_MOST_LOSSES]
    if bool(first.losses) != bool(edited.losses) or any(loss != other for loss, other, _ in losses):
        return None
    printed: list[tuple[str, str, str]] = []
    if len(first.printed) == len(again.printed) == len(edited.printed):
        printed = list(zip(first.printed, again.printed, edited.printed, strict=True))
    numbers = [
        _Pair(float(old), float(new), _last_digit(old)) for old, same, new in printed if old == same
    ]
    pairs = [*(_Pair(old, new) for old, _, new in losses), *numbers]
    if not pairs:
        return None
    return Comparison(
        " and ".join(["loss"] * bool(losses) + ["printed numbers"] * bool(numbers)),
        sum(pair.is_same for pair in pairs),
        len(pairs),
        max(pair.difference for pair in pairs),
        first.has_dropout or edited.has_dropout,
    )


class _Pair(NamedTuple):
    """A value, and that of the edited program."""

    old: float
    new: float
    allowed: float = 0.0

    @property
    def is_same(self) -> bool:
        return self.old == self.new or (math.isnan(self.old) and math.isnan(self.new))

    @property
    def difference(self) -> float:
        """The part of the value by which the two differ; 1 beside one that is not finite."""
        if self.is_same:
            return 0.0
        if not (math.isfinite(self.old) and math.isfinite(self.new)):
            return 1.0
        beyond = max(0.0, abs(self.old - self.new) - self.allowed * _NEAR)
        return beyond / max(abs(self.old), abs(self.new))


def _last_digit(number: str) -> float:
    """The weight of the last digit of a number as it is printed.

    >>> _last_digit("2.302"), _last_digit("7")
    (0.001, 1.0)
    """
    mantissa, _, exponent = number.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return float(10 ** (int(exponent or 0) - decimals))
