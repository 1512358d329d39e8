"""A scan for live objects, which runs no code of any object."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from itertools import compress
from typing import Any, Final, NamedTuple

import torch

GENERATIONS = (0, 1, 2)
_CLASSES = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer, torch._C._FunctionBase)


class LiveObjects(NamedTuple):
    """The objects that a scan found, oldest first."""

    tensors: list[torch.Tensor]
    modules: list[torch.nn.Module]
    optimizers: list[torch.optim.Optimizer]
    nodes: list[Any]  # of autograd, written in Python


def live_objects() -> LiveObjects:
    """The tensors, modules, optimizers and nodes of autograd that Python tracks."""
    instances: dict[type, list[Any]] = {kind: [] for kind in _CLASSES}
    for item in instances_of(*_CLASSES):
        instances[next(kind for kind in _CLASSES if issubclass(type(item), kind))].append(item)
    return LiveObjects(*instances.values())


def instances_of(*classes: type) -> list[Any]:
    """The instances of some classes that Python's garbage collector tracks, oldest first.

    >>> tensor = torch.zeros(3)
    >>> any(found is tensor for found in instances_of(torch.Tensor))
    True
    """
    # An object is recognised by its real type: ``isinstance`` would ask ``__class__``, which raises
    # for a dead weak proxy and may be anything for a mock.
    wanted = _with_subclasses(classes)
    # A collection between two reads moves objects up: read upwards, some come twice, none is lost.
    young_to_old = [
        _of_classes(gc.get_objects(generation=generation), wanted) for generation in GENERATIONS
    ]
    objects = {id(item): item for part in reversed(young_to_old) for item in part}
    return list(objects.values())


def _of_classes(objects: list[Any], wanted: list[type]) -> list[Any]:
    try:
        is_wanted = set(wanted).__contains__
        return list(compress(objects, map(is_wanted, map(type, objects))))
    except Exception:  # a class whose metaclass refuses to be hashed or compared
        ids = set(map(id, wanted))
        return [item for item in objects if id(type(item)) in ids]


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    try:
        return tensor.grad if tensor.is_leaf or tensor.retains_grad else None
    except Exception:  # a subclass that refuses
        return None


def alive(references: Iterable[weakref.ref[Any]]) -> list[Any]:
    # Alone in a function: a variable left over would reference the last one.
    return [item for reference in references if (item := reference()) is not None]


def unreferenced(tensors: list[torch.Tensor]) -> set[int]:
    """The ``id`` of the tensors that only C++ references, and no variable of the program."""
    # The Python object of a tensor lives on for as long as C++ references the tensor, such as in a
    # graph or as the base of a view. A scan finds it, but the program released it long ago. The
    # caller must have no other reference to the tensors: references are counted.
    least = _references_of_cpp_alone()
    return {
        id(tensor)
        for tensor, count in zip(tensors, _references(tensors), strict=True)
        if count <= least and _is_referenced_by_cpp(tensor)
    }


def _references(tensors: list[torch.Tensor]) -> list[int]:
    return [sys.getrefcount(tensor) for tensor in tensors]


def _is_referenced_by_cpp(tensor: torch.Tensor) -> bool:
    base: Any = torch._C.TensorBase  # whose method no subclass can hide
    with torch._C.DisableTorchFunctionSubclass():
        return bool(base._use_count(tensor) > 1)


def _references_of_cpp_alone() -> int:
    """Reference count of a tensor that only C++ references, measured on the base of a tiny view."""
    with torch.inference_mode(False), torch.enable_grad():
        view: Any = torch.ones((), device="cpu").view(1)
    return _references([view._base])[0]


def _with_subclasses(classes: tuple[type, ...]) -> list[type]:
    by_id: dict[int, type] = {}
    left = list(classes)
    while left:
        current = left.pop()
        if id(current) not in by_id:
            by_id[id(current)] = current
            left.extend(type.__subclasses__(current))
    return list(by_id.values())


_DEEPEST: Final = 8


def parameters_of(optimizer: torch.optim.Optimizer) -> list[Any]:
    """The parameters in the groups of an optimizer of any class, none if it cannot tell."""
    try:
        return [group.get("params") for group in optimizer.param_groups]
    except Exception:  # a property of a class of the program may raise anything
        return []


def states_of(optimizer: torch.optim.Optimizer) -> list[tuple[Any, Any]]:
    try:
        return list(optimizer.state.items())
    except Exception:
        return []


def tensors_in(state: object, path: str = "", depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dicts, lists and tuples, each with its path: ``.exp_avg``, ``.0``."""
    kind = type(state)
    if issubclass(kind, torch.Tensor):
        yield path, state  # type: ignore[misc]
    elif depth == _DEEPEST:
        return
    elif issubclass(kind, Mapping):
        for key, value in state.items():  # type: ignore[attr-defined]
            yield from tensors_in(value, f"{path}.{key}", depth + 1)
    elif issubclass(kind, (list, tuple)):
        for index, value in enumerate(state):  # type: ignore[arg-type]
            yield from tensors_in(value, f"{path}.{index}", depth + 1)
