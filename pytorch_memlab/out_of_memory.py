"""Who explains an out-of-memory error, and when: after the traceback of an error nobody handled.

Note [When a report is shown]
A report is for errors that end something. Where one leaves a simulation, a profiled block or a
program under ``run``, nobody knows yet whether an outer handler waits for it. So the report is made
there, while the tensors are alive, and waits until the error is shown: by ``sys.excepthook``, by
``threading.excepthook`` or by IPython. If a handler takes the error, the report goes with it. An
error that leaves an ``explain_oom`` block was asked about: its report is shown also if a handler
takes the error, when the handler is done with it.
"""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ._common.wrapping import decorated

if TYPE_CHECKING:
    from types import CodeType

    from typing_extensions import Self

    from .history.out_of_memory import OutOfMemory

    Function = TypeVar("Function", bound=Callable[..., Any])


class Report:
    """The report of one error.

    Args:
        facts: None if nothing could be found out.
        text: what is shown.

    Attributes:
        is_shown: whether it was printed, or somebody else is going to.
        is_asked_for: whether it is shown even if a handler takes the error.
        is_written: whether a file has it.
        is_of_cell: whether it was made in a cell of a notebook that has not ended.
    """

    def __init__(self, facts: OutOfMemory | None, text: str) -> None:
        self.facts = facts
        self.text = text
        self.is_shown = False
        self.is_asked_for = False
        self.is_written = False
        self.is_of_cell = False

    def show(self) -> None:
        """Print it as the last thing, once."""
        if not self.is_shown:
            self.is_shown = True
            say(self.text)


class _Uncaught:
    """The hooks that see errors nobody handled, for as long as anything waits for one."""

    def __init__(self) -> None:
        self._watching = 0
        self._reports: dict[int, tuple[weakref.ref[BaseException], Report]] = {}
        self._lock = threading.RLock()
        self._hooks: list[tuple[Any, Any, Any]] = []
        self._listener: _CellListener | None = None
        self._cells: Any = None
        self.told: list[Callable[[BaseException, Report], object]] = []
        """Called with an error that was shown and its report, which may be shown already."""

    def watch(self) -> None:
        """Explain errors that nobody handles, until ``unwatch``."""
        with self._lock:
            self._watching += 1
            self._install()

    def unwatch(self) -> None:
        """Undo one ``watch``."""
        with self._lock:
            self._watching -= 1
            self._uninstall()

    def add(self, error: BaseException, *, is_asked_for: bool = False) -> Report | None:
        """The report of an error that leaves a block, made now and shown later.

        Args:
            error: any.
            is_asked_for: show it even if a handler takes the error.

        Returns:
            None if the error does not come from a GPU that ran out of memory.
        """
        origin = _origin(error)
        if origin is None:
            return None
        with self._lock:
            known = self._reports.get(id(origin))
            report = known[1] if known is not None and known[0]() is origin else None
            if report is None:
                report = _made(origin)
                if report is None:
                    return None
                gone = partial(self._gone, id(origin))
                self._reports[id(origin)] = (weakref.ref(origin, gone), report)
                self._install()
                report.is_of_cell = self._listener is not None
            report.is_asked_for |= is_asked_for
            return report

    def shown(self, error: BaseException | None) -> None:
        """The traceback of an error was shown: its report follows."""
        if error is None:
            return
        with suppress(Exception):
            report = self.add(error)
            if report is not None:
                for tell in self.told.copy():
                    tell(error, report)
                report.show()
        with self._lock:
            self._uninstall()

    def cell_ended(self, error: BaseException | None) -> None:
        """A cell has ended, and IPython has shown the traceback of its error, if any."""
        self.shown(error)
        with self._lock:
            for _, report in self._reports.values():
                report.is_of_cell = False
            self._uninstall()

    def _gone(self, key: int, _reference: object) -> None:
        with self._lock:
            found = self._reports.pop(key, None)
            if found is not None and found[1].is_asked_for:
                found[1].show()
            self._uninstall()

    def _install(self) -> None:
        if not self._hooks:
            modules: tuple[Any, ...] = (sys, threading)
            for module in modules:
                before = module.excepthook
                hook = module.excepthook = partial(_hook, before)
                self._hooks.append((module, before, hook))
        shell = _shell()
        if shell is not None:
            from .notebook.cell_events import cell_events

            if self._cells is not cell_events(shell):
                self._stop_listening()
                self._listener = _CellListener()
                self._cells = cell_events(shell)
                self._cells.add(self._listener)

    def _uninstall(self) -> None:
        waiting = [report for _, report in self._reports.values() if not report.is_shown]
        if not self._watching and not any(report.is_of_cell for report in waiting):
            self._stop_listening()
        if self._watching or waiting:
            return
        for module, before, hook in self._hooks:
            if module.excepthook is hook:
                module.excepthook = before
        self._hooks = []

    def _stop_listening(self) -> None:
        listener, self._listener = self._listener, None
        cells, self._cells = self._cells, None
        if listener is not None and cells is not None:
            cells.remove(listener)


