"""Batches are on the GPU long before a step takes them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from ..._common.text.prose_size import prose_size
from ...history.out_of_memory import OutOfMemory
from ..additions import AddingStatement, adding_statement, adding_statement_at
from ..cause import Cause, Remedy, Results
from ..changes import EditedSource
from ..evidence import FIXED, is_much, named_with_line
from ..rewriting import (
    Rewriting,
    changed_code,
    changed_source,
    last_name,
    name_of_call,
    nodes_of,
    rewritings,
)

_TAKES = ("popleft", "pop", "get", "get_nowait")


@dataclass(frozen=True, slots=True)
class _Move:
    """A call that moves a tensor to the GPU."""

    node: ast.Call
    moved: ast.expr
    text: str  # such as ``.to(device)``


class Prefetch(Cause):
    """A container holds batches that were moved to the GPU ahead of time."""

    name = "batches moved ahead of time"
    order = 57
    results = Results.SAME

    def remedy(self, oom: OutOfMemory) -> Remedy | None:
        for group in oom.groups:
            is_container = not group.is_variable and group.tensors >= 3
            if is_container and group.own >= group.graphs and is_much(group.own, oom):
                added = adding_statement(oom, group)
                remedy = self._of(oom, added, group.name, group.tensors, group.own)
                if remedy is not None:
                    return remedy
        # A queue within a running generator is gone when its loop has failed; its blocks are not.
        for holder in oom.by_line():
            is_fixed = bool(FIXED & set(holder.categories))
            if holder.place is None or is_fixed or holder.blocks < 3:
                continue
            if is_much(holder.size, oom):
                added = adding_statement_at(holder.place)
                name = "" if added is None else ast.unparse(added.container)
                remedy = self._of(oom, added, name, holder.blocks, holder.size)
                if remedy is not None:
                    return remedy
        return None

    def _of(
        self, oom: OutOfMemory, added: AddingStatement | None, name: str, tensors: int, held: int
    ) -> Remedy | None:
        moves = [] if added is None else _moves(added)
        if added is None or not moves:
            return None
        change = _moved_late(oom, added, moves)
        return self.found(
            held * (tensors - len(moves)) // tensors,  # one is needed
            f"{named_with_line(name, added.line)} has {tensors} tensors on the GPU before they"
            f" are used: {prose_size(held)}",
            *(changed_code(change) or [f"batch = batch{moves[0].text}  # where it is used"]),
            change=change,
        )


def _moves(added: AddingStatement) -> list[_Move]:
    """The moves in the value that is added, or in the assignment that made it."""
    moves = [moved for part in _parts(added.value) if (moved := _move(part)) is not None]
    if not moves and isinstance(added.value, ast.Name):
        for node in nodes_of(added.file.tree, ast.Assign):
            is_same = any(last_name(target) == added.value.id for target in node.targets)
            if is_same and node.lineno <= added.line:
                move = _move(node.value)
                moves = moves if move is None else [move]
    return moves


def _parts(value: ast.expr) -> list[ast.expr]:
    return value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]


def _move(node: ast.expr) -> _Move | None:
    match node:
        case ast.Call(func=ast.Attribute(value=moved, attr="cuda" | "to")):
            whole, before = ast.unparse(node), ast.unparse(moved)
            return _Move(node, moved, whole.removeprefix(before))
    return None


def _moved_late(
    oom: OutOfMemory, added: AddingStatement, moves: list[_Move]
) -> EditedSource | None:
    """The program that adds what is in host memory, and moves it where it is taken."""
    name = last_name(added.container)
    files = [file for file in rewritings(oom) if file.file != added.file.file]
    taken = sum(_move_taken(file, name, moves) for file in [added.file, *files])
    if not taken:
        return None
    for move in moves:
        added.file.replace(move.node, ast.unparse(move.moved))
    return changed_source(*(file for file in [added.file, *files] if file.is_changed))


def _move_taken(file: Rewriting, name: str, moves: list[_Move]) -> int:
    """Move what is taken from a container; the number of such places."""
    count = 0
    for node in ast.walk(file.tree):
        match node:
            case ast.Call(func=ast.Attribute(value=owner)) if (
                name_of_call(node) in _TAKES and last_name(owner) == name and len(moves) == 1
            ):
                file.insert_after(node, moves[0].text)
                count += 1
            case ast.For(target=target, iter=taken, body=[first, *_]) if _iterates(taken, name):
                if name_of_call(taken) == "enumerate" and isinstance(target, ast.Tuple):
                    target = target.elts[-1]
                targets = _parts(target)
                if len(targets) == len(moves):
                    new = [
                        f"{text} = {text}{move.text}"
                        for text, move in zip(map(ast.unparse, targets), moves, strict=True)
                    ]
                    file.insert_lines(first.lineno, first.col_offset, new)
                    count += 1
    return count


def _iterates(taken: ast.expr, name: str) -> bool:
    if isinstance(taken, ast.Call) and taken.args:
        taken = taken.args[0]
    return last_name(taken) == name
