"""Options that a program reads from its command line, and those that this run was given."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..fitting.variable import place_of
from .rewriting import name_of_call, nodes_of


@dataclass(frozen=True, slots=True)
class DeclaredOption:
    """An option that ``argparse``, ``click`` or a flag declares."""

    names: tuple[str, ...]  # such as ``-b`` and ``--batch-size``
    attribute: str  # that the program reads it from
    default: ast.expr | None


@dataclass(frozen=True, slots=True)
class GivenNumber:
    """A number that the command line gives an option."""

    option: str  # as it was written
    attribute: str
    value: int
    between: str  # ``=`` where it joins the option and the number

    def changed_in(self, arguments: Sequence[str], value: int) -> tuple[str, ...]:
        """The arguments with another number."""
        place = place_of(self.option, self.between or " ", arguments)
        return place.set_to(value).arguments(arguments)

    def text(self, value: int) -> str:
        """The option as it is written with another number.

        >>> GivenNumber("--batch-size", "batch_size", 64, "").text(32)
        '--batch-size 32'
        """
        return f"{self.option}{self.between or ' '}{value}"


def declared_options(tree: ast.AST) -> Iterator[DeclaredOption]:
    for call in nodes_of(tree, ast.Call):
        if name_of_call(call) not in {"add_argument", "option"}:
            continue
        words = [
            argument.value
            for argument in call.args
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
        ]
        names = tuple(word for word in words if word.startswith("-"))
        if not names:
            continue
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        attribute = next((name for name in names if name.startswith("--")), names[0])
        match keywords.get("dest"):
            case ast.Constant(value=str() as destination):
                attribute = destination
            case _:
                attribute = next((word for word in words if not word.startswith("-")), attribute)
        yield DeclaredOption(names, _attribute(attribute), keywords.get("default"))


def given_numbers(
    arguments: Sequence[str], declared: Sequence[DeclaredOption]
) -> dict[str, GivenNumber]:
    """The numbers of a command line, by the attribute that the program reads them from."""
    numbers: dict[str, GivenNumber] = {}
    for index, word in enumerate(arguments):
        if word == "--":
            break
        option, equals, text = word.partition("=")
        if not equals and word.startswith("-"):
            text = next(iter(arguments[index + 1 : index + 2]), "")
        if text.isdecimal() and (equals or word.startswith("-")):
            attribute = _attribute_of(option, declared)
            numbers[attribute] = GivenNumber(option, attribute, int(text), equals)
    return numbers


def _attribute_of(option: str, declared: Sequence[DeclaredOption]) -> str:
    exact = [option_declared for option_declared in declared if option in option_declared.names]
    begun = [
        option_declared
        for option_declared in declared
        if option.startswith("--")
        and any(name.startswith(option) for name in option_declared.names)
    ]
    for option_declared in exact or begun:
        return option_declared.attribute
    return _attribute(option)


def _attribute(option: str) -> str:
    """The attribute of an option, or the last part of a dotted name."""
    return option.lstrip("-").replace("-", "_").rpartition(".")[2]
