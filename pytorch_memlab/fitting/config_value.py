"""One value of a configuration file or a script, replaced in the text that the program reads.

Comments, anchors and the layout stay: a program may read its file in any way. JSON has nothing
but values and is written again.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from types import CodeType
from typing import IO, Any, Final

from .._common.patching.patches import Patches
from .._common.text.quoted import shortened
from ..errors import UsageError

Value = int | str
"""A number, or a word such as ``bf16``."""

_TOML_TOKEN: Final = re.compile(
    r"""
    "(?:[^"\\\n]|\\.)*"  # a string
    | '[^'\n]*'  # one without escapes
    | [^\s,\[\]{}\#="']+  # a number, a word, or the name of a key
    """,
    re.VERBOSE,
)
_YAML_PROPERTIES: Final = re.compile(r"(?:[&!]\S*\s+)*")
"""The anchor and the tag before a value."""


class _NoSuchKeyError(Exception):
    """A part of a key that a file does not have; ``known`` are those that it has there."""

    def __init__(self, part: str, names: Iterable[object]) -> None:
        super().__init__(part)
        self.part = part
        self.known = [str(name) for name in names]


def changed_text(path: str, text: str, key: str, value: Value) -> str:
    """The text of a file with another value."""
    change = FORMATS[os.path.splitext(path)[1].lower().removeprefix(".")]
    try:
        return change(text, key.split("."), value)
    except _NoSuchKeyError as error:
        near = get_close_matches(error.part, error.known, n=1)
        names = ", ".join(error.known)
        hint = f"did you mean {near[0]}?" if near else f"there is {shortened(names or 'nothing')}"
        where = "" if error.part == key else f" of {key}"
        raise UsageError(f"{path} has no {error.part}{where}: {hint}") from None
    except UsageError:
        raise
    except (ValueError, SyntaxError) as error:
        problem = " ".join(str(error).split())
        raise UsageError(f"cannot read {path}: {shortened(problem)}") from None


def _json(text: str, parts: Sequence[str], value: Value) -> str:
    return json.dumps(_with_value(json.loads(text), parts, value), indent=2)


def _toml(text: str, parts: Sequence[str], value: Value) -> str:
    """The first of all edits of one token after which the file says what it should."""
    import tomllib

    # As texts, where 1 is neither 1.0 nor true, and nan is nan.
    content = tomllib.loads(text)
    expected = repr(_with_value(content, parts, value))
    if repr(content) == expected:
        return text
    written = str(value) if isinstance(value, int) else json.dumps(value)
    for token in _TOML_TOKEN.finditer(text):
        changed = text[: token.start()] + written + text[token.end() :]
        try:
            if repr(tomllib.loads(changed)) == expected:
                return changed
        except tomllib.TOMLDecodeError:
            continue
    raise ValueError(f"{'.'.join(parts)} is no plain value")


def _yaml(text: str, parts: Sequence[str], value: Value) -> str:
    try:
        import yaml
    except ImportError:
        raise UsageError("YAML files need PyYAML: pip install pyyaml") from None

    try:
        documents = list(yaml.compose_all(text, yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None
    node = _at(parts, documents[0] if documents else None, _in_yaml)
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{'.'.join(parts)} is no plain value")
    properties = _YAML_PROPERTIES.match(text, node.start_mark.index)
    begin = properties.end() if properties else node.start_mark.index
    return text[:begin] + str(value) + text[node.end_mark.index :]


def _in_yaml(node: Any) -> dict[str, Any]:
    kind = getattr(node, "id", "")
    if kind == "sequence":
        return _numbered(node.value)
    return {str(name.value): value for name, value in node.value} if kind == "mapping" else {}


def _python(text: str, parts: Sequence[str], value: Value) -> str:
    node = _at(parts, ast.parse(text), _in_python)
    if not isinstance(node, ast.expr):
        raise ValueError(f"{'.'.join(parts)} is no plain value")
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset
    end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    content = text.encode()
    return (content[:begin] + repr(value).encode() + content[end:]).decode()


def _in_python(node: ast.AST) -> dict[str, ast.AST]:
    values: dict[str, ast.AST] = {}
    for name, value in _assigned(node):  # a constant goes before what is computed from it
        if isinstance(value, ast.Constant) or not isinstance(values.get(name), ast.Constant):
            values[name] = value
    return values


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """Names in a module, a class, a dictionary or a call, and what each is set to."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                yield str(key.value), value
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            if keyword.arg is not None:
                yield keyword.arg, keyword.value
    elif isinstance(node, (ast.Module, ast.ClassDef, ast.If, ast.Try, ast.With)):
        for statement in node.body:
            if isinstance(statement, ast.ClassDef):
                yield statement.name, statement
            elif isinstance(statement, (ast.If, ast.Try, ast.With)):
                yield from _assigned(statement)
            elif isinstance(statement, ast.AnnAssign):
                if isinstance(statement.target, ast.Name) and statement.value is not None:
                    yield statement.target.id, statement.value
            elif isinstance(statement, ast.Assign):
                for target in statement.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, statement.value


def _with_value(content: Any, parts: Sequence[str], value: Value) -> Any:
    changed = deepcopy(content)
    _at(parts, changed, _in_data)
    place = _at(parts[:-1], changed, _in_data)
    place[int(parts[-1]) if isinstance(place, list) else parts[-1]] = value
    return changed


def _in_data(place: Any) -> dict[str, Any]:
    if isinstance(place, list):
        return _numbered(place)
    return place if isinstance(place, dict) else {}


def _numbered(items: Sequence[Any]) -> dict[str, Any]:
    return {str(number): item for number, item in enumerate(items)}


def _at(parts: Sequence[str], place: Any, things_in: Callable[[Any], Mapping[str, Any]]) -> Any:
    """Follow a path of names from a place, given the things in each place by name."""
    for part in parts:
        inside = things_in(place)
        if part not in inside:
            raise _NoSuchKeyError(part, inside)
        place = inside[part]
    return place


FORMATS: Final[Mapping[str, Callable[[str, Sequence[str], Value], str]]] = {
    "yaml": _yaml,
    "yml": _yaml,
    "json": _json,
    "toml": _toml,
    "py": _python,
}
"""By the ending of a file, what replaces a value in it."""


class _Content(io.BytesIO):
    """An open file of which only the content is there."""

    def __init__(self, content: bytes, name: Any) -> None:
        super().__init__(content)
        self.name = name


@contextmanager
def replaced_file(
    path: str, content: bytes, was_read: Callable[[], object] = lambda: None
) -> Iterator[None]:
    """Let this process read something else where it reads a file, or imports it."""
    # Who opens the file to write it, or opens it without Python's ``open``, gets the file itself.
    real = os.path.realpath(path)
    base = os.path.basename(real)

    def is_meant(file: Any) -> bool:
        try:
            name = os.fsdecode(file)
        except TypeError:  # a number that the system gave to an open file
            return False
        return (base in name or os.path.islink(name)) and os.path.realpath(name) == real

    def contents() -> bytes:
        was_read()
        return content

    former_import = SourceFileLoader.get_code
    former, former_code = io.open, io.open_code

    def open(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> IO[Any]:
        if set("wax+").isdisjoint(mode) and is_meant(file):
            raw = _Content(contents(), file)
            if "b" in mode:
                return raw
            return io.TextIOWrapper(raw, encoding, errors, newline)
        return former(file, mode, buffering, encoding, errors, newline, closefd, opener)

    def open_code(path: str) -> IO[bytes]:
        return _Content(contents(), path) if is_meant(path) else former_code(path)

    def get_code(self: SourceFileLoader, fullname: str) -> CodeType | None:
        if is_meant(self.path):
            return self.source_to_code(contents(), self.path)
        return former_import(self, fullname)

    with Patches() as patches:
        patches.set(builtins, "open", open)
        patches.set(io, "open", open)
        patches.set(io, "open_code", open_code)
        patches.set(SourceFileLoader, "get_code", get_code)
        yield
