"""A line-by-line GPU memory profiler for PyTorch, on a GPU or a simulated one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._common.process.version import __version__ as __version__
from ._common.text.displayed import registered_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._common.process.uncaught_errors import ErrorReport
    from .courtesy import Courtesy as Courtesy
    from .fitting.frame import fit as fit
    from .gpu_mem import (
        GPUMemory as GPUMemory,
        b2mb as b2mb,
        gpu_mem_allocate_mbs as gpu_mem_allocate_mbs,
        gpu_mem_get as gpu_mem_get,
        gpu_mem_get_all as gpu_mem_get_all,
        gpu_mem_get_free as gpu_mem_get_free,
        gpu_mem_get_free_mbs as gpu_mem_get_free_mbs,
        gpu_mem_get_free_no_cache as gpu_mem_get_free_no_cache,
        gpu_mem_get_free_no_cache_mbs as gpu_mem_get_free_no_cache_mbs,
        gpu_mem_get_mbs as gpu_mem_get_mbs,
        gpu_mem_get_total_mbs as gpu_mem_get_total_mbs,
        gpu_mem_get_used as gpu_mem_get_used,
        gpu_mem_get_used_fast as gpu_mem_get_used_fast,
        gpu_mem_get_used_mbs as gpu_mem_get_used_mbs,
        gpu_mem_get_used_no_cache as gpu_mem_get_used_no_cache,
        gpu_mem_get_used_no_cache_mbs as gpu_mem_get_used_no_cache_mbs,
        gpu_mem_leave_free_mbs as gpu_mem_leave_free_mbs,
        gpu_with_max_free_mem as gpu_with_max_free_mem,
        preload_pytorch as preload_pytorch,
        reduce_mem_usage as reduce_mem_usage,
    )
    from .integrations.scalars import MemoryScalars as MemoryScalars
    from .line_profiler.line_profiler import LineProfiler as LineProfiler
    from .line_profiler.profile import (
        clear_global_line_profiler as clear_global_line_profiler,
        display as display,
        profile as profile,
        profile_every as profile_every,
        set_target_gpu as set_target_gpu,
    )
    from .line_profiler.saved_profile import load as load
    from .mem_reporter import MemReporter as MemReporter
    from .mem_trace import GPUMemTrace as GPUMemTrace, gpu_mem_trace as gpu_mem_trace
    from .notebook.experiments import (
        IPyExperiments as IPyExperiments,
        IPyExperimentsCPU as IPyExperimentsCPU,
        IPyExperimentsGPU as IPyExperimentsGPU,
        IPyExperimentsPytorch as IPyExperimentsPytorch,
    )
    from .notebook.gpu_logger import IPyGPULogger as IPyGPULogger
    from .notebook.mem_watcher import MemWatcher as MemWatcher
    from .notebook.memory_usage import (
        start_watching_memory as start_watching_memory,
        stop_watching_memory as stop_watching_memory,
    )
    from .notebook.traceback_cleaning import (
        get_ref_free_exc_info as get_ref_free_exc_info,
        gpu_mem_restore as gpu_mem_restore,
        gpu_mem_restore_ctx as gpu_mem_restore_ctx,
        ipython_tb_clear_frames as ipython_tb_clear_frames,
        ipython_tb_clear_frames_ctx as ipython_tb_clear_frames_ctx,
        is_in_ipython as is_in_ipython,
    )
    from .out_of_memory import explain_oom as explain_oom
    from .render.environment import debug_info as debug_info
    from .scopes import HostScope as HostScope, PeakScope as PeakScope
    from .simulation import simulate as simulate
    from .simulation.inspect import GPU as GPU


_NAMES = {
    "courtesy": ("Courtesy",),
    "fitting.frame": ("fit",),
    "gpu_mem": (
        "GPUMemory",
        "b2mb",
        "gpu_mem_allocate_mbs",
        "gpu_mem_get",
        "gpu_mem_get_all",
        "gpu_mem_get_free",
        "gpu_mem_get_free_no_cache",
        "gpu_mem_get_free_mbs",
        "gpu_mem_get_free_no_cache_mbs",
        "gpu_mem_get_mbs",
        "gpu_mem_get_total_mbs",
        "gpu_mem_get_used_mbs",
        "gpu_mem_get_used_no_cache_mbs",
        "gpu_mem_get_used",
        "gpu_mem_get_used_fast",
        "gpu_mem_get_used_no_cache",
        "gpu_mem_leave_free_mbs",
        "gpu_with_max_free_mem",
        "preload_pytorch",
        "reduce_mem_usage",
    ),
    "integrations.scalars": ("MemoryScalars",),
    "line_profiler.line_profiler": ("LineProfiler",),
    "line_profiler.profile": (
        "clear_global_line_profiler",
        "display",
        "profile",
        "profile_every",
        "set_target_gpu",
    ),
    "line_profiler.saved_profile": ("load",),
    "mem_reporter": ("MemReporter",),
    "mem_trace": ("GPUMemTrace", "gpu_mem_trace"),
    "notebook.experiments": (
        "IPyExperiments",
        "IPyExperimentsCPU",
        "IPyExperimentsGPU",
        "IPyExperimentsPytorch",
    ),
    "notebook.gpu_logger": ("IPyGPULogger",),
    "notebook.mem_watcher": ("MemWatcher",),
    "notebook.memory_usage": ("start_watching_memory", "stop_watching_memory"),
    "notebook.traceback_cleaning": (
        "get_ref_free_exc_info",
        "gpu_mem_restore",
        "gpu_mem_restore_ctx",
        "ipython_tb_clear_frames",
        "ipython_tb_clear_frames_ctx",
        "is_in_ipython",
    ),
    "out_of_memory": ("explain_oom",),
    "scopes": ("HostScope", "PeakScope"),
    "simulation": ("simulate",),
    "render.environment": ("debug_info",),
    "simulation.inspect": ("GPU",),
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}

# ``import *`` would hide IPython's ``display``: in a notebook @profile says what to call.
__all__ = sorted(_HOMES.keys() - {"display"})


def __getattr__(name: str) -> Any:
    # Nothing is loaded before it is used: importing the package costs next to nothing.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._common.process.garbage_collection import no_garbage_collection

    with no_garbage_collection():
        value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


def _displays() -> tuple[Callable[[], None], ...]:
    from .render.displays import REGISTER

    return REGISTER


registered_by(_displays)


# Lower packages reach higher ones by these functions only.


def _report_of(error: BaseException) -> ErrorReport | None:
    from .out_of_memory import report_of

    return report_of(error)


def _cells_of(shell: Any) -> Any:
    from .notebook.cell_events import cell_events

    return cell_events(shell)


def _repeated_cells_of(shell: Any, room: int) -> Any:
    from .notebook.repeated_cells import repeated_cells

    return repeated_cells(shell, room)


def _short_traceback(error: BaseException) -> list[str]:
    from .notebook.usage_errors import rendered

    return rendered(error)


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: ``%load_ext pytorch_memlab`` calls this.

    Args:
        shell: the IPython shell.
    """
    from .notebook.imu_magics import ImuMagics
    from .notebook.magics import MemlabMagics

    shell.register_magics(MemlabMagics, ImuMagics)


def unload_ipython_extension(shell: Any) -> None:  # noqa: ARG001 - IPython gives it
    """End what the magics have begun: ``%unload_ext pytorch_memlab`` calls this.

    ``%reload_ext`` ends nothing: a simulation goes on with its tensors.

    Args:
        shell: the IPython shell.
    """
    from .notebook.magics import end_everything
    from .notebook.shell import is_reloading

    if not is_reloading():
        end_everything()


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
