"""The number of a program that is its batch, and the program with another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..history.out_of_memory import OutOfMemory
from .around_program import Edit
from .changes import EditedSource
from .rewriting import Rewriting, last_name, nodes_of, rewritings

_BATCH: Final = re.compile(r"batch(?!es|norm)|(^|_)bs($|_)|samples_per", re.IGNORECASE)
_TOKENS: Final = re.compile(r"(max|num|total|batch)_tokens|tokens_per", re.IGNORECASE)
_NOT_OF_TRAINING: Final = re.compile(
    r"eval|valid|test|accum|step|max_batch|token_id|sequence", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class BatchNumber:
    """Places of one number, which the program means as its batch."""

    file: str
    value: int
    lines: tuple[int, ...]
    is_of_tokens: bool = False

    def changed_to(self, value: int) -> tuple[Edit, ...]:
        file = Rewriting(self.file)
        for node in _constants(file.tree, self.value):
            if node.lineno in self.lines:
                file.replace(node, str(value))
        return file.edits()


class SmallerBatch(EditedSource):
    """The program with another number as its batch; trials search the largest that fits."""

    def __init__(self, number: BatchNumber, value: int) -> None:
        super().__init__(number.changed_to(value))
        self.number = number
        self.value = value

    def with_value(self, value: int) -> SmallerBatch:
        return SmallerBatch(self.number, value)


def batch_number(
    oom: OutOfMemory, dimensions: Sequence[int], tokens: Sequence[int] = ()
) -> BatchNumber | None:
    """The number that is named as a batch, or that makes tensors of these first dimensions.

    Args:
        oom: the error.
        dimensions: first dimensions of the tensors that grow with the batch, the most bytes first.
        tokens: products of the first two dimensions of tensors: of sequences and their length.
    """
    files = list(rewritings(oom))
    for file in files:
        for node in _named_batch(file.tree, _TOKENS):
            if any(node.value // 2 < number <= node.value for number in tokens):
                return BatchNumber(file.file, node.value, (node.lineno,), is_of_tokens=True)
    for file in files:
        named = [
            node
            for node in _named_batch(file.tree)
            if any(length % node.value == 0 for length in dimensions)
        ]
        if named:
            first = named[0]
            lines = tuple(node.lineno for node in named if node.value == first.value)
            return BatchNumber(file.file, first.value, lines)
    for length in dimensions:
        for file in files:
            lines = tuple(
                node.lineno for node in _first_dimensions(file.tree) if node.value == length
            )
            if lines:
                return BatchNumber(file.file, length, lines)
    return None


class _Number(ast.Constant):
    value: int


def _is_batch(name: str, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(name)) and not _NOT_OF_TRAINING.search(name)


def _named_batch(tree: ast.AST, pattern: re.Pattern[str] = _BATCH) -> list[_Number]:
    """Numbers that a keyword, a variable, a key or an option names as a batch."""
    found: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=value) if _is_batch(last_name(target), pattern):
                found.append(value)
            case ast.AnnAssign(target=target, value=value) if _is_batch(last_name(target), pattern):
                found.append(value)
            case ast.keyword(arg=str() as name, value=value) if _is_batch(name, pattern):
                found.append(value)
            case ast.Dict(keys=keys, values=values):
                found += [
                    value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and _is_batch(str(key.value), pattern)
                ]
            case ast.Call(func=ast.Attribute(attr="add_argument"), args=[option, *_]):
                if _is_batch(str(getattr(option, "value", "")).replace("-", "_"), pattern):
                    found += [one.value for one in node.keywords if one.arg == "default"]
            case ast.arguments(args=arguments, defaults=defaults) if defaults:
                pairs = zip(arguments[-len(defaults) :], defaults, strict=True)
                found += [value for one, value in pairs if _is_batch(one.arg, pattern)]
    return _numbers(found)


def _first_dimensions(tree: ast.AST) -> list[_Number]:
    """Numbers that are the first dimension of tensors that a loop or a function makes."""
    found: dict[int, ast.expr] = {}
    for around in ast.walk(tree):
        if not isinstance(around, (ast.For, ast.While, ast.FunctionDef)):
            continue
        for call in nodes_of(around, ast.Call):
            if ast.unparse(call.func).startswith("torch.") and call.args:
                size = next((one for one in call.args if isinstance(one, ast.Tuple)), None)
                first = size.elts[0] if size is not None and size.elts else call.args[0]
                found[id(first)] = first
    return _numbers(list(found.values()))


def _numbers(nodes: Sequence[ast.expr | None]) -> list[_Number]:
    return [
        node  # type: ignore[misc]
        for node in nodes
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1
    ]


def _constants(tree: ast.AST, value: int) -> list[ast.Constant]:
    named = [*_named_batch(tree), *_named_batch(tree, _TOKENS)]
    wanted = [*named, *_first_dimensions(tree)]
    return [node for node in wanted if node.value == value]
