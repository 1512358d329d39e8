"""The pipeline of a rank: its schedule, and how many micro-batches it holds at a time."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from .._common.patching.after_import import AfterImport
from .._common.patching.patches import Patches

_STAGE: Final = "torch.distributed.pipelining.stage"
_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
SHARDING: Final = "torch.distributed.fsdp"


@dataclass(frozen=True, slots=True)
class PipelineFacts:
    """The pipeline of a rank and its FSDP, as far as they were seen."""

    schedule: str = ""  # name of its class; empty without a pipeline
    micro_batches: int = 0
    stages: tuple[int, ...] = ()  # the numbers of those that the rank has
    in_flight: int = 0  # the most that were forward and not yet backward, of all its stages
    keeps_unsharded: bool = False  # whether fully_shard was called with reshard_after_forward=False

    @property
    def of_all_stages(self) -> int:
        """The micro-batches of a step, once for each stage of the rank."""
        return self.micro_batches * max(1, len(self.stages))


class PipelineWatch:
    """Looks at the pipeline of the program that runs in this process."""

    def __init__(self) -> None:
        self._schedule = ""
        self._micro_batches = 0
        self._stages: weakref.WeakSet[Any] = weakref.WeakSet()
        self._numbers: set[int] = set()
        self._most = 0
        self._keeps_unsharded = False

    def facts(self) -> PipelineFacts:
        return PipelineFacts(
            self._schedule,
            self._micro_batches,
            tuple(sorted(self._numbers)),
            self._most,
            self._keeps_unsharded,
        )

    def watch(self, patches: Patches) -> None:
        """Look on until the patches are undone."""
        imports = AfterImport()
        imports.call(_STAGE, functools.partial(self._watch_stages, patches))
        imports.call(_SCHEDULES, functools.partial(self._watch_schedules, patches))
        imports.call(SHARDING, functools.partial(self._watch_sharding, patches))
        imports.start()
        patches.before_undo(imports.stop)

    def _watch_stages(self, patches: Patches, module: Any) -> None:
        base = getattr(module, "_PipelineStageBase", None)
        if base is None or not hasattr(base, "forward_one_chunk"):
            return

        @patches.around(base, "forward_one_chunk")
        def forward_one_chunk(
            forward: Callable[..., Any], stage: Any, *args: Any, **kw: Any
        ) -> Any:
            result = forward(stage, *args, **kw)
            self._stages.add(stage)
            self._numbers.add(stage.stage_index)
            self._most = max(self._most, sum(map(_held, self._stages)))
            return result

    def _watch_schedules(self, patches: Patches, module: Any) -> None:
        base = getattr(module, "_PipelineSchedule", None)
        if base is None:
            return

        @patches.around(base, "__init__")
        def init(original: Callable[..., None], schedule: Any, *args: Any, **kw: Any) -> None:
            original(schedule, *args, **kw)
            self._schedule = type(schedule).__name__
            self._micro_batches = schedule._n_microbatches

    def _watch_sharding(self, patches: Patches, module: Any) -> None:
        def note(_arguments: dict[str, Any]) -> None:
            self._keeps_unsharded = True

        before_unsharded(patches, module, note)


def before_unsharded(patches: Patches, module: Any, look: Callable[[dict[str, Any]], None]) -> None:
    """Call a function before each ``fully_shard`` that keeps parameters after the forward pass."""
    # It gets the arguments by their names, and may change them.
    original = getattr(module, "fully_shard", None)
    if original is None:
        return
    signature = inspect.signature(original)

    @functools.wraps(original)
    def fully_shard(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if bound.arguments.get("reshard_after_forward") is False:
            look(bound.arguments)
        return original(*bound.args, **bound.kwargs)

    patches.set_by_name((original, fully_shard))


def _held(stage: Any) -> int:
    """Micro-batches that a stage holds: activations, or what a weight's gradient still needs."""
    return len(set(stage.fwd_cache) | set(getattr(stage, "backward_state", ())))
