"""Functions that a user names, in source that has not run yet.

Note [Names of functions that do not exist yet]

The functions of a script or a cell do not exist before it runs; their code objects do, as constants
of the code that will define them. ``pytorch-memlab run -f`` and ``%mlrun -f`` find them here under
the names that people type: ``train``, ``Net.forward``, ``Net`` for all methods of a class, and
``outer.inner`` for a function in a function, whose ``__qualname__`` is ``outer.<locals>.inner``.
Names of other modules and of a notebook's variables are found by their callers.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import CodeType

from .._common.text.source_lines import source_lines
from .function_source import source_block
from .line_profiler import LineProfiler


@dataclass(frozen=True, slots=True)
class Definition:
    """A function as the program defines it."""

    qual_name: str  # its ``__qualname__``
    code: CodeType  # its code object


def definitions(code: CodeType, prefix: str = "") -> list[Definition]:
    r"""Every ``def`` of a program, those in classes and in other functions included.

    >>> code = compile("class A:\n def f(self): pass\ndef g(): return lambda: 0", "x", "exec")
    >>> [definition.qual_name for definition in definitions(code)]
    ['A.f', 'g']
    """
    # Lambdas and comprehensions belong to the line they are in.
    functions = []
    for constant in code.co_consts:
        if not isinstance(constant, CodeType):
            continue
        if constant.co_name.startswith("<generic parameters of"):
            functions += definitions(constant, prefix)
        elif constant.co_name.isidentifier() and constant.co_name != "__annotate__":
            qual_name = prefix + constant.co_name
            is_function = bool(constant.co_flags & inspect.CO_NEWLOCALS)
            if is_function:
                functions.append(Definition(qual_name, constant))
            functions += definitions(constant, f"{qual_name}{'.<locals>' * is_function}.")
    return functions


def lines_of(code: CodeType, source: str) -> list[str]:
    """The lines of a function without their ends, from the code's first line on."""
    block = source_block(_split(source), code.co_firstlineno - 1)
    return [line.rstrip("\n") for line in block]


@functools.lru_cache(maxsize=1)
def _split(source: str) -> list[str]:
    """All lines of a program, asked for once for each of its functions."""
    return source_lines(source, keepends=True)


def typed_name(qual_name: str) -> str:
    """A qualified name as people type it.

    >>> typed_name("outer.<locals>.inner")
    'outer.inner'
    """
    return qual_name.replace(".<locals>", "")


def nearest(name: str, all_names: Sequence[str]) -> list[str]:
    """At most four names that may have been meant: similar ones, or else the first."""
    return difflib.get_close_matches(name, all_names, n=4) or list(all_names[:4])


def places_of(names: Collection[str], all_names: Sequence[str]) -> list[int]:
    """Indexes of the functions of any of these names, or else of the methods of such classes.

    >>> places_of(["Net"], ["train", "Net.forward", "Net.loss"])
    [1, 2]
    """
    functions = [place for place, name in enumerate(all_names) if name in names]
    return functions or [
        place for place, name in enumerate(all_names) if name.rpartition(".")[0] in names
    ]


class SourceFunctions:
    """The functions that source will define; names of its ``modules`` may stand before theirs."""

    def __init__(
        self, code: CodeType, text: str | None, top_level: str, modules: Collection[str] = ()
    ) -> None:
        self._text = text
        self._modules = modules
        self.defined = definitions(code)
        """All functions, in the order of the source."""
        self.top_level = Definition(top_level, code)

    @property
    def names(self) -> list[str]:
        """The names of all functions as people type them."""
        return [typed_name(definition.qual_name) for definition in self.defined]

    def named(self, name: str) -> list[Definition]:
        """The function of a name, or else the methods of the class of this name."""
        names = {name} | {
            name[len(module) + 1 :]
            for module in self._modules
            if name.startswith((f"{module}.", f"{module}:"))
        }
        return [self.defined[place] for place in places_of(names, self.names)]

    def methods_named(self, name: str) -> list[Definition]:
        return [
            definition
            for definition in self.defined
            if typed_name(definition.qual_name).endswith(f".{name}")
        ]

    def add_to(self, profiler: LineProfiler, definition: Definition) -> None:
        """Profile a function of the source, or the code outside functions."""
        name, code = definition.qual_name, definition.code
        if self._text is None:
            profiler.add_code(code, name)
        elif definition is self.top_level:
            profiler.add_code(code, name, source_lines(self._text), _bodies(self._text))
        else:
            profiler.add_code(code, name, lines_of(code, self._text))


def _bodies(text: str) -> list[tuple[int, int]]:
    """First and last line of the body of each function: the code outside does not run them."""
    return [
        (node.body[0].lineno, node.end_lineno)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.end_lineno is not None
        and node.body[0].lineno > node.lineno
    ]
