"""The compiler times its Triton kernels at their first launch, which takes memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..around_program import AroundProgram, Finding, already_used, applied
from ..cause import Cause, Remedy, Results, saves
from ..evidence import unnamed_at

_TIMING = ("benchmark_all_configs", "triton_heuristics.py")
"""The function of Inductor that times the configurations of a kernel, and its file."""
_NAMED = "timing of "
"""What a simulation calls the frame above it, before the name of the kernel."""
_ELEMENTWISE = "triton_poi_"
_CONFIG = "torch._inductor.config"
_BEFORE = "  # before the first compiled call"
_ONE_OF_ELEMENTWISE = {"triton.autotune_pointwise": False}
_ONE_OF_REDUCTIONS = {"deterministic": True}
"""Options that leave a kernel one configuration, by their names in ``torch._inductor.config``."""


class OneConfiguration(AroundProgram):
    """Kernels have one configuration, and none is timed."""

    name = "one_configuration"
    what_it_changes = "time: kernels are not the fastest of several"

    def __init__(self, options: Mapping[str, bool]) -> None:
        self._options = options

    @property
    def code(self) -> tuple[str, ...]:
        """The edit as a person makes it."""
        names = [
            f"torch._inductor.config.{name} = {is_on}" for name, is_on in self._options.items()
        ]
        return ("import torch._inductor.config", *(f"{name}{_BEFORE}" for name in names))

    @contextmanager
    def applied(self) -> Iterator[None]:
        from torch._inductor import config

        self._differs = any(
            attrgetter(name)(config) != is_on for name, is_on in self._options.items()
        )
        with config.patch(dict(self._options)):
            yield

    def finding(self) -> Finding:
        return applied(self.code) if self._differs else already_used("no kernel is timed")


class TimedKernels(Cause):
    """Memory runs out while the configurations of a kernel are timed."""

    name = "the compiler times kernels"
    order = 6
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        function, file = _TIMING
        is_timed = any(name == function and path.endswith(file) for name, path in oom.functions)
        if not is_timed or not oom.frames:
            return None
        frames = (name.removeprefix(_NAMED) for name, _ in oom.functions if name.startswith(_NAMED))
        kernel = next(frames, "")
        options = _ONE_OF_ELEMENTWISE if kernel.startswith(_ELEMENTWISE) else _ONE_OF_REDUCTIONS
        change = OneConfiguration(options if kernel else {**_ONE_OF_ELEMENTWISE, **options})
        size = oom.request.requested + unnamed_at(oom, oom.frames[0].place)
        return self.found(
            size,
            f"Inductor takes {prose_size(size)} to time {kernel or 'a Triton kernel'}",
            *change.code,
            effect=saves(size),
            change=change,
        )
