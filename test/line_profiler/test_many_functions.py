"""Reading a function's source takes no longer where its file has more functions."""

from __future__ import annotations

import ast
import linecache
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytorch_memlab import LineProfiler
from pytorch_memlab.line_profiler import source_functions
from pytorch_memlab.line_profiler.source_functions import definitions, lines_of


def text_of(functions: int) -> str:
    return "".join(f"def f{n}(x):\n    y = x\n    return y\n\n\n" for n in range(functions))


class CountedLines(list[str]):
    """Lines of a file that count how many of them were handed out."""

    handed_out = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        self.handed_out += len(found) if isinstance(index, slice) else 1
        return found

    def __iter__(self) -> Iterator[str]:
        for line in super().__iter__():
            self.handed_out += 1
            yield line


def of_a_module(functions: int) -> tuple[int, list[tuple[str, ...] | None]]:
    text, name = text_of(functions), f"many{functions}.py"
    module = types.ModuleType("many")
    lines = CountedLines(text.splitlines(keepends=True))
    linecache.cache[name] = (len(text), None, lines, name)
    exec(compile(text, name, "exec"), vars(module))
    infos = LineProfiler(module)._code_infos.values()
    del linecache.cache[name]
    return lines.handed_out, [info.source for info in infos]


def of_a_script(functions: int) -> tuple[int, list[tuple[str, ...] | None]]:
    source = text_of(functions)
    lines = CountedLines(source.splitlines(keepends=True))

    def split(text: str, *, keepends: bool = False) -> list[str]:
        assert (text, keepends) == (source, True)
        lines.handed_out += len(lines)
        return lines

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_functions, "source_lines", split)
        found = definitions(compile(source, "script.py", "exec"))
        sources: list[tuple[str, ...] | None] = [tuple(lines_of(one.code, source)) for one in found]
    return lines.handed_out, sources


@pytest.mark.parametrize("read", [of_a_module, of_a_script])
def test_each_function_reads_its_own_lines_alone(
    read: Callable[[int], tuple[int, list[tuple[str, ...] | None]]],
) -> None:
    few, _ = read(20)
    many, sources = read(200)
    assert sources == [(f"def f{n}(x):", "    y = x", "    return y") for n in range(200)]
    assert many < 11 * few


def test_a_changed_file_is_parsed_once_for_all_its_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed = []
    parse = ast.parse

    def counted_parse(text: Any, *args: Any, **kwargs: Any) -> ast.AST:
        parsed.append(text)
        return parse(text, *args, **kwargs)

    monkeypatch.setattr(ast, "parse", counted_parse)
    was, now = text_of(50), "import torch\n\n\n" + text_of(50)
    module = types.ModuleType("changed")
    exec(compile(was, "changed.py", "exec"), vars(module))
    monkeypatch.setitem(
        linecache.cache, "changed.py", (len(now), None, now.splitlines(keepends=True), "changed.py")
    )
    infos = list(LineProfiler(module)._code_infos.values())
    assert [info.source for info in infos] == [
        (f"def f{n}(x):", "    y = x", "    return y") for n in range(50)
    ]
    assert parsed.count(now) == 1
