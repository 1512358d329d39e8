"""The number of a program that is its batch, and the program with another one.

Note [The number of a batch]
A number is a batch where its name says so, or where the program uses it as one: as the batch of a
loader, as what a variable, a keyword or a parameter of such a name gets, or as the first dimension
of a tensor. From there its origin is followed: through variables, attributes and parameters of
functions, to a number of the program or to an option. A number without such a name must be the
first dimension of tensors at the peak, and nothing else may be made of it, such as a layer.
Recurrent layers take the length first, unless they are told otherwise: there it is the second one.
What the command line gives goes before the number of the program.
"""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ..fitting.change import Change
from ..history.out_of_memory import OutOfMemory
from .around_program import Edit
from .changes import EditedSource
from .program_options import DeclaredOption, GivenNumber, declared_options, given_numbers
from .rewriting import (
    Rewriting,
    all_rewritings,
    changed_code,
    function_at,
    last_name,
    name_of_call,
    nodes_of,
    rewritings,
)

_BATCH: Final = re.compile(r"batch(?!es|norm)|(^|_)bsz?($|_)|samples_per", re.IGNORECASE)
_TOKENS: Final = re.compile(r"(max|num|total|batch)_tokens|tokens_per", re.IGNORECASE)
_NOT_OF_TRAINING: Final = re.compile(
    r"eval|valid|test|accum|step|max_batch|token_id|sequence", re.IGNORECASE
)
_LOADERS: Final = re.compile(r"DataLoader$|BatchSampler$")
_MAKES_NO_LAYER: Final = re.compile(r"Loader$|Sampler$|Arguments$|Config$|Dataset$|Iterator$")
_DEEPEST: Final = 4


class SmallerBatch(Change, ABC):
    """The program with another batch; trials search the largest that fits."""

    largest: int  # of the program as it is
    value: int

    @abstractmethod
    def with_value(self, value: int) -> SmallerBatch: ...

    @property
    @abstractmethod
    def code(self) -> tuple[str, ...]:
        """The batch as a person writes it."""


class SmallerNumber(EditedSource, SmallerBatch):
    """The program with another number in its source."""

    def __init__(self, number: BatchNumber, value: int) -> None:
        super().__init__(number.edits(value))
        self.largest, self.value, self._number = number.value, value, number

    def with_value(self, value: int) -> SmallerBatch:
        return SmallerNumber(self._number, value)

    @property
    def code(self) -> tuple[str, ...]:
        return changed_code(self)


class SmallerOption(SmallerBatch):
    """The program with another number on its command line."""

    name = "another argument"

    def __init__(self, number: GivenNumber, value: int) -> None:
        self.largest, self.value, self._given = number.value, value, number

    def arguments(self, argv: Sequence[str]) -> tuple[str, ...]:
        return self._given.changed_in(argv, self.value)

    def with_value(self, value: int) -> SmallerBatch:
        return SmallerOption(self._given, value)

    @property
    def code(self) -> tuple[str, ...]:
        return (f"{self._given.text(self.value)}  # on the command line",)


@dataclass(frozen=True, slots=True)
class BatchNumber:
    """Places of one number, which the program means as its batch."""

    value: int
    file: str = ""
    places: tuple[tuple[int, int], ...] = ()  # line and column
    given: GivenNumber | None = None  # on the command line, where it stands there
    is_of_tokens: bool = False
    is_dimension: bool = False  # known as a dimension of tensors alone: no name or loader says more

    def changed_to(self, value: int) -> SmallerBatch:
        return (
            SmallerNumber(self, value) if self.given is None else SmallerOption(self.given, value)
        )

    def edits(self, value: int) -> tuple[Edit, ...]:
        file = Rewriting(self.file)
        for node in nodes_of(file.tree, ast.Constant):
            if (node.lineno, node.col_offset) in self.places:
                file.replace(node, str(value))
        return file.edits()


