"""The arguments of a Triton kernel, and those that it writes to, read from its source."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any

from ..machine.op_arguments import Args, Kwargs

_DESCRIPTORS = frozenset(
    {"make_tensor_descriptor", "_experimental_make_tensor_descriptor"}
    | {"experimental_device_tensormap_create1d", "experimental_device_tensormap_create2d"}
)
"""Functions that make descriptors of tensors on the GPU."""

_WRITING = ("store", "atomic", "scatter")
"""Beginnings of the names of what writes, without ``_experimental_descriptor_``."""

_POINTERS_MADE_OF = frozenset(
    {"advance", "broadcast_to", "make_block_ptr", "cast", "to", "reshape"}
)
_POINTERS_MADE_OF |= _DESCRIPTORS
"""Functions whose results point where their arguments do."""


def arguments_of(kernel: Any, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """Arguments of a launch by their names, without the compiler's options."""
    signature = _signature(kernel.fn)
    accepted = {name: value for name, value in kwargs.items() if name in signature.parameters}
    bound = signature.bind(*args, **accepted)
    bound.apply_defaults()
    return dict(bound.arguments)


@functools.lru_cache(maxsize=1024)
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)


@functools.lru_cache(maxsize=1024)
def makes_descriptors(function: Any) -> bool:
    """True if a function, or one that it calls, makes tensor descriptors on the GPU."""
    names = set(function.__code__.co_names)
    if names & _DESCRIPTORS:
        return True
    called = (_function_of(function.__globals__.get(name)) for name in names)
    return any(
        callee is not None and callee is not function and makes_descriptors(callee)
        for callee in called
    )


@functools.lru_cache(maxsize=1024)
def written(function: Any) -> frozenset[str]:
    """Names of the arguments that a kernel's function may write to."""
    # All of them, if its source is unknown.
    parameters = frozenset(_signature(function).parameters)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):
        return parameters
    return _Pointers(function, tree).reached() & parameters


def _function_of(value: Any) -> Any:
    """The Python function of a kernel or of what a kernel calls, None if it is neither."""
    function = getattr(value, "fn", None)
    return function if inspect.isfunction(function) else None


class _Pointers:
    """Finds what is written to, and which names each pointer is made of."""

    def __init__(self, function: Any, tree: ast.AST) -> None:
        self._globals = function.__globals__
        self._made_of: dict[str, set[str]] = {}
        self._written: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    self._assign(target, node.value)
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)):
                self._assign(node.target, node.value)
            elif isinstance(node, ast.For):
                self._assign(node.target, node.iter)
            elif isinstance(node, ast.Call):
                self._see_call(node)

    def reached(self) -> frozenset[str]:
        """All names from which a pointer that is written to was made."""
        names: set[str] = set()
        waiting = set(self._written)
        while waiting:
            name = waiting.pop()
            if name not in names:
                names.add(name)
                waiting |= self._made_of.get(name, set())
        return frozenset(names)

    def _see_call(self, node: ast.Call) -> None:
        name, owner = _called(node)
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        if name.removeprefix("_experimental_descriptor_").startswith(_WRITING):
            self._written |= set().union(*map(_names_in, [*node.args[:1], *node.keywords, owner]))
        elif self._is_program_function(name, owner):
            # It may write to any pointer that it is given.
            self._written |= set().union(*map(_names_in, arguments))

    def _is_program_function(self, name: str, owner: ast.AST | None) -> bool:
        """True if what is called is the program's own, which Triton's functions are not."""
        value = self._globals.get(name)
        if isinstance(owner, ast.Name):
            value = getattr(self._globals.get(owner.id), name, None)
        function = _function_of(value)
        return function is not None and not function.__module__.startswith("triton.")

    def _assign(self, target: ast.AST, value: ast.AST | None) -> None:
        for name in _names_in(target):
            self._made_of.setdefault(name, set()).update(_names_in(value))


def _called(node: ast.Call) -> tuple[str, ast.AST | None]:
    """The name of what is called, and what it is an attribute of."""
    if isinstance(node.func, ast.Attribute):
        return node.func.attr, node.func.value
    return (node.func.id if isinstance(node.func, ast.Name) else ""), None


def _names_in(node: ast.AST | None) -> set[str]:
    """Names of which a pointer may be made: not of those that a call takes to compute a value."""
    if node is None:
        return set()
    if isinstance(node, ast.Name):
        return {node.id}
    if isinstance(node, ast.Call):
        name, owner = _called(node)
        if name not in _POINTERS_MADE_OF:
            return set()
        return set().union(_names_in(owner), *map(_names_in, ast.iter_child_nodes(node)))
    return set().union(*map(_names_in, ast.iter_child_nodes(node)))
