"""The line numbers of functions that IPython's autoreload compiled by themselves.

Note [Functions that autoreload compiles]

From version 9 on, ``%autoreload`` does not run a module again of which only functions were edited.
It prints the syntax tree of each of them as new text, without comments and with other line breaks,
compiles that from line 1 on, and gives the code to the function that is there. A method is in a
class ``__autoreload_class__`` then, so that its code begins at line 2, and the code of a new
function or class says no file at all. Functions that were not edited keep their code, although
they stand on other lines now.

Every table, stack and traceback has its line numbers from the code. So such a function gets code
that differs in nothing but lines and names. Its definition in the file is compiled on its own
lines, and takes the place of code that is the same to the last instruction and line, or that is
what the definition gives as IPython prints it. If no definition or more than one passes, as in a
file that was edited again, the function keeps its code.

A function that another one makes has its code from there. Where that one gets the numbers of its
file only after it has made some, these get the same.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

from .._common.frames.user_code import is_of_user
from ..errors import NotAFunctionError
from .function_source import Definition, begins_definition, defined_in
from .registration import resolve

_RELOADER: Final = "IPython.extensions.deduperreload.deduperreload"
_CLASS: Final = "__autoreload_class__"  # in which IPython compiles a method
_NO_FILE: Final = "<string>"
_LOCAL: Final = ".<locals>."


_numbered_inside: WeakKeyDictionary[CodeType, CodeType] = WeakKeyDictionary()
"""Codes of functions that others make: as autoreload compiled them, and as in the file."""


def number_as_in_file(function: FunctionType) -> None:
    """Give a function that autoreload compiled the line numbers of its file."""
    code = function.__code__
    if _RELOADER not in sys.modules:
        return
    filename = getattr(sys.modules.get(function.__module__), "__file__", None)
    if not isinstance(filename, str) or not is_of_user(filename):
        return
    linecache.checkcache(filename)
    lines = linecache.getlines(filename)
    if _begins_in(lines, code):
        return
    if _LOCAL in function.__qualname__:
        _number_all_of(sys.modules[function.__module__])
        _number_as_inside(function)
        return
    codes = list(_codes_in_file(function, filename, "".join(lines)))
    if len(codes) != 1:
        return
    [(name, numbered)] = codes
    if _place(numbered) != _place(code):
        _numbered_inside.update(zip(_inner(code), _inner(numbered), strict=True))
        function.__qualname__, function.__code__ = name, numbered


def _number_as_inside(function: FunctionType) -> None:
    """Give a function that another one made what that one gives to those that it makes now."""
    numbered = _numbered_inside.get(function.__code__)
    if numbered is not None:
        named: Any = numbered  # only Python 3.11 and later, which IPython 9 needs
        function.__qualname__, function.__code__ = named.co_qualname, numbered


def number_all_as_in_files() -> None:
    """Do so for all functions of the user's modules: those that are not profiled are in stacks."""
    if _RELOADER not in sys.modules:
        return
    for module in list(sys.modules.values()):
        _number_all_of(module)


def _number_all_of(module: object) -> None:
    names = dict(getattr(module, "__dict__", {}))
    file = names.get("__file__")
    if isinstance(file, str) and is_of_user(file):
        for member in names.values():
            # Objects of other types may do anything when they are asked for an attribute.
            if issubclass(type(member), (FunctionType, type)):
                _number_defined(member, names.get("__name__"))


def _number_defined(member: Any, module: object) -> None:
    if member.__module__ == module:
        with suppress(NotAFunctionError):
            for function in resolve(member):
                if _LOCAL in function.__qualname__:
                    _number_as_inside(function)
                else:
                    number_as_in_file(function)


def member_named(module: object, qual_name: str) -> object:
    """The member of a module that has a qualified name now; None without one."""
    member = module
    for name in qual_name.split("."):
        member = getattr(member, "__dict__", {}).get(name)
    return member


def is_made_otherwise_now(code: CodeType, qual_name: str, module: object) -> bool:
    """True if the function that made one of this code has none that does the same any more."""
    # Only lines and names of files may differ: autoreload makes other text, without comments.
    outer, _, inner = qual_name.rpartition(_LOCAL)
    made_by: Any = member_named(module, outer.split(_LOCAL)[0])
    made_by = getattr(inspect.unwrap(made_by), "__code__", None) if callable(made_by) else None
    if not outer or not isinstance(made_by, CodeType):
        return False
    alike = (code for code in _inner(made_by) if code.co_name == inner.rpartition(".")[2])
    return _without_lines(code) not in map(_without_lines, alike)


def _without_lines(code: CodeType) -> CodeType:
    inner = [
        _without_lines(constant) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    ]
    return code.replace(
        co_filename="",
        co_firstlineno=1,
        co_linetable=b"",
        co_consts=tuple(inner),
        co_qualname=code.co_name,
    )


