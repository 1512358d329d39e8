"""Objects that may be registered, the functions they stand for, and what is refused."""

from __future__ import annotations

import functools
import linecache
import subprocess
import sys
import types
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from pytorch_memlab.errors import NotAFunctionError, UsageError
from pytorch_memlab.line_profiler.function_source import FunctionSource, function_source
from pytorch_memlab.line_profiler.registration import resolve


def names(obj: object) -> list[str]:
    return [function.__qualname__.rpartition("<locals>.")[2] for function in resolve(obj)]


def source_of(obj: Any) -> FunctionSource:
    (function,) = resolve(obj)
    return function_source(function.__code__, function.__qualname__)


def plain(x):
    return x


def wrapping(function):
    @functools.wraps(function)
    def wrapper(*args):
        return function(*args)

    return wrapper


@wrapping
@wrapping
def twice_wrapped(x):
    return x


@torch.no_grad()
def without_grad(x):
    return x


@torch.inference_mode()
def inferring(x):
    return x


@functools.cache
def cached(x):
    return x


@functools.singledispatch
def dispatching(x):
    return x


@contextmanager
def in_context():
    yield 1


def generating():
    yield 1


async def waiting():
    return 1


async def async_generating():
    yield 1


class Holder:
    attribute = 3
    borrowed = plain
    short = lambda self: 1  # noqa: E731

    def method(self):
        return self

    @staticmethod
    def static():
        return 1

    @classmethod
    def of_class(cls):
        return cls

    @property
    def both(self):
        return 1

    @both.setter
    def both(self, value):
        self.value = value

    @functools.cached_property
    def kept(self):
        return 1

    @wrapping
    def wrapped(self):
        return 1

    @functools.lru_cache  # noqa: B019
    def remembered(self):
        return 1

    @functools.singledispatchmethod
    def dispatched(self, value):
        return value

    partly = functools.partialmethod(method)

    class Inner:
        def nested(self):
            return self

    def __call__(self):
        return 1


class Base(nn.Module):
    def forward(self, x):
        return x


class Block(Base):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(), nn.ReLU(), Block())

    @torch.no_grad()
    def forward(self, x):
        return self.blocks(x)


class Stack(nn.Sequential):
    pass


@pytest.mark.parametrize(
    ("obj", "inner"),
    [
        (plain, plain),
        (twice_wrapped, twice_wrapped.__wrapped__.__wrapped__),
        (without_grad, without_grad.__wrapped__),
        (inferring, inferring.__wrapped__),
        (cached, cached.__wrapped__),
        (in_context, in_context.__wrapped__),
        (dispatching, dispatching.__wrapped__),
        (generating, generating),
        (waiting, waiting),
        (async_generating, async_generating),
        (functools.partial(plain, 1), plain),
        (
            functools.partial(functools.partial(twice_wrapped), 1),
            twice_wrapped.__wrapped__.__wrapped__,
        ),
        (functools.partial(functools.partial(cached), 1), cached.__wrapped__),
        (functools.partialmethod(plain), plain),
        (Holder().method, Holder.method),
        (Holder().wrapped, Holder.wrapped.__wrapped__),
        (Holder.static, Holder.static),
        (vars(Holder)["static"], Holder.static),
        (Holder.of_class, Holder.of_class.__func__),
        (vars(Holder)["of_class"], Holder.of_class.__func__),
        (vars(Holder)["kept"], vars(Holder)["kept"].func),
        (Holder(), Holder.__call__),
        (Net().forward, Net.forward.__wrapped__),
        (Net.forward, Net.forward.__wrapped__),
    ],
)
def test_one_function_behind(obj: Any, inner: types.FunctionType) -> None:
    (found,) = resolve(obj)
    assert found is inner


def test_a_dispatcher_stands_for_all_that_it_calls() -> None:
    @functools.singledispatch
    def described(x: Any) -> str:
        return "something"

    @described.register
    def of_int(x: int) -> str:
        return "a number"

    assert resolve(described) == [described.__wrapped__, of_int]


def test_property_stands_for_its_functions() -> None:
    both = vars(Holder)["both"]
    assert resolve(both) == [both.fget, both.fset]


def test_class_stands_for_the_functions_of_its_body() -> None:
    assert sorted(names(Holder)) == [
        "Holder.<lambda>",
        "Holder.Inner.nested",
        "Holder.__call__",
        "Holder.both",
        "Holder.both",
        "Holder.dispatched",
        "Holder.kept",
        "Holder.method",
        "Holder.of_class",
        "Holder.remembered",
        "Holder.static",
        "Holder.wrapped",
    ]


def test_module_class_stands_for_its_body_and_the_forward_it_inherits() -> None:
    assert names(Net) == ["Net.__init__", "Net.forward"]
    assert names(Block) == ["Block.__init__", "Base.forward"]
    assert names(nn.ReLU) == ["ReLU.__init__", "ReLU.forward", "ReLU.extra_repr"]


