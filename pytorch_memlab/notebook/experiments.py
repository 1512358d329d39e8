"""``IPyExperiments``: a scope over several cells, at whose end its variables are gone."""

from __future__ import annotations

import sys
import traceback
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from .._common.text.prose_size import prose_size
from .._common.text.quoted import quoted
from ..devices.allocations import count_gpus, current_gpu
from ..errors import UsageError
from ..gpu_mem import preload_pytorch
from ..profiles.cells import MemoryState, growth
from .assigned_names import assignment_target
from .cell_logger import CellLogger
from .ram import CurrentRAM
from .running_experiment import RunningExperiment, memory_now
from .shell import current_shell, is_resetting

if TYPE_CHECKING:
    from typing import Self, Unpack

    from IPython.core.interactiveshell import InteractiveShell

_BACKENDS = ("cpu", "pytorch")
_POLICIES = ("keep", "delete", "restore")

Stats = dict[str, int]
"""Bytes: ``gen_ram``, ``gpu_ram`` of the current GPU, with several GPUs ``gpu_ram_0`` and so on."""


class IPyExperimentMemory(NamedTuple):
    """Memory of one kind, in bytes."""

    consumed: int  # by the experiment
    reclaimed: int  # at its end
    available: int  # at its end


class IPyExperimentData(NamedTuple):
    """Memory of an experiment.

    Args:
        cpu: resident memory of the process.
        gpu: allocated memory of the current GPU; zeros without one.
    """

    cpu: IPyExperimentMemory
    gpu: IPyExperimentMemory


