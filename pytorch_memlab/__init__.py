"""A line-by-line GPU memory profiler for PyTorch, on a GPU or a simulated one."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._common.version import __version__ as __version__

if TYPE_CHECKING:
    from ._common.uncaught_errors import Report
    from .courtesy import Courtesy
    from .fitting.frame import fit
    from .gpu_mem import (
        GPUMemory,
        b2mb,
        gpu_mem_allocate_mbs,
        gpu_mem_get,
        gpu_mem_get_all,
        gpu_mem_get_free,
        gpu_mem_get_free_no_cache,
        gpu_mem_get_used,
        gpu_mem_get_used_fast,
        gpu_mem_get_used_no_cache,
        gpu_mem_leave_free_mbs,
        gpu_with_max_free_mem,
        preload_pytorch,
    )
    from .line_profiler.line_profiler import LineProfiler
    from .line_profiler.profile import (
        clear_global_line_profiler,
        display as display,
        profile,
        profile_every,
        set_target_gpu,
    )
    from .line_profiler.saved_profile import (
        load as load,
    )
    from .mem_reporter import MemReporter
    from .mem_trace import (
        GPUMemTrace,
        gpu_mem_trace,
    )
    from .notebook.experiments import (
        IPyExperiments,
        IPyExperimentsCPU,
        IPyExperimentsPytorch,
    )
    from .notebook.gpu_logger import IPyGPULogger
    from .notebook.mem_watcher import MemWatcher
    from .notebook.memory_usage import (
        start_watching_memory,
        stop_watching_memory,
    )
    from .notebook.traceback_cleaning import (
        get_ref_free_exc_info,
        gpu_mem_restore,
        gpu_mem_restore_ctx,
        ipython_tb_clear_frames,
        ipython_tb_clear_frames_ctx,
        is_in_ipython,
    )
    from .out_of_memory import explain_oom
    from .scopes import (
        HostScope,
        PeakScope,
    )
    from .simulation import simulate
    from .simulation.inspect import GPU


_HOMES = {
    "GPU": "simulation.inspect",
    "Courtesy": "courtesy",
    "GPUMemTrace": "mem_trace",
    "GPUMemory": "gpu_mem",
    "HostScope": "scopes",
    "IPyExperiments": "notebook.experiments",
    "IPyExperimentsCPU": "notebook.experiments",
    "IPyExperimentsPytorch": "notebook.experiments",
    "IPyGPULogger": "notebook.gpu_logger",
    "LineProfiler": "line_profiler.line_profiler",
    "MemReporter": "mem_reporter",
    "MemWatcher": "notebook.mem_watcher",
    "PeakScope": "scopes",
    "b2mb": "gpu_mem",
    "clear_global_line_profiler": "line_profiler.profile",
    "display": "line_profiler.profile",
    "explain_oom": "out_of_memory",
    "fit": "fitting.frame",
    "get_ref_free_exc_info": "notebook.traceback_cleaning",
    "gpu_mem_allocate_mbs": "gpu_mem",
    "gpu_mem_get": "gpu_mem",
    "gpu_mem_get_all": "gpu_mem",
    "gpu_mem_get_free": "gpu_mem",
    "gpu_mem_get_free_no_cache": "gpu_mem",
    "gpu_mem_get_used": "gpu_mem",
    "gpu_mem_get_used_fast": "gpu_mem",
    "gpu_mem_get_used_no_cache": "gpu_mem",
    "gpu_mem_leave_free_mbs": "gpu_mem",
    "gpu_mem_restore": "notebook.traceback_cleaning",
    "gpu_mem_restore_ctx": "notebook.traceback_cleaning",
    "gpu_mem_trace": "mem_trace",
    "gpu_with_max_free_mem": "gpu_mem",
    "ipython_tb_clear_frames": "notebook.traceback_cleaning",
    "ipython_tb_clear_frames_ctx": "notebook.traceback_cleaning",
    "is_in_ipython": "notebook.traceback_cleaning",
    "load": "line_profiler.saved_profile",
    "preload_pytorch": "gpu_mem",
    "profile": "line_profiler.profile",
    "profile_every": "line_profiler.profile",
    "set_target_gpu": "line_profiler.profile",
    "simulate": "simulation",
    "start_watching_memory": "notebook.memory_usage",
    "stop_watching_memory": "notebook.memory_usage",
}

# All but ``display`` and ``load``: ``import *`` would hide IPython's own and numpy's.
__all__ = [
    "GPU",
    "Courtesy",
    "GPUMemTrace",
    "GPUMemory",
    "HostScope",
    "IPyExperiments",
    "IPyExperimentsCPU",
    "IPyExperimentsPytorch",
    "IPyGPULogger",
    "LineProfiler",
    "MemReporter",
    "MemWatcher",
    "PeakScope",
    "b2mb",
    "clear_global_line_profiler",
    "explain_oom",
    "fit",
    "get_ref_free_exc_info",
    "gpu_mem_allocate_mbs",
    "gpu_mem_get",
    "gpu_mem_get_all",
    "gpu_mem_get_free",
    "gpu_mem_get_free_no_cache",
    "gpu_mem_get_used",
    "gpu_mem_get_used_fast",
    "gpu_mem_get_used_no_cache",
    "gpu_mem_leave_free_mbs",
    "gpu_mem_restore",
    "gpu_mem_restore_ctx",
    "gpu_mem_trace",
    "gpu_with_max_free_mem",
    "ipython_tb_clear_frames",
    "ipython_tb_clear_frames_ctx",
    "is_in_ipython",
    "preload_pytorch",
    "profile",
    "profile_every",
    "set_target_gpu",
    "simulate",
    "start_watching_memory",
    "stop_watching_memory",
]


def __getattr__(name: str) -> Any:
    # Nothing is loaded before it is used: importing the package costs next to nothing.
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ._common.garbage_collection import no_garbage_collection

    with no_garbage_collection():
        value = getattr(importlib.import_module(f".{home}", __name__), name)
    globals()[name] = value
    return value


# Lower packages reach higher ones by these three functions only.


def _report_of(error: BaseException) -> Report | None:
    from .out_of_memory import report_of

    return report_of(error)


def _cells_of(shell: Any) -> Any:
    from .notebook.cell_events import cell_events

    return cell_events(shell)


def _short_traceback(error: BaseException) -> list[str]:
    from .notebook.usage_errors import rendered

    return rendered(error)


def load_ipython_extension(shell: Any) -> None:
    """Register the magics: ``%load_ext pytorch_memlab`` calls this.

    Args:
        shell: the IPython shell.
    """
    from .notebook.magics import MemlabMagics

    shell.register_magics(MemlabMagics)


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
