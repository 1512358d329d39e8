"""An experiment that runs: the variables from before it, those assigned since, and its end."""

from __future__ import annotations

import gc
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from ..devices import simulated_machine
from ..devices.allocations import allocated_memory, count_gpus, driver_memory, empty_caches
from ..profiles.cells import FinishedExperiment, GPUState, MemoryState
from ..render.experiment_report import finish_text, start_text
from .assigned_names import assigned_names, body_of
from .cell_events import Cell, cell_events
from .shell import last_cell_number, running_source
from .traceback_cleaning import clear_frames, forget_last_error

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_CACHED_OUTPUT = re.compile(r"_{1,3}|_\d+")
_MISSING: Any = object()


def memory_now(*, with_gpus: bool) -> MemoryState:
    """Memory of this process, of the system and of all GPUs that the program can use."""
    import psutil

    return MemoryState(
        psutil.virtual_memory().available,
        psutil.Process().memory_info().rss,
        tuple(
            GPUState(index, allocated_memory(index), *driver_memory(index))
            for index in range(count_gpus() if with_gpus else 0)
        ),
    )


class RunningExperiment:
    """The experiment of a shell. It ends at the end of the cell after which no variable is it."""

    # It holds no reference to the user's ``IPyExperiments``, which is the handle.

    def __init__(
        self,
        shell: InteractiveShell,
        handle: Any,
        stop_logging: Callable[[], object],  # called before such an end
        backend: str,
        policy: str,
        cell: FrameType | None,
    ) -> None:
        self._shell = shell
        self._handle = weakref.ref(handle)
        self._stop_logging = stop_logging
        self._with_gpus = backend == "pytorch"
        self._policy = policy
        self._events = cell_events(shell)
        self._keep: dict[str, None] = {}
        self._failed = False
        self._was_bound = False
        self.outcome: FinishedExperiment | None = None
        self._before = _variable_names(shell)
        self._values = {name: shell.user_ns[name] for name in self._before if policy == "restore"}
        self._assigned: set[str] = set()
        self._first_cell = last_cell_number(shell)
        self._memory_now()  # the first time it imports psutil, which leaves garbage behind
        gc.collect()
        self._empty_cache()
        self._began = time.perf_counter()
        self.start = self._memory_now()
        self._events.add(self)
        # cell_began counted the whole running cell, also the lines before this one.
        source = "" if cell is None else running_source(shell, cell)
        self._assigned = self._assigned_in(source, 0 if cell is None else cell.f_lineno)
        print(start_text(backend, self.start))

    def new_names(self) -> list[str]:
        """The variables that would be deleted or kept now."""
        names = _variable_names(self._shell) - self._before
        return sorted(name for name in names if not self._is_experiment(name))

    def keep(self, names: tuple[str, ...]) -> None:
        self._keep |= dict.fromkeys(names)

    def finish(self, error: BaseException | None = None) -> None:
        """Delete its variables, reclaim memory, and report; again has no effect."""
        if self.outcome is None:
            self._events.remove(self)
            self.outcome = self._finish(error)
            print(finish_text(self.outcome))

    def abandon(self) -> None:
        """Follow no more cells, and release the values from before, without a report."""
        self._events.remove(self)
        self._values.clear()

    def cell_began(self, cell: Cell, /) -> None:
        self._assigned |= self._assigned_in(cell.source)

    def cell_ended(self, cell: Cell, result: Any, /) -> None:
        """Note a failure, and whether a variable still refers to the experiment."""
        if result.error_in_exec is not None:
            self._failed = True
        handle = self._handle()
        is_bound = any(value is handle for value in self._shell.user_ns.values())
        if self._was_bound and not is_bound:
            # A traceback may hold the experiment long after the user has deleted it.
            self._stop_logging()
            self.finish()
        self._was_bound = is_bound

    def _finish(self, error: BaseException | None) -> FinishedExperiment:
        end = self._memory_now()
        if error is not None:
            clear_frames(error)
        names = _variable_names(self._shell)
        new = self.new_names()
        kept = [name for name in new if name in self._keep]
        deleted = [name for name in new if name not in self._keep]
        assigned = self._assigned & self._before & names - set(self._keep)
        reassigned = sorted(name for name in assigned if not self._is_experiment(name))
        if self._failed or sys.exc_info()[1] is not None:
            forget_last_error(self._shell)
        _delete_variables(self._shell, deleted)
        reassigned_are = self._apply_policy(reassigned)
        _forget_outputs(self._shell, lambda number, value: number >= self._first_cell)
        machine = simulated_machine()
        garbage = len(gc.garbage)
        collected = gc.collect()
        self._empty_cache()
        return FinishedExperiment(
            deleted=deleted,
            kept=kept,
            not_found=sorted(set(self._keep) - names),
            reassigned=reassigned,
            reassigned_are=reassigned_are,
            collected=collected,
            uncollectable=len(gc.garbage) - garbage,
            start=self.start,
            end=end,
            after=self._memory_now(),
            seconds=time.perf_counter() - self._began,
            host_has_gpus=machine is not None and not machine.is_dry_run,
        )

    def _memory_now(self) -> MemoryState:
        return memory_now(with_gpus=self._with_gpus)

    def _empty_cache(self) -> None:
        if self._with_gpus:
            empty_caches()

    def _apply_policy(self, reassigned: list[str]) -> str:
        """Keep, delete or restore variables from before; the word for what was done."""
        values, self._values = self._values, {}
        if self._policy == "delete":
            _delete_variables(self._shell, reassigned)
            return "deleted"
        if self._policy == "restore":
            _delete_variables(self._shell, reassigned)
            self._shell.user_ns.update({name: values[name] for name in reassigned})
            return "restored"
        return "kept"

    def _assigned_in(self, source: str, after_line: int = 0) -> set[str]:
        try:
            python = self._shell.transform_cell(body_of(source))
        except SyntaxError:
            return set()
        return assigned_names(python, after_line)

    def _is_experiment(self, name: str) -> bool:
        return hasattr(type(self._shell.user_ns[name]), "keep_var_names")


def _variable_names(shell: InteractiveShell) -> set[str]:
    """Names that the user has defined: none of IPython's own, none that begin with ``_``."""
    hidden = shell.user_ns_hidden
    return {
        name
        for name, value in shell.user_ns.items()
        if not name.startswith("_") and value is not hidden.get(name, _MISSING)
    }


def _delete_variables(shell: InteractiveShell, names: Iterable[str]) -> None:
    """Delete variables, those of scripts of ``%run`` too, and their objects in ``Out``."""
    deleted = {}
    for name in names:
        if name in shell.user_ns:
            value = shell.user_ns.pop(name)
            deleted[id(value)] = value
            for script in shell._main_mod_cache.values():
                script.__dict__.pop(name, None)
    for name, value in shell.user_ns.items():
        if not _CACHED_OUTPUT.fullmatch(name):
            deleted.pop(id(value), None)
    _forget_outputs(shell, lambda number, value: id(value) in deleted)


def _forget_outputs(shell: InteractiveShell, is_to_go: Any) -> None:
    outputs = shell.user_ns.get("Out", {})
    for number in [key for key, value in outputs.items() if is_to_go(key, value)]:
        value = outputs.pop(number)
        # IPython keeps each result under several names, and all of these a second time as hidden.
        for namespace in (shell.user_ns, shell.user_ns_hidden):
            namespace.pop(f"_{number}", None)
            for name in ("_", "__", "___"):
                if namespace.get(name) is value:
                    namespace[name] = ""
        for name in ("_", "__", "___"):
            if getattr(shell.displayhook, name, None) is value:
                setattr(shell.displayhook, name, "")
