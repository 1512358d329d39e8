"""Other text in place of parts of a file, as edits of whole lines."""

from __future__ import annotations

import ast
import linecache
import textwrap
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from typing import Final, TypeVar

from .._common.process.ipython import file_name
from .._common.text.source_lines import source_lines
from ..history.out_of_memory import OutOfMemory
from .around_program import Edit
from .changes import EditedSource
from .lines_to_edit import functions_around, indentation, parsed

_Node = TypeVar("_Node", bound=ast.AST)
Loop = ast.For | ast.While

_MOST_COLUMNS: Final = 79
"""Columns of a line that PEP 8 allows."""
_MOST_MOVED: Final = 4
"""Lines of the program that are written again where an edit moves them."""


class Rewriting:
    """A file, and the changes of its text. Columns count bytes, as those of ``ast`` do."""

    def __init__(self, file: str) -> None:
        self.file = file
        self._lines = [
            line if line.endswith("\n") else f"{line}\n" for line in linecache.getlines(file)
        ]
        self.tree = parsed("".join(self._lines))
        self._changes: list[tuple[tuple[int, int], tuple[int, int], str]] = []

    def replace(self, node: ast.expr | ast.stmt, text: str) -> None:
        end = node.end_lineno or node.lineno, node.end_col_offset or 0
        self._changes.append(((node.lineno, node.col_offset), end, text))

    def insert_after(self, node: ast.expr, text: str) -> None:
        """Text behind an expression, such as ``.cpu()``."""
        end = node.end_lineno or node.lineno, node.end_col_offset or 0
        self._changes.append((end, end, text))

    def insert_lines(self, before: int, column: int, lines: Sequence[str]) -> None:
        """Whole lines before a line, which begin in a column."""
        text = "".join(f"{' ' * column}{line}\n" if line else "\n" for line in lines)
        self._changes.append(((before, 0), (before, 0), text))

    def add_lines(self, call: ast.Call, last: ast.expr, added: Sequence[str]) -> bool:
        """Arguments in lines below the last one; False where the program writes them beside it."""
        number, end = last.end_lineno or 0, last.end_col_offset or 0
        if number in (call.lineno, call.end_lineno):
            return False
        lines = [line.rstrip("\n") for line in self._lines[call.lineno - 1 : call.end_lineno]]
        line = lines[number - call.lineno]
        longest = max(_MOST_COLUMNS, *map(len, lines))
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        is_alone = [value for value in values if value.end_lineno == number] == [last]
        if not is_alone and len(line) + len(", ".join(["", *added])) <= longest:
            return False
        if not line.encode()[end:].lstrip().startswith(b","):
            self.insert_after(last, ",")
            *added, text = added
            added = [*(f"{other}," for other in added), text]
        else:
            added = [f"{text}," for text in added]
        self.insert_lines(number + 1, len(indentation(line)), added)
        return True

    def indent(self, first: ast.stmt, last: ast.stmt) -> None:
        """Statements that follow each other, one level further in."""
        for number in range(first.lineno, (last.end_lineno or last.lineno) + 1):
            if self._lines[number - 1].strip():
                self._changes.append(((number, 0), (number, 0), "    "))

    def delete(self, node: ast.stmt) -> None:
        """A statement with its lines."""
        end = (node.end_lineno or node.lineno) + 1, 0
        self._changes.append(((node.lineno, 0), end, ""))

    def ensure_import(self, module: str) -> None:
        """An ``import`` of a module under its own name, if the file has none."""
        first = None
        for node in self.tree.body:
            if isinstance(node, ast.Import) and any(
                (alias.asname or alias.name) == module for alias in node.names
            ):
                return
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
            if first is None and not is_docstring and not is_future:
                first = node
        if first is not None:
            self.insert_lines(first.lineno, 0, [f"import {module}"])

    @property
    def is_changed(self) -> bool:
        return bool(self._changes)

    def text(self) -> str:
        """The new text; that of the file where two changes are of one part of it."""
        starts = [0]
        for line in self._lines:
            starts.append(starts[-1] + len(line.encode()))
        old = "".join(self._lines).encode()
        new, at = b"", 0
        for begin, end, text in sorted(self._changes, key=lambda change: change[:2]):
            first, last = (starts[line - 1] + column for line, column in (begin, end))
            if first < at:
                return old.decode()
            new += old[at:first] + text.encode()
            at = last
        return (new + old[at:]).decode()

    def edits(self) -> tuple[Edit, ...]:
        """The changed lines; none if the new text is no program."""
        text = self.text()
        if not parsed(text).body:
            return ()
        old = [line.rstrip("\r\n") for line in self._lines]
        new = source_lines(text)
        return tuple(
            Edit(self.file, first + 1, last, tuple(new[begin:end]))
            for tag, first, last, begin, end in SequenceMatcher(
                None, old, new, autojunk=False
            ).get_opcodes()
            if tag != "equal"
        )


