"""A recording, and replays of it with other settings or on other GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..simulation.inspect import GPU, MemoryOverhead
from .first_state import first_state
from .model import AllocationHistory, Stack, device_name
from .replay import Figures, ReplayResult, changed_settings, recorded_capacity, replay
from .replay_check import ReplayCheck, check_replay, recorded_figures, recorded_retries
from .settings import settings_of


@dataclass(frozen=True, slots=True)
class Variant:
    """A recording replayed in another way."""

    name: str  # of the GPU, as the user wrote it; empty for that of the recording
    gpu: GPU | None  # the GPU; None for that of the recording
    result: ReplayResult


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A recording, the check that it can be replayed, and its variants."""

    device: int  # index of the GPU
    events: int
    stacks: Sequence[Stack]
    earlier: int  # bytes of the segments from before the first event
    recorded: Figures
    check: ReplayCheck
    settings: str
    variants: tuple[Variant, ...]
    run: str = ""  # label of the run in a merged profile, such as ``rank0``; empty in one of a run

    @property
    def name(self) -> str:
        """The name of the device in a report, such as ``cuda:0`` or ``rank0 cuda:0``."""
        return f"{self.run} {device_name(self.device)}".lstrip()


def what_if(
    history: AllocationHistory,
    device: int = 0,
    settings: str = "",
    gpus: Sequence[tuple[str, GPU]] = (),
) -> WhatIf:
    """Replay a recording as it was, and with other settings or on other GPUs."""
    recorded = settings_of(history.settings)
    changed = changed_settings(recorded, settings)
    taken = [MemoryOverhead.of(gpu, None, 0).context for _, gpu in gpus]
    check = check_replay(history, device)
    variants = []
    for (name, gpu), context in zip(gpus, taken, strict=True):
        result = replay(
            history,
            device,
            changed,
            gpu.total_memory,
            context,
            order_by_address=check.order_by_address,
        )
        variants.append(Variant(name, gpu, result))
    if settings and not gpus:
        capacity = recorded_capacity(history, device)
        result = replay(history, device, changed, capacity, order_by_address=check.order_by_address)
        variants.append(Variant("", None, result))
    one = history.of_device(device)
    return WhatIf(
        device,
        len(one.events),
        history.stacks,
        sum(segment.size for segment in first_state(one, recorded)),
        _recorded(history, device, check),
        check,
        settings,
        tuple(variants),
    )


def _recorded(history: AllocationHistory, device: int, check: ReplayCheck) -> Figures:
    """Figures of the recording: those of an equal replay, if there is one."""
    figures = check.figures
    if figures is None or not check.matches:
        return recorded_figures(history, device)
    return replace(figures, retries=recorded_retries(history, device, figures.failures))