class IPyExperiments(CurrentRAM):
    """An experiment: variables that cells define from now on are deleted when it finishes.

    It finishes with ``finish()``, at the end of a ``with`` block, when its variable is deleted or
    assigned again, and when an experiment is begun under the same name. Then memory is reclaimed:
    garbage is collected, the traceback of a cell that failed and results in ``Out`` are released,
    the GPU's cache is emptied; and a report is printed.

    Args:
        backend: ``pytorch``, or ``cpu`` for the process alone.
        rebound: policy for variables that existed before and that a cell reassigned (found from
            the source of the cells): ``keep`` them with their new values, ``delete``
            them, or ``restore`` the values that they had. They are reported in any case.
        exp_enable: makes it an experiment; otherwise it logs cells and deletes nothing.
        cl_enable: lets ``cl`` report on every cell from now on; by default only if nothing else
            was asked for: without an experiment, or with a seed.
        cl_compact: makes such a report one line.
        cl_gc_collect: collects garbage before the memory of a cell is read.
        cl_set_seed: of all random numbers before every cell while ``cl`` reports; 0 for none.

    Raises:
        UsageError: this is not IPython, there is no such backend, no GPU for it, or no such
            policy or seed.
    """

    def __init__(
        self,
        backend: str = "pytorch",
        *,
        rebound: str = "keep",
        exp_enable: bool = True,
        cl_enable: bool | None = None,
        cl_compact: bool = False,
        cl_gc_collect: bool = True,
        cl_set_seed: int = 0,
    ) -> None:
        __tracebackhide__ = True  # IPython leaves this frame out of an error, such as on a full GPU
        shell = current_shell()
        if rebound not in _POLICIES:
            raise UsageError(f"rebound is one of {', '.join(_POLICIES)}, not {quoted(rebound)}")
        if backend not in _BACKENDS:
            raise UsageError(f"no backend {quoted(backend)}: there is {', '.join(_BACKENDS)}")
        self.backend = backend
        callers = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
        caller = next(frame for frame in callers if frame.f_globals is not globals())
        # None for code that no cell runs.
        cell = next((frame for frame in callers if _is_cell(frame, shell)), None)
        if cell is not None and cell is caller:
            former = shell.user_ns.get(assignment_target(cell) or "")
            if isinstance(former, IPyExperiments):
                former.finish()
        self.backend_load()
        self.cl = CellLogger(
            follows_gpu=self._current_gpu() is not None,
            compact=cl_compact,
            gc_collect=cl_gc_collect,
            seed=cl_set_seed,
        )
        self._running: RunningExperiment | None = None
        if exp_enable:
            self._running = RunningExperiment(shell, self, self.cl.stop, backend, rebound, cell)
        if cl_enable if cl_enable is not None else not exp_enable or cl_set_seed:
            self.cl.start()

    def backend_load(self) -> None:
        """Load what the first use of the backend would load, so that it counts in no experiment."""
        __tracebackhide__ = True
        if self.backend == "pytorch":
            if not count_gpus():
                raise UsageError(
                    "backend 'pytorch' needs a CUDA GPU and there is none here: use "
                    "IPyExperiments('cpu'), or simulate a GPU with %simulate h100"
                )
            preload_pytorch()

    def get_stats(self) -> tuple[Stats, Stats, Stats]:
        """The memory that it has consumed and reclaimed so far, and that is available.

        Returns:
            three dicts of bytes. Consumed of a GPU are allocated bytes, available the free bytes
            of the whole GPU; nothing is reclaimed before it has finished. With
            ``exp_enable=False`` nothing is consumed.
        """
        running = self._running
        if running is not None and running.outcome is not None:
            outcome = running.outcome
            return self._stats(outcome.start, outcome.end, outcome.after)
        now = memory_now(with_gpus=self.backend == "pytorch")
        return self._stats(now if running is None else running.start, now, now)

    def keep_var_names(self, *names: str) -> None:
        """Let variables stay when it finishes.

        Args:
            names: of the variables, not their values.

        Raises:
            UsageError: one is not a name.
        """
        for name in names:
            if not isinstance(name, str):
                raise UsageError(
                    "keep_var_names takes names, not values: keep_var_names('x1', 'x2'), "
                    f"not {type(name).__name__}"
                )
        if self._running is not None:
            self._running.keep(names)

    def get_var_names(self) -> list[str]:
        """The names of the variables that cells have defined since it began, sorted."""
        return [] if self._running is None else self._running.new_names()

    def start(self) -> None:
        """It runs from its construction on: this has no effect, and older programs call it."""

    def finish(self) -> tuple[Stats, Stats, Stats]:
        """End it: delete its variables, reclaim memory, print the report; once.

        Returns:
            what it consumed, what was reclaimed, and what is available now, in bytes.
        """
        self._end()
        return self.get_stats()

    @property
    def data(self) -> IPyExperimentData:
        """The same numbers by name."""
        stats = self.get_stats()
        return IPyExperimentData(
            IPyExperimentMemory(*(stat["gen_ram"] for stat in stats)),
            IPyExperimentMemory(*(stat["gpu_ram"] for stat in stats)),
        )

    def __repr__(self) -> str:
        """Its backend, its state, and the memory that it reclaimed."""
        running = self._running
        if running is None:
            state = "a log of cells"
        elif running.outcome is None:
            state = "running"
        else:
            host, gpu = (prose_size(max(0, memory.reclaimed)) for memory in self.data)
            state = f"finished, {host} reclaimed on the host and {gpu} on the GPU"
        return f"<{type(self).__name__} with backend {self.backend}: {state}>"

    def __enter__(self) -> Self:
        """It runs already."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End it; an exception goes on, without the variables of its frames."""
        self._end(error)

    def __del__(self) -> None:
        # What failed to begin has nothing to finish.
        if sys.is_finalizing() or not hasattr(self, "_running"):
            return
        if not is_resetting():
            self._end()
            return
        self.cl.stop(report=False)
        if self._running is not None:
            self._running.abandon()

    def _end(self, error: BaseException | None = None) -> None:
        self.cl.stop()
        if self._running is not None:
            self._running.finish(error)

    def _current_gpu(self) -> int | None:
        return current_gpu() if self.backend == "pytorch" else None

    def _stats(
        self, start: MemoryState, end: MemoryState, after: MemoryState
    ) -> tuple[Stats, Stats, Stats]:
        available = {gpu.index: gpu.free for gpu in after.gpus}
        return (
            self._by_name(*growth(start, end)),
            self._by_name(*growth(after, end)),
            self._by_name(after.free, available),
        )

    def _by_name(self, general: int, gpus: dict[int, int]) -> Stats:
        current = self._current_gpu()
        stats = {"gen_ram": general, "gpu_ram": 0 if current is None else gpus.get(current, 0)}
        if len(gpus) > 1:
            stats |= {f"gpu_ram_{index}": nbytes for index, nbytes in gpus.items()}
        return stats


class ExperimentOptions(TypedDict, total=False):
    """The keywords of every experiment."""

    rebound: str
    exp_enable: bool
    cl_enable: bool | None
    cl_compact: bool
    cl_gc_collect: bool
    cl_set_seed: int


class IPyExperimentsCPU(IPyExperiments):
    """An experiment that follows the process alone.

    Args:
        options: as ``IPyExperiments`` takes them.
    """

    def __init__(self, **options: Unpack[ExperimentOptions]) -> None:
        super().__init__("cpu", **options)


class IPyExperimentsPytorch(IPyExperiments):
    """An experiment that follows the process and the GPUs that PyTorch uses.

    Args:
        options: as ``IPyExperiments`` takes them.
    """

    def __init__(self, **options: Unpack[ExperimentOptions]) -> None:
        super().__init__("pytorch", **options)


IPyExperimentsGPU = IPyExperimentsPytorch


def _is_cell(frame: FrameType, shell: InteractiveShell) -> bool:
    return frame.f_globals is shell.user_ns and frame.f_code.co_name == "<module>"