def changed_source(*rewritings: Rewriting) -> EditedSource | None:
    """A change of some files; None if there are none, or one of them does not change."""
    edits = [rewriting.edits() for rewriting in rewritings]
    is_whole = bool(edits) and all(edits)
    return EditedSource([edit for some in edits for edit in some]) if is_whole else None


def changed_code(change: EditedSource | None) -> tuple[str, ...]:
    """The new lines of a change, each under the place where it stands; none without a change."""
    return () if change is None else code_of(change.edits)


def code_of(edits: Sequence[Edit]) -> tuple[str, ...]:
    """Edits as a person makes them: imports first, then the others under their places."""
    imports = [edit for edit in edits if _is_import(edit)]
    code = [line for edit in imports for line in edit.lines if line.strip()]
    for edit in edits:
        if edit not in imports:
            lines = list(_shortened(edit))
            code += [f"# {place_of(edit)}{':' if lines else ''}", *lines]
    return tuple(code)


def place_of(edit: Edit) -> str:
    """The lines that an edit replaces, or the one with the same indentation that it stands beside.

    >>> place_of(Edit("/home/me/train.py", 7, 8, ("with torch.no_grad():", "    evaluate(x)")))
    'train.py in place of lines 7 to 8'
    """
    is_deleted = not any(line.strip() for line in edit.lines)
    where = f"{'without' if is_deleted else 'in place of'} lines {edit.first} to {edit.last}"
    if edit.last < edit.first:
        next_line = linecache.getline(edit.file, edit.first)
        is_beside = bool(next_line) and indentation(next_line) == indentation(edit.lines[0])
        where = f"before line {edit.first}" if is_beside else f"after line {edit.last}"
    elif edit.first == edit.last:
        where = f"{'without' if is_deleted else 'in place of'} line {edit.first}"
    return f"{file_name(edit.file)} {where}"


def _is_import(edit: Edit) -> bool:
    lines = [line for line in edit.lines if line.strip()]
    is_inserted = edit.last < edit.first
    return is_inserted and all(line.startswith(("import ", "from ")) for line in lines)


def _shortened(edit: Edit) -> Iterator[str]:
    """The lines of an edit from the first column on; long parts that only move are not written."""
    numbers = range(edit.first, edit.last + 1)
    old = [linecache.getline(edit.file, number).strip() for number in numbers]
    new = source_lines(textwrap.dedent("\n".join(edit.lines)))
    matcher = SequenceMatcher(None, old, [line.strip() for line in new], autojunk=False)
    for tag, first, last, begin, end in matcher.get_opcodes():
        if tag == "equal" and end - begin > _MOST_MOVED:
            moved = f"lines {edit.first + first} to {edit.first + last - 1}"
            yield f"{indentation(new[begin])}...  # {moved}"
        else:
            yield from (line for line in new[begin:end] if line.strip())


def program_files(oom: OutOfMemory) -> list[str]:
    """Files of the program: those of running functions first, then those that hold memory."""
    running = [frame.place.file for frame in oom.frames]
    holding = [block.place.file for block in oom.blocks if block.place is not None]
    return list(dict.fromkeys([*running, *holding]))


def rewritings(oom: OutOfMemory) -> Iterator[Rewriting]:
    for file in program_files(oom):
        yield Rewriting(file)


def all_rewritings(oom: OutOfMemory) -> Iterator[Rewriting]:
    """Those, and the other files of the user that are imported."""
    for file in dict.fromkeys([*program_files(oom), *oom.modules]):
        yield Rewriting(file)


def nodes_of(tree: ast.AST, kind: type[_Node]) -> Iterator[_Node]:
    for node in ast.walk(tree):
        if isinstance(node, kind):
            yield node


def loop_around(tree: ast.AST, line: int) -> Loop | None:
    """The innermost loop that a line is in."""
    loops = [
        loop
        for loop in nodes_of(tree, ast.stmt)
        if isinstance(loop, Loop) and loop.lineno <= line <= (loop.end_lineno or 0)
    ]
    return max(loops, key=lambda loop: loop.lineno, default=None)