class _CellListener:
    """Explains what ended a cell of a notebook."""

    def cell_began(self, cell: Any, /) -> None:
        """Nothing is done before an error."""

    def cell_ended(self, cell: Any, result: Any, /) -> None:  # noqa: ARG002 - IPython's traceback is shown
        """A cell has ended, and IPython has shown the traceback of its error."""
        uncaught.cell_ended(getattr(result, "error_in_exec", None))


uncaught = _Uncaught()


@overload
def explain_oom(func: Function) -> Function: ...
@overload
def explain_oom(func: None = None) -> Explained: ...
def explain_oom(func: Any = None) -> Any:
    """Explain it if a GPU runs out of memory in a block or a function.

    The report goes to standard error, after the traceback: the line, what it asked for, what holds
    the memory, and what would help. An error that the block itself handles is not explained.

    Args:
        func: to decorate; none for a context manager.

    Returns:
        The decorated function, or a context manager whose ``report`` is the text after an error.

    Raises:
        UsageError: it is no function.

    >>> from pytorch_memlab import simulate
    >>> import torch
    >>> with simulate("1GiB"), explain_oom() as explained:
    ...     kept = torch.empty(2**20, device="cuda")
    >>> print(explained.report)
    None
    """
    if func is None:
        return Explained()
    return decorated(Explained, func, "explain_oom")


class Explained:
    """A block whose out-of-memory error is explained; a decorator too.

    Attributes:
        report: the text, None if no such error left the block.
    """

    def __init__(self) -> None:
        self.report: str | None = None

    def __enter__(self) -> Self:
        """Begin."""
        from .devices.failed_request import observe

        observe()
        uncaught.watch()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Make the report, if an error left the block."""
        try:
            found = None if error is None else uncaught.add(error, is_asked_for=True)
            self.report = None if found is None else found.text
        finally:
            uncaught.unwatch()

    def __repr__(self) -> str:
        """The first line of the report."""
        found = "no such error" if self.report is None else self.report.strip().partition("\n")[0]
        return f"<explain_oom: {found}>"

    def _repr_html_(self) -> str | None:
        """The report as a notebook shows it; None, for the line alone, if there is none."""
        if self.report is None:
            return None
        from .render import notebook

        return notebook.block([notebook.plain(self.report.strip("\n"), "Out of memory")])

    def __call__(self, func: Function) -> Function:
        """Decorate a function."""
        return decorated(Explained, func, "explain_oom")  # type: ignore[no-any-return]


def _hook(before: Callable[..., object], *args: Any) -> None:
    """What ``sys.excepthook`` and ``threading.excepthook`` are while anything is watched."""
    error = args[1] if len(args) > 1 else getattr(args[0], "exc_value", None)
    try:
        before(*args)
    finally:
        uncaught.shown(error)


def failure_in(
    error: BaseException,
) -> tuple[int, list[tuple[CodeType, int]]] | None:
    """What an out-of-memory error asked for, and the lines that it went through.

    Args:
        error: any.

    Returns:
        bytes that the program asked for, and code with line numbers; None for any other error.
    """
    origin = _origin(error)
    if origin is None:
        return None
    report = uncaught.add(error)
    if report is None or report.facts is None:
        return None
    asked = report.facts.request.requested
    chain = [one for one in _chain(error) if one.__traceback__ is not None]
    frames = [each for one in chain for each in traceback.walk_tb(one.__traceback__)]
    return asked, [(frame.f_code, line) for frame, line in frames]


def _origin(error: BaseException) -> BaseException | None:
    """The out-of-memory error in the chain of an error, the one that was raised last."""
    torch: Any = sys.modules.get("torch")
    kind = getattr(torch, "OutOfMemoryError", None)
    if kind is None:
        return None
    return next((one for one in _chain(error) if isinstance(one, kind)), None)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, the exceptions of a group, and what it was raised from; not what was handled."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, None if one.__suppress_context__ else one.__context__]
        left += getattr(one, "exceptions", ())


def _made(error: BaseException) -> Report | None:
    """The report of an error; it never raises, and says which part of it failed."""
    try:
        from .devices.failed_request import failed_on_gpu
        from .render.oom import text
        from .reporter.out_of_memory import found_out

        simulated = _failed_on_simulated_gpu(error)
        failed = failed_on_gpu(error) if simulated is None else simulated.request
        if failed is None:
            return None
        facts = found_out(failed, error, simulated)
        return Report(facts, text(facts))
    except Exception as problem:
        kind = type(problem).__name__
        return Report(None, f"pytorch_memlab: the out-of-memory report failed: {kind}\n")


def _failed_on_simulated_gpu(error: BaseException) -> Any:
    from .devices import simulated_machine

    machine = simulated_machine()
    words = str(error)
    for gpu in () if machine is None else machine.known_gpus:
        failure = gpu.failure
        if failure is not None and failure.request.text in words:
            return failure
    return None


def say(text: str) -> None:
    """Print a report on standard error, whatever state that is in."""
    stream = sys.stderr
    if stream is None:
        return
    with suppress(Exception):
        stream.write(f"\n{text}")
        stream.flush()


def is_in_shell() -> bool:
    """Whether IPython runs the program."""
    return _shell() is not None


def _shell() -> Any:
    module = sys.modules.get("IPython")
    return None if module is None else module.get_ipython()
