"""The repeated blocks of a model: what activation checkpointing and sharding take one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import torch
from torch import nn

from ...tensors.live_objects import instances_of

_CONTAINERS: Final = (nn.ModuleList, nn.Sequential, nn.ModuleDict)

Named = tuple[str, nn.Module]


def outermost(module: nn.Module) -> nn.Module:
    """The largest module that is alive and has a module in it; often the module itself."""
    with torch._C.DisableTorchFunction():
        around = [each for each in instances_of(nn.Module) if _has(each, module)]
    return max(around, key=lambda each: sum(1 for _ in each.modules()), default=module)


def repeated_blocks(model: nn.Module) -> list[Named]:
    """Modules of one class that a model has several of, with their paths.

    Those in lists come first, the outermost of them. Without any, other parts of one class count,
    such as the stages of a U-Net.
    """
    return _repeated(model, _in_container) or _repeated(model, _is_own_class)


def in_code(model: nn.Module, name: str, paths: Sequence[str]) -> str:
    """Blocks as a program writes them: ``model.blocks[:12]``."""
    parents: dict[str, list[str]] = {}
    for path in paths:
        parent, _, last = path.rpartition(".")
        parents.setdefault(parent, []).append(last)
    parts = [_of_parent(model, name, parent, lasts) for parent, lasts in parents.items()]
    if len(parts) == 1 and not parts[0].startswith("*"):
        return parts[0]
    if len(parts) == 1:
        return parts[0].removeprefix("*")
    return f"[{', '.join(parts)}]"


def expression(model: nn.Module, name: str, path: str) -> str:
    """A module as a program writes it: ``model.stages[0].blocks``."""
    text, module = name, model
    for part in path.split(".") if path else ():
        text += (
            f"[{part}]"
            if isinstance(module, _CONTAINERS[:2])
            else (f"[{part!r}]" if isinstance(module, nn.ModuleDict) else f".{part}")
        )
        module = module.get_submodule(part)
    return text


def _of_parent(model: nn.Module, name: str, parent: str, lasts: Sequence[str]) -> str:
    """Some children of one module: an expression of all of them, after a star."""
    module = model.get_submodule(parent)
    here = expression(model, name, parent)
    if not isinstance(module, _CONTAINERS[:2]):
        return ", ".join(expression(model, name, f"{parent}.{one}".lstrip(".")) for one in lasts)
    numbers = list(map(int, lasts))
    first, last = numbers[0], numbers[-1]
    if numbers == list(range(len(module))):
        return f"*{here}"
    if numbers == list(range(first, last + 1)):
        begin, end = first or "", "" if last + 1 == len(module) else last + 1
        return f"*{here}[{begin}:{end}]"
    return ", ".join(f"{here}[{number}]" for number in numbers)


def _repeated(model: nn.Module, counts: Callable[[nn.Module, nn.Module], bool]) -> list[Named]:
    candidates = [
        (path, module)
        for path, module, parent in _with_parents(model)
        if next(module.children(), None) is not None and counts(module, parent)
    ]
    numbers = Counter(type(module) for _, module in candidates)
    return list(_outermost_of([each for each in candidates if numbers[type(each[1])] > 1]))


def _in_container(_module: nn.Module, parent: nn.Module) -> bool:
    return isinstance(parent, _CONTAINERS)


def _is_own_class(module: nn.Module, _parent: nn.Module) -> bool:
    return not type(module).__module__.startswith("torch.")


def _outermost_of(found: Iterable[Named]) -> Iterator[Named]:
    """Those that are in none of the others; each follows what it is in."""
    around = ""
    for path, module in found:
        if not around or not path.startswith(around):
            around = f"{path}."
            yield path, module


def _with_parents(model: nn.Module) -> Iterator[tuple[str, nn.Module, nn.Module]]:
    modules = dict(model.named_modules())
    for path, module in modules.items():
        if path:
            yield path, module, modules.get(path.rpartition(".")[0], model)


def _has(module: nn.Module, part: nn.Module) -> bool:
    try:
        return any(each is part for each in module.modules())
    except Exception:  # a module that is not made yet, or a method of the program's
        return False
