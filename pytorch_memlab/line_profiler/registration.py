"""From what a user names to the functions whose lines are profiled.

The ``line_profiler`` package (5.0 or later) takes callables and classes apart; what it does not
know is here: modules, ``nn.Module`` instances, and wrappers around a function.
"""

from __future__ import annotations

import functools
import inspect
import reprlib
import sys
from collections.abc import Iterable, Iterator
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from ..errors import NotAFunctionError


def resolve(obj: object) -> list[FunctionType]:
    """The functions that an object stands for, each once, in the order of their definition.

    >>> class Net:
    ...     @staticmethod
    ...     def forward(x):
    ...         return x
    >>> [function.__name__ for function in resolve(Net)]
    ['forward']
    """
    # Of a wrapper (``functools.wraps``, ``@torch.no_grad()``, ``functools.lru_cache``) the inner
    # function is taken. A class stands for the functions of its body, and an ``nn.Module`` instance
    # for those of its class and of its submodules' classes, but for torch's own.
    functions = {id(function.__code__): function for function in _python_functions(obj)}
    if not functions:
        raise NotAFunctionError(_complaint(obj))
    return list(functions.values())


def _python_functions(obj: object) -> Iterator[FunctionType]:
    for part in _parts(obj):
        for function in _underlying(part):
            inner = _unwrapped(function)
            if inner is function:
                yield function
            else:
                yield from _python_functions(inner)


def _parts(obj: object) -> Iterable[object]:
    """The parts of an object that ``line_profiler`` takes apart further."""
    if isinstance(obj, ModuleType):
        return _defined_in(obj)
    if _is_torch_module(obj):
        return [part for kind in _classes_of(obj) for part in _class_parts(kind)]
    return [
        part
        for inner in _parts_of_wrapper(obj)
        for part in (_class_parts(inner) if isinstance(inner, type) else [inner])
    ]


def _defined_in(module: ModuleType) -> list[object]:
    """The functions and classes that were not imported into a module."""
    return [
        part
        for member in list(vars(module).values())
        if getattr(member, "__module__", None) == module.__name__
        and isinstance(_unwrapped(member), (type, FunctionType))
        for part in _parts(member)
    ]


def _class_parts(kind: type) -> list[object]:
    """A class, what ``line_profiler`` passes over in it, and a ``forward`` that it inherits."""
    return [kind, *_cached_methods(kind), *_inherited_forward(kind)]


def _cached_methods(kind: type) -> list[object]:
    """Methods inside objects that C calls, such as ``functools.lru_cache`` makes."""
    members = [part for member in vars(kind).values() for part in _parts_of_wrapper(member)]
    return [
        member
        for member in members
        if isinstance(member, FunctionType)
        and member.__qualname__ == f"{kind.__qualname__}.{member.__name__}"
        and member.__module__ == kind.__module__
    ]


def _parts_of_wrapper(obj: object) -> list[object]:
    if isinstance(obj, functools.partial):
        return _parts_of_wrapper(obj.func)
    dispatcher = obj.dispatcher if isinstance(obj, functools.singledispatchmethod) else obj
    registered = getattr(dispatcher, "registry", None)
    if isinstance(registered, MappingProxyType):  # of ``functools.singledispatch``
        return list(registered.values())
    return [_unwrapped(obj)]


def _inherited_forward(kind: type) -> list[object]:
    nn = _torch_nn()
    if nn is None or not issubclass(kind, nn.Module) or "forward" in vars(kind):
        return []
    owner = next((base for base in kind.__mro__ if "forward" in vars(base)), None)
    return [] if owner is None or _is_torchs(owner) else [vars(owner)["forward"]]


def _classes_of(model: Any) -> list[type]:
    """The classes of a model and its submodules, each once, without torch's own."""
    kinds = dict.fromkeys(type(module) for module in model.modules())
    return [kind for kind in kinds if not _is_torchs(kind)]


def _is_torchs(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "torch"


def _is_torch_module(obj: object) -> bool:
    nn = _torch_nn()
    return nn is not None and isinstance(obj, nn.Module)


def _torch_nn() -> Any:
    """``torch.nn`` if the program has imported it; an object is no module before that."""
    return sys.modules.get("torch.nn")


def _unwrapped(obj: Any) -> object:
    if not hasattr(obj, "__wrapped__"):
        return obj
    try:
        return inspect.unwrap(obj)
    except ValueError:  # a mock has a __wrapped__ without end
        return obj


def _underlying(obj: object) -> list[FunctionType]:
    from line_profiler.profiler_mixin import ByCountProfilerMixin

    try:
        functions = ByCountProfilerMixin.get_underlying_functions(obj)
    except TypeError:  # neither a callable nor made of some
        return []
    # From Python 3.14 on, a class or module with annotations has a function that evaluates them.
    return [
        function
        for function in functions
        if isinstance(function, FunctionType) and function.__name__ != "__annotate__"
    ]


def _complaint(obj: object) -> str:
    what = _described(obj)
    if _is_torch_module(obj):
        return (
            f"{what} has no function outside torch to profile: give your own nn.Module, or a "
            "class of torch.nn itself"
        )
    if isinstance(obj, type):
        return f"{what} defines no Python function: give a class that does, or a function"
    if isinstance(obj, ModuleType):
        return f"{what} defines no Python function or class: give a module that does"
    if callable(obj):
        return f"{what} is not written in Python and has no lines: give the function that calls it"
    return (
        f"{what} is not a function: give a function, method, property, class, nn.Module or Python "
        "module"
    )


def _described(obj: object) -> str:
    if isinstance(obj, ModuleType):
        return f"module {obj.__name__}"
    if isinstance(obj, type):
        return f"class {obj.__qualname__}"
    name = getattr(obj, "__qualname__", None)
    if isinstance(name, str):
        return name
    if obj is None:
        return "None"
    if isinstance(obj, (int, float, str)):
        return f"{type(obj).__name__} {reprlib.repr(obj)}"
    # The repr of a tensor would wait for its device.
    return f"{type(obj).__name__} object"
