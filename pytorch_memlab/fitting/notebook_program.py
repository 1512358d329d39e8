"""The cells of a notebook that have run, as one program."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from .._common.process.ipython import CELL_NAMES
from .._common.text.source_lines import source_lines
from .._common.torch.optimizer_steps import ProgramDone
from ..simulation.inspect import active
from .change import Change
from .watched_source import watched

_RESULT: Final = "__memlab_result__"


@dataclass(frozen=True, slots=True)
class CodeCell:
    """One cell: Python, without the magics that a second run does not need."""

    number: int
    file: str  # name of its code in tracebacks
    text: str
    failed: bool  # whether it ended with an error
    keeps_result: bool  # whether IPython keeps the value of its last line

    @property
    def name(self) -> str:
        return f"In[{self.number}]"


@dataclass(frozen=True, slots=True)
class CellsTarget:
    """The cells, run one after another in one namespace."""

    cells: tuple[CodeCell, ...]
    room: int  # bytes of each GPU that PyTorch can have; cells that failed run within it

    is_repeated = False

    @property
    def name(self) -> str:
        return self.cells[-1].name

    def show_sources(self) -> None:
        import_module("IPython.core.interactiveshell")  # once, for all forks
        for cell in self.cells:
            lines = source_lines(cell.text, keepends=True)
            linecache.cache[cell.file] = (len(cell.text), None, lines, cell.file)
            CELL_NAMES[cell.file] = cell.name

    @contextmanager
    def started(self, changes: Sequence[Change]) -> Iterator[Callable[[], object]]:  # noqa: ARG002 - edited lines are in linecache
        from IPython.core.interactiveshell import InteractiveShell
        from traitlets.config import Config

        # Without the file of the user's history. The shell makes itself ``__main__``.
        shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
        yield lambda: self._run(shell.user_ns)

    def used_storages(self) -> frozenset[int]:
        """A notebook begins without tensors."""
        return frozenset()

    def uses_real_gpu(self) -> bool:
        return False

    def _run(self, namespace: dict[str, Any]) -> None:
        for cell in self.cells[:-1]:
            if not cell.failed:
                _run(cell, namespace)
                continue
            self._limit_memory(is_limited=True)
            try:
                _run(cell, namespace)
            except ProgramDone:
                raise
            except BaseException as error:
                error.__traceback__ = None  # it keeps the variables of the functions that failed
            self._limit_memory(is_limited=False)
        _run(self.cells[-1], namespace)

    def _limit_memory(self, *, is_limited: bool) -> None:
        machine = active.machine
        for gpu in () if machine is None else machine.gpus:
            share = min(1.0, self.room / gpu.driver.total)
            gpu.allocator.set_memory_fraction(share if is_limited else 1.0)


def _run(cell: CodeCell, namespace: dict[str, Any]) -> None:
    tree = ast.parse("".join(linecache.getlines(cell.file)), cell.file)
    if cell.keeps_result and tree.body and isinstance(last := tree.body[-1], ast.Expr):
        result = ast.copy_location(ast.Name(_RESULT, ast.Store()), last)
        tree.body[-1] = ast.copy_location(ast.Assign([result], last.value), last)
    exec(watched(tree, cell.file), namespace)  # noqa: S102 - the user's own cells
    value = namespace.pop(_RESULT, None)
    if value is not None:
        namespace["Out"][cell.number] = namespace["_"] = namespace[f"_{cell.number}"] = value
