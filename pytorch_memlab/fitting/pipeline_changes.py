"""Changes that a trial makes to a pipeline: its schedule, its micro-batches, FSDP's resharding."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from .._common.patching.after_import import AfterImport
from .._common.patching.patches import Patches
from .change import Change
from .pipeline_facts import SHARDING, PipelineFacts, before_unsharded

_PIPELINING: Final = "torch.distributed.pipelining"
_EACH_FORWARD_FIRST: Final = {
    "ScheduleGPipe": "Schedule1F1B",
    "ScheduleLoopedBFS": "ScheduleInterleaved1F1B",
}
"""Schedules that run all micro-batches forward first, and those that do not, with equal stages."""


class OtherSchedule(Change):
    """Another schedule for the same stages."""

    def __init__(self, before: str, after: str) -> None:
        self._before, self._after = before, after
        self.name = f"{after} in place of {before}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        schedules = importlib.import_module(f"{_PIPELINING}.schedules")
        with Patches() as patches:
            before, after = getattr(schedules, self._before), getattr(schedules, self._after)
            patches.set_by_name((before, after))
            yield


class MicroBatches(Change):
    """A number of micro-batches that the batch of a step is split into."""

    def __init__(self, before: int, after: int) -> None:
        self._after = after
        self.name = f"{after} micro-batches in place of {before}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        schedules = importlib.import_module(f"{_PIPELINING}.schedules")
        with Patches() as patches:
            for name, kind in vars(schedules).items():
                if name.startswith("Schedule") and inspect.isclass(kind):
                    self._patch(patches, kind)
            yield

    def _patch(self, patches: Patches, kind: Any) -> None:
        signature = inspect.signature(kind.__init__)
        if "n_microbatches" not in signature.parameters:
            return

        @patches.around(kind, "__init__")
        def init(original: Callable[..., None], schedule: Any, *args: Any, **kwargs: Any) -> None:
            bound = signature.bind(schedule, *args, **kwargs)
            if type(schedule) is kind:
                bound.arguments["n_microbatches"] = self._after
            original(*bound.args, **bound.kwargs)


class Reshard(Change):
    """FSDP frees the parameters of a layer after its forward pass, and gathers them again."""

    name = "reshard_after_forward=True"

    @contextmanager
    def applied(self) -> Iterator[None]:
        with Patches() as patches:
            imports = AfterImport()
            imports.call(SHARDING, lambda module: before_unsharded(patches, module, _reshard))
            imports.start()
            patches.before_undo(imports.stop)
            yield


def _reshard(arguments: dict[str, Any]) -> None:
    arguments["reshard_after_forward"] = True


def changes_for(facts: PipelineFacts) -> list[Change]:
    """The changes that may lower the memory of a stage of this pipeline."""
    changes: list[Change] = []
    other = _EACH_FORWARD_FIRST.get(facts.schedule)
    if other is not None:
        changes.append(OtherSchedule(facts.schedule, other))
    if facts.micro_batches:
        changes.append(MicroBatches(facts.micro_batches, 2 * facts.micro_batches))
    if facts.keeps_unsharded:
        changes.append(Reshard())
    return changes