def test_module_instance_stands_for_its_submodules_classes_but_torchs() -> None:
    assert names(Net()) == ["Net.__init__", "Net.forward", "Block.__init__", "Base.forward"]
    assert names(nn.Sequential(nn.Linear(2, 2), Block())) == ["Block.__init__", "Base.forward"]


def test_python_module_stands_for_what_it_defines() -> None:
    module = types.ModuleType("defining")
    source = (
        "import functools\n"
        "from math import sqrt\n"
        "from functools import wraps\n"
        "def function(): pass\n"
        "@functools.lru_cache\n"
        "def cached(): pass\n"
        "class Class:\n"
        "    def method(self): pass\n"
        "    def __call__(self): pass\n"
        "instance = Class()\n"
        "partial = functools.partial(function)\n"
        "number = 3\n"
    )
    exec(source, vars(module))
    module.imported = plain
    assert names(module) == ["function", "cached", "Class.method", "Class.__call__"]


def evaluator(owner: str) -> types.FunctionType:
    """Python 3.14 leaves one in each class or module that annotates its variables."""

    def __annotate__(format, /):
        return {"size": int}

    __annotate__.__qualname__ = f"{owner}__annotate__"
    return __annotate__


def test_annotations_are_no_function_of_a_class_or_module() -> None:
    class Net(nn.Module):
        size: int

        def forward(self, x):
            return x

    class Sizes:
        size: int

    for kind in (Net, Sizes):
        kind.__annotate_func__ = evaluator(f"{kind.__qualname__}.")  # type: ignore[attr-defined]
    module = types.ModuleType(__name__)
    vars(module).update(Net=Net, Sizes=Sizes, __annotate__=evaluator(""))
    assert names(Net) == names(Net()) == names(module) == ["Net.forward"]
    with pytest.raises(NotAFunctionError, match="Sizes defines no Python function: give a class"):
        resolve(Sizes)


def test_a_function_named_twice_is_found_once() -> None:
    class Twice:
        def one(self):
            return 1

        two = one
        three = property(one)

    assert names(Twice) == ["Twice.one"]


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        (3, "int 3 is not a function: give a function"),
        (None, "None is not a function"),
        ("plain", "str 'plain' is not a function"),
        (len, "len is not written in Python and has no lines: give the function that calls it"),
        (torch.relu, "_VariableFunctionsClass.relu is not written in Python"),
        (list.append, "list.append is not written in Python"),
        (functools.partial(print, 1), "partial object is not written in Python"),
        (int, "class int defines no Python function: give a class that does"),
        (Stack, "class Stack defines no Python function"),
        (property(), "property object is not a function"),
        (types.ModuleType("empty"), "module empty defines no Python function or class"),
        (nn.Linear(2, 2), "Linear object has no function outside torch"),
        (mock.NonCallableMock(), "NonCallableMock object is not a function"),
        (torch.zeros(2), "Tensor object is not a function"),
    ],
)
def test_what_has_no_lines_is_refused_in_one_line(obj: object, message: str) -> None:
    with pytest.raises(NotAFunctionError) as raised:
        resolve(obj)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert isinstance(raised.value, UsageError)
    assert isinstance(raised.value, TypeError)


def test_source_begins_with_the_decorator() -> None:
    function = without_grad.__wrapped__
    lines = ("@torch.no_grad()", "def without_grad(x):", "    return x")
    assert source_of(without_grad) == FunctionSource(function.__code__.co_firstlineno, lines)


def test_function_without_source() -> None:
    namespace: dict[str, Any] = {}
    exec(compile("\n\ndef f():\n    return 1\n", "<nowhere>", "exec"), namespace)
    assert resolve(namespace["f"]) == [namespace["f"]]
    assert source_of(namespace["f"]) == FunctionSource(3, None)


def test_function_whose_file_is_shorter_than_its_line(tmp_path: Any) -> None:
    namespace: dict[str, Any] = {}
    path = tmp_path / "short.py"
    path.write_text("x = 1\n")
    exec(compile("\n" * 9 + "def f(): pass\n", str(path), "exec"), namespace)
    assert source_of(namespace["f"]) == (10, None, False)


def test_notebook_cell_has_source() -> None:
    name, text = "<ipython-input-1-0>", "x = 1\n@staticmethod\ndef f():\n    return 1\n"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {}
    exec(compile(text, name, "exec"), namespace)
    try:
        found = source_of(namespace["f"])
    finally:
        del linecache.cache[name]
    assert found == (2, ("@staticmethod", "def f():", "    return 1"), False)


def test_the_registration_module_loads_neither_line_profiler_nor_torch() -> None:
    support = Path(__file__).parents[1] / "support"
    script = (
        f"import sys; sys.path.insert(0, {str(support)!r})\n"
        "import traced_programs; traced_programs.import_without_torch()\n"
        "from pytorch_memlab.line_profiler.registration import resolve\n"
        "assert 'line_profiler' not in sys.modules\n"
        "resolve(traced_programs.outer)\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