def statement_at(tree: ast.AST, line: int) -> ast.stmt | None:
    """The smallest statement that a line is part of."""
    around = [
        statement
        for statement in nodes_of(tree, ast.stmt)
        if statement.lineno <= line <= (statement.end_lineno or 0)
    ]
    return min(
        around, key=lambda statement: (statement.end_lineno or 0) - statement.lineno, default=None
    )


def function_at(tree: ast.AST, line: int) -> ast.FunctionDef | None:
    """The innermost function that a line is in."""
    around = [
        function
        for function in functions_around(tree, line)
        if isinstance(function, ast.FunctionDef)
    ]
    return max(around, key=lambda function: function.lineno, default=None)


def owners_of_locals(scope: ast.AST) -> dict[int, dict[str, int]]:
    """By part of a function inside of a scope, the line of the function that has a variable."""
    owners: dict[int, dict[str, int]] = {}
    for function in ast.walk(scope):  # outer functions come first
        if function is scope or not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        inside = [part for statement in function.body for part in ast.walk(statement)]
        local = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
        local = local.union(*map(stored_names, function.body)) - shared_names(function)
        around = owners.get(id(function), {})
        own = {**around, **dict.fromkeys(local, function.lineno)}
        owners |= dict.fromkeys(map(id, inside), own)
    return owners


def statement_around(tree: ast.AST, node: ast.AST) -> ast.stmt | None:
    """The smallest statement that an expression is in."""
    return statement_at(tree, getattr(node, "lineno", 0))


def name_of_call(node: ast.AST) -> str:
    """The last part of the name of a called function; empty for what is no call.

    >>> name_of_call(ast.parse("torch.optim.Adam(p)", mode="eval").body)
    'Adam'
    """
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def last_name(node: ast.AST) -> str:
    """The variable or attribute that an expression reads, without what it belongs to."""
    while isinstance(node, (ast.Subscript, ast.Starred)):
        node = node.value
    return str(getattr(node, "attr", getattr(node, "id", "")))


def loaded_names(node: ast.AST) -> set[str]:
    return {name.id for name in nodes_of(node, ast.Name) if isinstance(name.ctx, ast.Load)}


def training_arguments(oom: OutOfMemory) -> Iterator[tuple[Rewriting, ast.Call]]:
    """The calls that make the arguments of a ``Trainer``, each with its file."""
    for file in rewritings(oom):
        for call in nodes_of(file.tree, ast.Call):
            if name_of_call(call).endswith(("TrainingArguments", "SFTConfig")):
                yield file, call


def stored_names(node: ast.AST) -> set[str]:
    return {name.id for name in nodes_of(node, ast.Name) if isinstance(name.ctx, ast.Store)}


def shared_names(node: ast.AST) -> set[str]:
    """Variables that code declares global or nonlocal."""
    return {
        name
        for part in ast.walk(node)
        if isinstance(part, (ast.Global, ast.Nonlocal))
        for name in part.names
    }


def with_method(node: ast.expr, method: str) -> str:
    """The source of a method call on the value of an expression."""
    text = ast.unparse(node)
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)):
        text = f"({text})"
    return f"{text}.{method}()"


def set_keywords(file: Rewriting, call: ast.Call, **values: str | None) -> None:
    """A call with other values of some keywords; those with None are left out."""
    by_name = {keyword.arg: keyword for keyword in call.keywords if keyword.arg}
    added = []
    for name, value in values.items():
        if name in by_name and value is not None:
            file.replace(by_name[name].value, value)
        elif name in by_name:
            values_of = ast.unparse(by_name[name].value)
            if values_of != "None":
                file.replace(by_name[name].value, "None")
        elif value is not None:
            added.append(f"{name}={value}")
    if not added:
        return
    arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
    if arguments:
        last = max(
            arguments, key=lambda argument: (argument.end_lineno or 0, argument.end_col_offset or 0)
        )
        needs_brackets = isinstance(last, ast.GeneratorExp) and len(arguments) == 1
        if needs_brackets:  # a generator without own brackets ends with those of the call
            file.replace(call, f"{ast.unparse(call.func)}({ast.unparse(last)}, {', '.join(added)})")
        elif not file.add_lines(call, last, added):
            file.insert_after(last, "".join(f", {text}" for text in added))
    else:
        file.replace(call, f"{ast.unparse(call.func)}({', '.join(added)})")


def arguments_of_trainer(oom: OutOfMemory, **values: str) -> tuple[str, ...]:
    """The call that makes the arguments of a ``Trainer`` with others; empty if there is none."""
    for file, call in training_arguments(oom):
        set_keywords(file, call, **values)
        return changed_code(changed_source(file))
    return ()
