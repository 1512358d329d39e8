"""The verdict on a program's memory, in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._common.prose_size import prose_size
from .._common.quoted import printable
from ..profiles.verdict import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..profiles.verdict import DeviceVerdict

_WITHOUT_ROOM = (Outcome.DOES_NOT_FIT, Outcome.HANDLED)


def sentence(verdict: DeviceVerdict) -> str:
    """The memory that was needed, the memory that there is, and whether that is enough."""
    one = verdict.measured
    free = "" if verdict.outcome in _WITHOUT_ROOM else f", {prose_size(verdict.free)} free"
    return (
        f"peak {prose_size(one.peak_reserved)} reserved{_taken(one.taken or 0, one.context)} of"
        f" {prose_size(one.capacity)}: {verdict.outcome.value}{free}"
    )


def sentences(verdicts: Sequence[DeviceVerdict]) -> list[str]:
    """A sentence for each device, with its name where there are several."""
    if len(verdicts) < 2:
        return [*map(sentence, verdicts)]
    return [f"{printable(one.measured.device.name)}: {sentence(one)}" for one in verdicts]


def _taken(taken: int, context: int | None) -> str:
    """The bytes of the device that the program could not have."""
    if not taken:
        return ""
    if context is None:
        return f" + {prose_size(taken)} context and other programs"
    parts = [(context, "context"), (taken - context, "of other programs")]
    return "".join(f" + {prose_size(size)} {name}" for size, name in parts if size > 0)
