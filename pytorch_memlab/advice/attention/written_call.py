"""The edit: a call in place of the statements that it replaces."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..around_program import Edit
from ..rewriting import code_of, name_of_call
from .products import of_call
from .scores import AttentionOutput, FollowedStatements, is_default_scale, joint_mask

_FUSED: Final = "scaled_dot_product_attention"
_MASKS: Final = ("tril", "triu", "ones", "bool")
"""Functions that make a mask without any other effect."""


@dataclass(frozen=True, slots=True)
class FusedAttention:
    """The call, and the lines that it replaces."""

    edit: Edit

    @property
    def code(self) -> tuple[str, ...]:
        """The edit as a person makes it."""
        return code_of([self.edit])


def with_fused_call(
    file: str,
    lines: list[str],
    tree: ast.Module,
    node: ast.stmt,
    output: AttentionOutput,
    reading: FollowedStatements,
    has_heads: bool,
) -> FusedAttention | None:
    arguments = _arguments(output, reading, has_heads=has_heads)
    if arguments is None:
        return None
    after = output.after if has_heads else f".squeeze(1){output.after}"
    call = f"{_imported_name(tree)}({', '.join(arguments)}){after}"
    changed = _with_call(lines, node, output.node, call)
    chain = [part for part in reading.statements if part is not node]
    first = min([node.lineno, *(part.lineno for part in chain)])
    dropped = {
        number for part in chain for number in range(part.lineno, (part.end_lineno or 0) + 1)
    }
    before, last = range(first, node.lineno), node.end_lineno or node.lineno
    dropped |= _lines_of_unread_masks(
        tree, before, {*dropped, *range(node.lineno, last + 1)}, changed
    )
    between = _lines_between(lines, tree, before, dropped, reading)
    if between is None:
        return None
    return FusedAttention(Edit(file, first, last, (*between, *changed)))


def _arguments(
    output: AttentionOutput, reading: FollowedStatements, *, has_heads: bool
) -> list[str] | None:
    """The arguments of the call; None if no call has the masks of the scores."""
    scores = output.scores
    mask = joint_mask(scores)
    if mask is None:
        return None
    arguments = [scores.query, scores.key, output.value]
    if not has_heads:
        arguments = [f"{of_call(text)}.unsqueeze(1)" for text in arguments]
        mask = f"{of_call(mask)}[..., None, :, :]" if mask else mask
    if mask and scores.condition:
        arguments.append(f"attn_mask={mask} if {scores.condition} else None")
    elif mask:
        arguments.append(f"attn_mask={mask}")
    if scores.dropout:
        arguments.append(f"dropout_p={scores.dropout}")
    if scores.is_causal and not mask:  # a call has one of them
        arguments.append("is_causal=True")
    if not is_default_scale(scores, reading):
        arguments.append(f"scale={scores.scale}")
    return arguments


def _lines_between(
    lines: list[str],
    tree: ast.Module,
    before: range,
    dropped: set[int],
    reading: FollowedStatements,
) -> list[str] | None:
    """The lines before the call that stay; None if they need some of those that are dropped."""
    others = [number for number in before if number not in dropped]
    if any(
        isinstance(part, ast.Name) and part.id in reading.scores and part.lineno in others
        for part in ast.walk(tree)
    ):
        return None  # another line reads the scores, such as their shape
    between = [lines[number - 1] for number in others]
    conditional = [part for part in ast.walk(tree) if isinstance(part, ast.If)]
    for part in conditional:  # an ``if`` whose statements are all gone goes too
        body = range(part.body[0].lineno, (part.end_lineno or 0) + 1)
        if dropped.issuperset(body) and not part.orelse and part.lineno in before:
            between = [text for text in between if text != lines[part.lineno - 1]]
        elif dropped & set(body) and not dropped.issuperset(body):
            return None
    return between


def _lines_of_unread_masks(
    tree: ast.Module, lines: range, replaced: set[int], new: Sequence[str]
) -> set[int]:
    """Lines that make a mask which nothing reads any more, such as a triangle of ones."""
    read = set(re.findall(r"\w+", " ".join(new)))
    read |= {
        part.id
        for part in ast.walk(tree)
        if isinstance(part, ast.Name)
        and isinstance(part.ctx, ast.Load)
        and part.lineno not in replaced
    }
    return {
        number
        for part in ast.walk(tree)
        if isinstance(part, ast.Assign)
        and part.lineno in lines
        and isinstance(part.targets[0], ast.Name)
        and part.targets[0].id not in read
        and name_of_call(part.value) in _MASKS
        for number in range(part.lineno, (part.end_lineno or part.lineno) + 1)
    }


def _imported_name(tree: ast.Module) -> str:
    """The function, by a name that the file has imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == "torch.nn.functional" and alias.asname:
                    return f"{alias.asname}.{_FUSED}"
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (node.module, alias.name) == ("torch.nn", "functional"):
                    return f"{alias.asname or alias.name}.{_FUSED}"
    return f"torch.nn.functional.{_FUSED}"


def _with_call(lines: list[str], statement: ast.stmt, node: ast.expr, call: str) -> list[str]:
    """The lines of a statement, with the call in place of an expression."""
    first, last = statement.lineno, statement.end_lineno or statement.lineno
    text = [line.encode() for line in lines[first - 1 : last]]
    end_line, end = (node.end_lineno or 0) - first, node.end_col_offset or 0
    tail = text[end_line][end:]
    begin = node.lineno - first
    head = text[begin][: node.col_offset]
    # Brackets around the product are not needed around a call.
    if head.endswith(b"(") and tail.startswith(b")") and not re.search(rb"[\w)\]]\($", head):
        head, tail = head[:-1], tail[1:]
    text[begin : end_line + 1] = [head + call.encode() + tail]
    return [line.decode() for line in text]