def _place(code: CodeType) -> tuple[str, int, list[bytes]]:
    tables = [part.co_linetable for part in (code, *_inner(code))]
    return code.co_filename, code.co_firstlineno, tables


def _begins_in(lines: list[str], code: CodeType) -> bool:
    """True if a code has the place of its definition, as almost all have."""
    first = code.co_firstlineno
    if code.co_filename == _NO_FILE or not 2 < first <= len(lines):
        return False
    return begins_definition(lines[first - 1], code.co_name)


def _codes_in_file(
    function: FunctionType, filename: str, text: str
) -> Iterator[tuple[str, CodeType]]:
    """Each definition of a file that is that of a function: its qualified name and its code."""
    code = function.__code__
    for name, definition in defined_in(text):
        if _is_named(function, name):
            numbered = _code_if_moved(code, definition, _whole_file(filename, text))
            numbered = numbered or _code_if_printed(code, name, definition, filename)
            if numbered is not None:
                yield name, numbered


def _code_if_moved(
    code: CodeType, definition: Definition, whole: tuple[CodeType, ...]
) -> CodeType | None:
    """The code of a definition in its file; None if it is not that of the function."""
    first = min(part.lineno for part in (definition, *definition.decorator_list))
    place = definition.name, first
    same_place = [code for code in whole if (code.co_name, code.co_firstlineno) == place]
    return same_place[0] if len(same_place) == 1 and _is_same(same_place[0], code) else None


@functools.lru_cache(maxsize=1)
def _whole_file(filename: str, text: str) -> tuple[CodeType, ...]:
    with suppress(SyntaxError, ValueError):
        return tuple(_inner(compile(text, filename, "exec", dont_inherit=True)))
    return ()


def _code_if_printed(
    code: CodeType, name: str, definition: Definition, filename: str
) -> CodeType | None:
    """The code of a definition by itself; None if the function is not what IPython made of it."""
    outer = name.rpartition(".")[0]
    owner = outer.rpartition(".")[2] if code.co_filename == _NO_FILE or not outer else _CLASS
    tree = _by_itself(definition, owner)
    # IPython compiles new functions as its own module is compiled, which has this import.
    for flags in (0, __future__.annotations.compiler_flag):
        with suppress(SyntaxError, ValueError):
            printed = compile(ast.unparse(tree), filename, "exec", flags, dont_inherit=True)
            if _is_same(_function_in(printed, definition.name), code):
                whole = compile(tree, filename, "exec", flags, dont_inherit=True)
                numbered = _function_in(whole, definition.name)
                return _renamed(numbered, f"{owner}.", f"{outer}.") if outer else numbered
    return None


def _is_named(function: FunctionType, name: str) -> bool:
    outer, _, own = function.__qualname__.rpartition(".")
    return name.rpartition(".")[2] == own and outer in (name.rpartition(".")[0], _CLASS)


def _by_itself(definition: Definition, owner: str) -> ast.Module:
    """A definition as a program, inside of a class if there is a name of one."""
    if not owner:
        return ast.Module([definition], [])
    # Python 3.12 and later want a field of type parameters, which others do not know.
    fields: dict[str, Any] = {field: [] for field in ast.ClassDef._fields}
    fields |= {"name": owner, "body": [definition]}
    return ast.Module([ast.copy_location(ast.ClassDef(**fields), definition)], [])


def _function_in(program: CodeType, name: str) -> CodeType:
    return next(
        code
        for code in _inner(program)
        if code.co_name == name and code.co_flags & inspect.CO_NEWLOCALS
    )


def _inner(code: CodeType) -> Iterator[CodeType]:
    """All code objects in one, outer ones first."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inner(constant)


def _is_same(code: CodeType, other: CodeType) -> bool:
    """True if two codes do the same on the same lines, counted from the first."""
    return _place(code)[2] == _place(other)[2] and _anywhere(code) == _anywhere(other)


def _anywhere(code: CodeType) -> CodeType:
    """A code without its place; equal codes may have different tables of lines all the same."""
    return _changed(code, co_filename="", co_firstlineno=1, co_qualname=code.co_name)


def _changed(code: CodeType, **changes: Any) -> CodeType:
    """A code with changes, those in it too, of which each has its own name."""
    inner = [
        _changed(constant, **changes | {"co_qualname": constant.co_name})
        if isinstance(constant, CodeType)
        else constant
        for constant in code.co_consts
    ]
    return code.replace(co_consts=tuple(inner), **changes)


def _renamed(code: CodeType, before: str, after: str) -> CodeType:
    """A code whose qualified names, those of the codes in it too, begin with another class."""
    inner = [
        _renamed(constant, before, after) if isinstance(constant, CodeType) else constant
        for constant in code.co_consts
    ]
    named: Any = code  # only Python 3.11 and later, which IPython 9 needs, know qualified names
    changes = {"co_qualname": after + named.co_qualname.removeprefix(before)}
    return code.replace(co_consts=tuple(inner), **changes)
