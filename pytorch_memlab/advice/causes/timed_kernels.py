"""The compiler times its Triton kernels at their first launch, which takes memory."""

from __future__ import annotations

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..cause import Cause, Remedy, Results, saves
from ..inductor_options import InductorOptions, bytes_to_time

_NAMED = "timing of "
"""What a simulation calls the frame above it, before the name of the kernel."""
_ELEMENTWISE = "triton_poi_"
_ONE_OF_ELEMENTWISE = {"triton.autotune_pointwise": False}
_ONE_OF_REDUCTIONS = {"deterministic": True}
"""Options that leave a kernel one configuration."""


class OneConfiguration(InductorOptions):
    """Kernels have one configuration, and none is timed."""

    name = "one_configuration"
    what_it_changes = "time: kernels are not the fastest of several"
    reason_if_used = "no kernel is timed"


class TimedKernels(Cause):
    """Memory runs out while the configurations of a kernel are timed."""

    name = "the compiler times kernels"
    order = 6
    results = Results.ROUNDING

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        size = bytes_to_time(oom, "benchmark_all_configs", "triton_heuristics.py")
        if size is None:
            return None
        frames = (name.removeprefix(_NAMED) for name, _ in oom.functions if name.startswith(_NAMED))
        kernel = next(frames, "")
        options = _ONE_OF_ELEMENTWISE if kernel.startswith(_ELEMENTWISE) else _ONE_OF_REDUCTIONS
        change = OneConfiguration(options if kernel else {**_ONE_OF_ELEMENTWISE, **options})
        return self.found(
            size,
            f"Inductor takes {prose_size(size)} to time {kernel or 'a Triton kernel'}",
            *change.code,
            effect=saves(size),
            change=change,
        )