def batch_number(
    oom: OutOfMemory,
    # first dimensions of the tensors that grow with the batch, the most bytes first
    dimensions: Sequence[int],
    # of tensors of sequences, the product of the first two dimensions: sequences and length
    tokens: Sequence[int] = (),
    *,
    is_second: bool = False,  # True if the batch stands behind the length of the sequences
) -> BatchNumber | None:
    """The number that is a batch. See Note [The number of a batch]."""
    numbers = _Numbers(oom)
    for number in numbers.named(_TOKENS):
        if any(number.value // 2 < product <= number.value for product in tokens):
            return _at(number, is_of_tokens=True)
    named = list(numbers.named(_BATCH))
    for is_batch in (
        lambda number: number.value in dimensions,
        lambda number: any(length % number.value == 0 for length in dimensions),
    ):
        for number in filter(is_batch, named):
            same = [
                other for other in named if (other.value, other.file) == (number.value, number.file)
            ]
            return _at(*same)
    batches = list(numbers.used())
    used = [*batches, *numbers.of_dimension(1 if is_second else 0)]
    for length in dimensions:
        same = [number for number in used if number.value == length]
        if same:
            batch = _at(*(number for number in same if number.file == same[0].file))
            return replace(batch, is_dimension=same[0] not in batches)
    return None


@dataclass(frozen=True, slots=True)
class _Number:
    """A number in a file, or of an option that the command line gives."""

    value: int
    file: str
    place: tuple[int, int]  # line and column
    given: GivenNumber | None = None


def _at(first: _Number, *others: _Number, is_of_tokens: bool = False) -> BatchNumber:
    places = dict.fromkeys(number.place for number in (first, *others) if number.given is None)
    return BatchNumber(first.value, first.file, tuple(places), first.given, is_of_tokens)


class _Numbers:
    """The numbers of a program, and where they come from."""

    def __init__(self, oom: OutOfMemory) -> None:
        self._files = list(rewritings(oom))
        self._all = list(all_rewritings(oom))
        self._options = [option for file in self._all for option in declared_options(file.tree)]
        self._given = given_numbers(oom.arguments, self._options)

    def named(self, pattern: re.Pattern[str]) -> Iterator[_Number]:
        """Numbers that have a name of a kind, those of the command line first."""
        for number in self._given.values():
            names = [number.attribute, *(_names(self._options, number))]
            if any(_is_batch(name, pattern) for name in names):
                yield _Number(number.value, "", (0, 0), number)
        for file in self._files:
            overridden = {
                id(option.default)
                for option in declared_options(file.tree)
                if option.attribute in self._given
            }
            for node in _named(file.tree, pattern):
                if id(node) not in overridden:
                    yield from _number(file, node)

    def used(self) -> Iterator[_Number]:
        """Numbers that are used as a batch under other names."""
        for file in self._files:
            for node in (*_named(file.tree, _BATCH), *_batches(file.tree)):
                yield from self._origins(file, node)

    def of_dimension(self, dimension: int) -> Iterator[_Number]:
        for file in self._files:
            for is_made_once, node in _dimensions(file.tree, dimension):
                if isinstance(node, ast.Constant):
                    yield from _number(file, node)
                elif not is_made_once:
                    yield from self._origins(file, node)

    def _origins(
        self, file: Rewriting, node: ast.expr, depth: int = 0, by: str = ""
    ) -> Iterator[_Number]:
        """The numbers that the value of an expression may be."""
        if depth > _DEEPEST or (by and _makes_layer(file.tree, by)):
            return
        match node:
            case ast.Constant():
                yield from _number(file, node)
            case ast.Call(func=ast.Name(id="int"), args=[value]):
                yield from self._origins(file, value, depth + 1, by)
            case ast.Name(id=name):
                for value in _assigned(file.tree, name):
                    yield from self._origins(file, value, depth + 1, name)
                for value, place in self._passed(file, node):
                    yield from self._origins(place, value, depth + 1, name)
            case ast.Attribute(attr=name) if not _makes_layer(file.tree, name):
                yield from self._of_option(name)
                for value in _assigned(file.tree, name):
                    yield from self._origins(file, value, depth + 1, name)
                yield from self._of_field(name, depth)
            case ast.Subscript(slice=ast.Constant(value=str() as name)) if not _makes_layer(
                file.tree, name
            ):
                for other in self._all:
                    for value in _under_key(other.tree, name):
                        yield from self._origins(other, value, depth + 1, name)

    def _of_option(self, attribute: str) -> Iterator[_Number]:
        if attribute in self._given:
            number = self._given[attribute]
            yield _Number(number.value, "", (0, 0), number)
            return
        for file in self._all:
            for option in declared_options(file.tree):
                if option.attribute == attribute and option.default is not None:
                    yield from _number(file, option.default)

    def _of_field(self, name: str, depth: int) -> Iterator[_Number]:
        """The numbers of a field of a class: its default, or what the objects are made with."""
        for file in self._all:
            if not any(_fields(file.tree, name)):
                continue
            values = [
                (other, keyword.value)
                for other in self._all
                for call in nodes_of(other.tree, ast.Call)
                for keyword in call.keywords
                if keyword.arg == name
            ]
            defaults = [(file, value) for value in _fields(file.tree, name)]
            for place, value in values or defaults:
                yield from self._origins(place, value, depth + 1, name)

    def _passed(self, file: Rewriting, name: ast.Name) -> Iterator[tuple[ast.expr, Rewriting]]:
        """The values that the calls of a function pass as the parameter that a name is."""
        function = function_at(file.tree, name.lineno)
        if function is None:
            return
        parameters = [
            argument.arg for argument in (*function.args.posonlyargs, *function.args.args)
        ]
        if name.id not in parameters:
            return
        place = parameters.index(name.id)
        is_passed = False
        for other in self._all:
            for call in nodes_of(other.tree, ast.Call):
                if name_of_call(call) != function.name:
                    continue
                keywords = [keyword.value for keyword in call.keywords if keyword.arg == name.id]
                for value in keywords or call.args[place : place + 1]:
                    is_passed = True
                    yield value, other
        from_default = place - len(parameters) + len(function.args.defaults)
        if not is_passed and from_default >= 0:
            yield function.args.defaults[from_default], file


def _number(file: Rewriting, node: ast.expr) -> Iterator[_Number]:
    if isinstance(node, ast.Constant) and type(node.value) is int and node.value > 1:
        yield _Number(node.value, file.file, (node.lineno, node.col_offset))


def _names(options: Sequence[DeclaredOption], number: GivenNumber) -> Iterator[str]:
    for option in options:
        if option.attribute == number.attribute:
            yield from (name.lstrip("-").replace("-", "_") for name in option.names)


def _is_batch(name: str, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.search(name)) and not _NOT_OF_TRAINING.search(name)


def _named(tree: ast.AST, pattern: re.Pattern[str]) -> list[ast.expr]:
    """The values that a keyword, a variable, a key or an option gets that is named as a batch."""
    batches: list[ast.expr | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Assign():
                batches += [
                    value for target, value in _pairs(node) if _is_batch(last_name(target), pattern)
                ]
            case ast.AnnAssign(target=target, value=value) if _is_batch(last_name(target), pattern):
                batches.append(value)
            case ast.keyword(arg=str() as name, value=value) if _is_batch(name, pattern):
                batches.append(value)
            case ast.Dict(keys=keys, values=values):
                batches += [
                    value
                    for key, value in zip(keys, values, strict=True)
                    if isinstance(key, ast.Constant) and _is_batch(str(key.value), pattern)
                ]
            case ast.arguments(args=arguments, defaults=defaults) if defaults:
                pairs = zip(arguments[-len(defaults) :], defaults, strict=True)
                batches += [value for argument, value in pairs if _is_batch(argument.arg, pattern)]
    batches += [
        option.default
        for option in declared_options(tree)
        if any(_is_batch(name.replace("-", "_"), pattern) for name in option.names)
    ]
    return [value for value in batches if value is not None]


def _batches(tree: ast.AST) -> Iterator[ast.expr]:
    """The arguments that a loader or a function of the file takes as its batch, without a name."""
    functions = {function.name: function.args for function in nodes_of(tree, ast.FunctionDef)}
    for call in nodes_of(tree, ast.Call):
        name = name_of_call(call)
        if _LOADERS.search(name):
            yield from call.args[1:2]
        elif name in functions:
            parameters = functions[name].posonlyargs + functions[name].args
            for parameter, value in zip(parameters, call.args, strict=False):
                if _is_batch(parameter.arg, _BATCH):
                    yield value


def _dimensions(tree: ast.AST, dimension: int) -> list[tuple[bool, ast.expr]]:
    """A dimension of tensors that a loop or a function makes; True for one of a class."""
    lengths: dict[int, tuple[bool, ast.expr]] = {}
    for around in ast.walk(tree):
        if not isinstance(around, (ast.For, ast.While, ast.FunctionDef)):
            continue
        is_made_once = isinstance(around, ast.FunctionDef) and around.name == "__init__"
        for call in nodes_of(around, ast.Call):
            if ast.unparse(call.func).startswith("torch.") and call.args:
                size = next(
                    (argument for argument in call.args if isinstance(argument, ast.Tuple)), None
                )
                sizes = size.elts if size is not None and size.elts else call.args
                for length in sizes[dimension : dimension + 1]:
                    lengths[id(length)] = is_made_once, length
    return list(lengths.values())


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Each target of an assignment with its value, also in ``length, batch = 256, 32``."""
    for target in node.targets:
        match target, node.value:
            case ast.Tuple(elts=targets), ast.Tuple(elts=values) if len(targets) == len(values):
                yield from zip(targets, values, strict=True)
            case _:
                yield target, node.value


def _assigned(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """The value that a variable or an attribute gets, if it gets one only."""
    values = [
        value
        for node in nodes_of(tree, ast.Assign)
        for target, value in _pairs(node)
        if last_name(target) == name
    ]
    if len(values) == 1:
        yield values[0]


def _fields(tree: ast.AST, name: str) -> Iterator[ast.expr]:
    """The default of a field that a class declares, such as a dataclass."""
    for around in nodes_of(tree, ast.ClassDef):
        for node in around.body:
            match node:
                case (
                    ast.AnnAssign(target=ast.Name(id=field), value=value)
                    | ast.Assign(targets=[ast.Name(id=field)], value=value)
                ) if field == name and value is not None:
                    yield value


def _under_key(tree: ast.AST, key: str) -> Iterator[ast.expr]:
    """The value that a dictionary has under a key, if one dictionary has it only."""
    values = [
        value
        for node in nodes_of(tree, ast.Dict)
        for name, value in zip(node.keys, node.values, strict=True)
        if isinstance(name, ast.Constant) and name.value == key
    ]
    values += [
        keyword.value
        for call in nodes_of(tree, ast.Call)
        if name_of_call(call) == "dict"
        for keyword in call.keywords
        if keyword.arg == key
    ]
    if len(values) == 1:
        yield values[0]


def _makes_layer(tree: ast.AST, name: str) -> bool:
    """True if an object is made of a number that is no loader, such as a layer."""
    return any(
        last_name(argument) == name
        for call in nodes_of(tree, ast.Call)
        if name_of_call(call)[:1].isupper() and not _MAKES_NO_LAYER.search(name_of_call(call))
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
    )
