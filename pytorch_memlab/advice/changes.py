"""Other lines of a program's source, for a trial and for people."""

from __future__ import annotations

import ast
import difflib
import importlib.machinery
import io
import linecache
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .._common.patching.patches import Patches
from .._common.text.shared_paths import shown
from .._common.text.source_lines import source_lines
from ..fitting.change import Change
from .around_program import Edit
from .lines_to_edit import (
    RunningLine,
    after_imports,
    around_statements,
    has_name,
    indentation,
)


class EditedSource(Change):
    """Files of a program with other lines. The files on the disk stay as they are."""

    name = "edited lines"

    def __init__(self, edits: Sequence[Edit]) -> None:
        self.edits = tuple(edits)

    @contextmanager
    def applied(self) -> Iterator[None]:
        by_name = self._texts()
        texts = {os.path.realpath(file): text for file, text in by_name.items()}

        def edited(path: Any) -> str | None:
            return texts.get(os.path.realpath(os.fspath(path)))

        with Patches() as patches:

            @patches.around(io, "open_code")
            def open_code(original: Callable[[str], Any], path: str) -> Any:
                text = edited(path)
                return original(path) if text is None else io.BytesIO(text.encode())

            @patches.around(importlib.machinery.SourceFileLoader, "get_code")
            def get_code(original: Callable[..., Any], loader: Any, fullname: str) -> Any:
                path = loader.get_filename(fullname)
                text = edited(path)
                if text is None:
                    return original(loader, fullname)
                return compile(text, path, "exec", dont_inherit=True)

            for file, text in by_name.items():  # for tracebacks
                linecache.cache[file] = (len(text), None, source_lines(text, keepends=True), file)
            yield

    def diff(self) -> str:
        """The edits, as ``diff -u`` shows them."""
        parts: list[str] = []
        for file, text in self._texts().items():
            old = [line.rstrip("\r\n") for line in linecache.getlines(file)]
            name = shown(file)
            parts += difflib.unified_diff(old, source_lines(text), name, name, lineterm="")
        return "".join(f"{line}\n" for line in parts)

    def _texts(self) -> dict[str, str]:
        edits: defaultdict[str, list[Edit]] = defaultdict(list)
        for edit in self.edits:
            edits[edit.file].append(edit)
        return {file: _edited(file, those) for file, those in edits.items()}


def _edited(file: str, edits: Sequence[Edit]) -> str:
    lines = [line.rstrip("\r\n") for line in linecache.getlines(file)]
    for edit in sorted(edits, key=lambda edit: -edit.first):  # the last one first: lines move
        lines[edit.first - 1 : edit.last] = edit.lines
    return "".join(f"{line}\n" for line in lines)


def edited_source(*edits: Edit | None) -> EditedSource | None:
    """A change of some lines; None if one of the edits could not be made."""
    whole_edits = [edit for edit in edits if edit is not None]
    return EditedSource(whole_edits) if whole_edits and len(whole_edits) == len(edits) else None


def at_once(changes: Sequence[Change]) -> list[Change] | None:
    """Several changes of one program; None if two of them change the same lines."""
    sources = [change for change in changes if isinstance(change, EditedSource)]
    edits = sorted(
        dict.fromkeys(edit for source in sources for edit in source.edits),
        key=lambda edit: (edit.file, edit.first, edit.last),
    )
    if not all(map(_are_apart, edits, edits[1:])):
        return None
    others = [change for change in changes if not isinstance(change, EditedSource)]
    return [*([EditedSource(edits)] if edits else []), *others]


def _are_apart(edit: Edit, later: Edit) -> bool:
    if edit.file != later.file:
        return True
    are_inserted = edit.last < edit.first and later.last < later.first
    return edit.last < later.first and (edit.first < later.first or are_inserted)


def without_gradients(file: str, line: int, *, is_function: bool) -> EditedSource | None:
    """A function with the decorator ``torch.no_grad()``, or a statement within it."""
    place = RunningLine(file, line, 0)
    if is_function:
        indent = indentation(linecache.getline(file, line))
        edit: Edit | None = Edit(file, line, line - 1, (f"{indent}@torch.no_grad()",))
    else:
        edit = around_statements(place, None, ["with torch.no_grad():"])
    if has_name(place, "torch"):
        return edited_source(edit)
    return edited_source(edit, after_imports(file, ["import torch"]))


def sum_of_numbers(file: str, line: int, name: str) -> Edit | None:
    """A line that adds a tensor to a variable, with the number of the tensor."""
    text = linecache.getline(file, line).rstrip("\r\n")
    try:
        [node] = ast.parse(text.strip()).body
    except (SyntaxError, ValueError):
        return None
    match node:
        case ast.AugAssign(target=target, op=ast.Add(), value=value):
            new = f"{ast.unparse(target)} += {_result_of(value, 'item')}"
        case ast.Assign(targets=[target], value=ast.BinOp(left=left, op=ast.Add(), right=right)):
            if ast.unparse(left) == name:
                new = f"{ast.unparse(target)} = {name} + {_result_of(right, 'item')}"
            elif ast.unparse(right) == name:
                new = f"{ast.unparse(target)} = {_result_of(left, 'item')} + {name}"
            else:
                return None
        case _:
            return None
    return Edit(file, line, line, (indentation(text) + new,))


def _result_of(value: ast.expr, method: str) -> str:
    text = ast.unparse(value)
    if isinstance(value, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        return f"{text}.{method}()"
    return f"({text}).{method}()"
