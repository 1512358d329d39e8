"""The cells of a notebook that have run, as a program that can run again.

Note [Magics in a second run]
A trial simulates by itself, and shows nothing. So magics that simulate, measure or show are left
out, and of ``%%time`` and its like the cell remains. Every other magic and command may do something
outside, such as ``!pip install``: a notebook with one is not tried.
"""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from typing import Any, Final

from .._common.process.ipython import cell_name
from .._common.text.quoted import shortened
from .._common.text.source_lines import source_lines
from ..errors import UsageError
from ..fitting.notebook_program import CellsTarget, CodeCell
from .mlrun_options import split_statement

_LEFT_OUT: Final = frozenset(
    name
    for line in (
        "autoreload colors config imu_start imu_stop load_ext matplotlib pinfo pinfo2 precision",
        "reload_ext simulate unload_ext who whos xmode",
    )
    for name in line.split()
)
_AROUND: Final = frozenset(("capture", "mlrun", "time"))
_SIGNS: Final = {
    "system": "!",
    "getoutput": "!",
    "run_line_magic": "%",
    "run_cell_magic": "%%",
}


def repeated_cells(shell: Any, room: int) -> CellsTarget:
    """The cells up to the one that runs, on GPUs of which PyTorch can have some bytes."""
    # Raises UsageError for cells that cannot run twice.
    typed = shell.user_ns.get("In", ())
    raw = shell.history_manager.input_hist_raw
    failed: dict[int, Any] = getattr(shell.history_manager, "exceptions", {})  # from IPython 9 on
    cells = [
        _cell(shell, number, raw[number], text, is_failed=number in failed)
        for number, text in enumerate(typed)
        if text.strip()
    ]
    if not cells:
        raise UsageError("IPython keeps no history of the cells")
    if len({words for text in typed for words in _simulated(text)} - {"", "off"}) > 1:
        raise UsageError("the cells simulated several GPUs, one after another")
    return CellsTarget(tuple(cells), room)


def _cell(shell: Any, number: int, raw: str, text: str, *, is_failed: bool) -> CodeCell:
    keeps_result = not raw.rstrip().endswith(";")
    while (around := _magic_around(text)) is not None:
        raw, text, keeps_result = around, shell.transform_cell(around), False
    file = _file(shell, number, raw, text)
    text = _without_magics(text)
    for call in _calls(text):
        if (typed := _as_typed(call)) is not None:
            raise UsageError(f"In[{number}] has {typed[0]}, which may not run twice")
        if ast.unparse(call.func) in ("input", "get_ipython"):
            raise UsageError(f"In[{number}] calls {ast.unparse(call.func)}()")
    return CodeCell(number, file, text, is_failed, keeps_result)


def _file(shell: Any, number: int, raw: str, text: str) -> str:
    """The file in which tracebacks have a cell: the history is without line ends at its end."""
    for file in list(linecache.cache):
        if cell_name(file) == f"In[{number}]":
            lines = "".join(linecache.getlines(file))
            if lines.rstrip("\n") == text.rstrip("\n"):
                return file
    return str(shell.compile.get_code_name(raw, text, number))


def _magic_around(text: str) -> str | None:
    """The cell within ``%%time`` or another magic that runs it."""
    typed = [_as_typed(call) for call in _calls(text)][:1]
    if typed and typed[0] is not None and typed[0][1] in _AROUND and len(typed[0]) > 3:
        return typed[0][3]
    return None


def _without_magics(text: str) -> str:
    """A cell in which some magics do nothing; all lines keep their numbers."""
    lines = source_lines(text)
    for call in _calls(text):
        typed = _as_typed(call)
        if typed is None or lines[call.lineno - 1].strip() != ast.unparse(call):
            continue
        name, line = typed[1], typed[2] if len(typed) > 2 else ""
        statement = "pass"
        if name in ("mlrun", "time"):
            statement = split_statement(line)[1] if name == "mlrun" else line.strip()
        elif name not in _LEFT_OUT:
            continue
        lines[call.lineno - 1] = " " * call.col_offset + statement
    return "".join(f"{line}\n" for line in lines)


def _simulated(text: str) -> Iterator[str]:
    """The words behind each ``%simulate`` of a cell."""
    for call in _calls(text):
        typed = _as_typed(call)
        if typed is not None and typed[1] == "simulate":
            yield " ".join(typed[2].split())


def _calls(text: str) -> list[ast.Call]:
    """The calls in a cell; none in one that is no Python, which has not run."""
    try:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    except SyntaxError:
        return []


def _as_typed(call: ast.Call) -> tuple[str, ...] | None:
    """A magic or command as a person typed it, and its parts; None for another call."""
    match call.func:
        case ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method):
            parts = [str(arg.value) for arg in call.args if isinstance(arg, ast.Constant)]
            if method in _SIGNS and parts:
                text = " ".join(parts[:2]) if method == "run_line_magic" else parts[0]
                return shortened(f"{_SIGNS[method]}{text}".strip()), *parts
    return None
