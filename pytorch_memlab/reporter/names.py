"""Names of tensors: of models and optimizers, and after the variables that lead to them.

They are remembered without keeping a tensor alive.
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import sys
import sysconfig
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count, islice
from types import (
    BuiltinFunctionType,
    FrameType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
)
from typing import Any

import torch

from .._common.frames.program_lines import folder_names, is_of_program
from .._common.frames.user_code import is_of_user
from .._common.process.ipython import ipython_shell
from .._common.process.uncaught_errors import chain
from ..tensors.live_objects import alive, states_of, tensors_in

_numbers = count(1)


@dataclass(slots=True)
class _Remembered:
    """The name of a tensor, for as long as it lives."""

    reference: weakref.ref[torch.Tensor]
    number: int = field(default_factory=_numbers.__next__)
    name: str | None = None


class TensorNames:
    """Names of tensors: by model, by optimizer, or else by a number."""

    # Models and optimizers are remembered weakly and asked each time, so tensors that they make or
    # replace later have names too.

    def __init__(self) -> None:
        self._remembered: dict[int, _Remembered] = {}
        self._models: list[weakref.ref[torch.nn.Module]] = []
        self._optimizers: list[weakref.ref[torch.optim.Optimizer]] = []
        self._count = 0

    def add_model(self, model: torch.nn.Module) -> None:
        self._models.append(weakref.ref(model))
        self.now()

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Name the state of an optimizer, such as ``Adam.weight.exp_avg``."""
        self._optimizers = [reference for reference in self._optimizers if reference() is not None]
        if all(reference() is not optimizer for reference in self._optimizers):
            self._optimizers.append(weakref.ref(optimizer))

    def now(self, variables: Mapping[int, str] | None = None) -> NamesNow:
        remembered = self._remembered.items()
        self._remembered = {
            key: tensor for key, tensor in remembered if tensor.reference() is not None
        }
        return NamesNow(self, variables or {})

    def models(self) -> list[torch.nn.Module]:
        return alive(self._models)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return alive(self._optimizers)

    def remember(self, tensor: torch.Tensor, name: str) -> None:
        """Call a tensor by this name, also when its model is gone."""
        self._of(tensor).name = name

    def identity(self, tensor: torch.Tensor) -> int:
        """A number that this tensor alone has, of all reporters' tensors, and keeps."""
        return self._of(tensor).number

    def numbered(self, tensor: torch.Tensor) -> str:
        """The name that a tensor had before; without one it gets its class and the next number."""
        tensor_entry = self._of(tensor)
        if tensor_entry.name is None:
            tensor_entry.name = f"{type(tensor).__name__}{self._count}"
            self._count += 1
        return tensor_entry.name

    def _of(self, tensor: torch.Tensor) -> _Remembered:
        entry = self._remembered.get(id(tensor))
        if entry is None or entry.reference() is not tensor:  # another one had this address
            entry = self._remembered[id(tensor)] = _Remembered(weakref.ref(tensor))
        return entry


class NamesNow:
    """The names at one moment: while it lives, so do the named tensors."""

    def __init__(self, names: TensorNames, variables: Mapping[int, str]) -> None:
        self._names = names
        self._variables = variables
        self._places = {key: place for place, key in enumerate(variables)}
        self._known: dict[int, tuple[torch.Tensor, str]] = {}
        for model in names.models():
            try:
                named_tensors = [*model.named_parameters(), *model.named_buffers()]
            except Exception:
                continue
            for name, tensor in named_tensors:
                self._add(tensor, name)
        for optimizer in names.optimizers():
            for owner, state in states_of(optimizer):
                for path, tensor in tensors_in(state):
                    name = self.of(owner) if isinstance(owner, torch.Tensor) else owner
                    self._add(tensor, f"{type(optimizer).__name__}.{name}{path}")

    def known(self) -> list[torch.Tensor]:
        """Every tensor of the models and optimizers, in their order."""
        return [tensor for tensor, _ in self._known.values()]

    def is_variable(self, tensor: torch.Tensor) -> bool:
        return id(tensor) in self._variables

    def place(self, tensor: torch.Tensor) -> int:
        """The position among all variables of the one that leads to a tensor."""
        return self._places[id(tensor)]

    def identity(self, tensor: torch.Tensor) -> int:
        return self._names.identity(tensor)

    def of(self, tensor: torch.Tensor) -> str:
        key = id(tensor)
        if key in self._known:
            return self._known[key][1]
        return self._variables.get(key) or self._names.numbered(tensor)

    def _add(self, tensor: torch.Tensor, name: str) -> None:
        if id(tensor) not in self._known:
            self._known[id(tensor)] = tensor, name
            self._names.remember(tensor, name)


Roots = Iterable[tuple[str, object]]
_Queue = deque[tuple[str, object, bool]]
"""Objects by path; True for one that a library's variables and attributes alone lead to."""

LOOKED_INTO = 50_000
"""Number of objects that are searched for names, so that a report stays quick: of the callers'
variables, of their modules' globals and of other modules' so many each."""

_MOST_PARTS = 1000
"""Number of objects of one container that are searched; its tensors all have names."""

_HAS_NO_TENSOR = frozenset(
    map(
        id,
        (
            *(int, float, complex, bool, str, bytes, bytearray, type(None), range, slice),
            *(type(torch.ones), property, staticmethod, classmethod, BuiltinFunctionType),
            *(torch.dtype, torch.device, torch.Size, ModuleType, FrameType),
        ),
    )
)
_LIBRARIES = folder_names(*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")))
_COMPOSABLE = "__composable_api_state_key"
"""Begins the attribute, with a random ending, in which ``fully_shard`` and its like keep what they
know of a module (torch/distributed/_composable/contract.py); names leave it out."""

_OWN_ATTRIBUTES = frozenset(name for name in vars(torch.nn.Module()) if not name.endswith("_hooks"))


def names_of_attributes(models: Iterable[torch.nn.Module], wanted: set[int]) -> dict[int, str]:
    """Names of tensors that are attributes of models, but neither parameters nor buffers."""
    return _Search(wanted).run(pair for model in models for pair in _attributes(model))


def names_of_variables(frame: FrameType | None, wanted: set[int]) -> dict[int, str]:
    """Names of tensors after variables: of the calling functions, then globals of modules."""
    # Variables of calling functions of libraries come after the globals of the calling modules.
    #
    # The functions that an exception went through count as calling ones while it is handled, and
    # after it ended a cell of a notebook: their variables live on.
    namespaces: dict[int, Mapping[str, object]] = {}
    own: list[tuple[str, object]] = []
    libraries: list[tuple[str, object]] = []
    is_first = True
    for caller in _frames(frame):
        filename = caller.f_code.co_filename
        if not is_of_program(filename):
            continue
        is_library = filename.startswith((*_LIBRARIES, *_folders_of_ipython()))
        if not is_library:
            namespaces[id(caller.f_globals)] = caller.f_globals
        if caller.f_code.co_flags & inspect.CO_OPTIMIZED:
            prefix = "" if is_first else f"{caller.f_code.co_name}()."
            (libraries if is_library else own).extend(_named(locals_of(caller), prefix))
        is_first = False
    # What runs a program, such as IPython or runpy, holds its globals in variables too.
    search = _Search(wanted, passed_over={*namespaces, id(ipython_shell())})
    search.run(own)
    for namespace in namespaces.values():
        search.run(_named(namespace))
    search.run(libraries, are_of_library=True)
    del own, libraries
    search.run(pair for module in _other_modules(namespaces) for pair in module)
    return {key: result_name(name) for key, name in search.names.items()}


def _folders_of_ipython() -> tuple[str, ...]:
    """The folders of IPython, which may be in none of the interpreter's own: on PYTHONPATH."""
    modules = (sys.modules.get(name) for name in ("IPython", "ipykernel", "traitlets", "tornado"))
    files = [module.__file__ for module in modules if module is not None and module.__file__]
    return folder_names(*map(os.path.dirname, files))


_RESULT = re.compile(r"(?:_(?P<number>\d+)|(?P<last>_{1,3}))(?![A-Za-z0-9_])")


def result_name(path: str) -> str:
    """The name of what IPython keeps of a cell that ended with it: ``Out[2]`` in place of ``_2``.

    >>> result_name("model.weight")
    'model.weight'
    """
    shell = ipython_shell()
    kept = None if shell is None else _RESULT.match(path)
    if shell is None or kept is None:
        return path
    number = kept["number"]
    if number is None:
        value, results = shell.user_ns.get(kept["last"]), shell.user_ns.get("Out", {})
        number = next((key for key, result in dict.items(results) if result is value), None)
    return path if number is None else f"Out[{number}]{path[kept.end() :]}"


def are_results(path: str) -> bool:
    """True for the name of something that IPython keeps because it ended a cell."""
    return path.startswith("Out[")


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The frames of the callers, then those that exceptions still hold; innermost first."""
    # These are the exception that is handled now, and the one that Python's prompt showed last.
    calling = []
    while frame is not None:
        calling.append(frame)
        frame = frame.f_back
    yield from calling
    seen = set(map(id, calling))
    held = (sys.exc_info()[1], getattr(sys, "last_value", None))
    errors = [chain(error, suppressed=True) for error in held if isinstance(error, BaseException)]
    for error in itertools.chain(*errors):
        walked = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        yield from (
            walked_frame for walked_frame in reversed(walked) if id(walked_frame) not in seen
        )
        seen.update(map(id, walked))


class _Search:
    """Looks for tensors breadth first, so that the shortest path is the name."""

    def __init__(self, wanted: set[int], passed_over: Iterable[int] = ()) -> None:
        self.names: dict[int, str] = {}
        self._wanted = wanted
        self._taken: set[str] = set()
        self._seen: set[int] = set(passed_over)

    def run(self, roots: Roots, *, are_of_library: bool = False) -> dict[int, str]:
        """Name the tensors that some variables lead to."""
        # People do not know the attributes of a library. So the name of what its variables lead to
        # begins at an object of the program: with its class.
        left = LOOKED_INTO
        queue: _Queue = deque()
        with suppress(Exception):  # a model that does not tell its modules
            self._enter(roots, queue, LOOKED_INTO, is_foreign=are_of_library)
        while queue and left > 0 and len(self.names) < len(self._wanted):
            path, value, is_foreign = queue.popleft()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                left -= 1
                kind = type(value)
                try:
                    if is_foreign and _is_class_of_program(kind):
                        path, is_foreign = kind.__name__, False
                    elif are_of_library and not is_foreign:
                        is_foreign = _is_class_of_library(kind)
                    pairs = ((f"{path}{suffix}", part) for suffix, part in _pairs(value))
                    self._enter(pairs, queue, _MOST_PARTS, is_foreign=is_foreign)
                except Exception:  # changed while it is read, or an unusual object
                    continue
        return self.names

    def _enter(self, pairs: Roots, queue: _Queue, most: int, *, is_foreign: bool) -> None:
        """Name the tensors among some objects, and queue the others."""
        for path, value in pairs:
            kind = type(value)
            if issubclass(kind, torch.Tensor):
                self._name(path, value)
            elif most > 0 and _may_lead_on(value):
                most -= 1
                queue.append((path, value, is_foreign))

    def _name(self, path: str, tensor: object) -> None:
        key = id(tensor)
        if key in self._wanted and key not in self.names:
            path = path.lstrip(".")
            variants = itertools.chain((path,), (f"{path}#{number}" for number in count(2)))
            path = next(name for name in variants if name not in self._taken)
            self._taken.add(path)
            self.names[key] = path


def _named(variables: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    """Those that can lead to a tensor, those that look private or automatic last."""
    named = [
        (f"{prefix}{name}", value)
        for name, value in variables.copy().items()  # type: ignore[attr-defined]
        if _may_lead_on(value) and not name.startswith("__")
    ]
    named.sort(key=lambda pair: pair[0].startswith(f"{prefix}_"))
    return named


def locals_of(frame: FrameType) -> dict[str, object]:
    """A function's variables, without leaving anything that keeps them alive."""
    # Until Python 3.13 a frame keeps the dict that ``f_locals`` made, and so every variable in it,
    # until the function ends. Where no tracer uses that dict, it is emptied.
    mapping = frame.f_locals
    variables = dict(mapping)
    if sys.version_info < (3, 13) and sys.gettrace() is None and frame.f_trace is None:
        if sys.getrefcount(mapping) <= 3:  # of the frame, of this function, and of the call
            mapping.clear()
    return variables


def _other_modules(seen_namespaces: Mapping[int, object]) -> Iterator[list[tuple[str, object]]]:
    for name, module in list(sys.modules.items()):
        if type(module) is not ModuleType or name.partition(".")[0] in ("torch", "pytorch_memlab"):
            continue
        namespace = vars(module)
        filename = namespace.get("__file__")
        if id(namespace) in seen_namespaces or type(filename) is not str:
            continue
        if is_of_user(filename):
            yield _named(namespace, f"{name}.")


def _may_lead_on(value: Any) -> bool:
    """False for what leads to no tensor, such as a function without variables of others."""
    kind = type(value)
    if kind is FunctionType:
        parts = [part for _, part in _of_function(value)] + list(vars(value).values())
        return any(id(type(part)) not in _HAS_NO_TENSOR for part in parts)
    if kind is type:
        return _is_class_of_program(value)
    if kind is BuiltinFunctionType:  # ``seen.append`` leads to ``seen``
        return issubclass(type(value.__self__), (list, deque, set, dict))
    return id(kind) not in _HAS_NO_TENSOR


def _is_class_of_program(kind: type) -> bool:
    file = vars(sys.modules.get(kind.__module__, sys)).get("__file__")
    return kind.__module__ == "__main__" or is_of_user(str(file))


def _is_class_of_library(kind: type) -> bool:
    """False for a class of the program, and for what people write their own classes with."""
    package = kind.__module__.partition(".")[0]
    is_basic = package in ("builtins", "collections", "functools", "torch", "types")
    return not is_basic and not _is_class_of_program(kind)


def _pairs(value: Any) -> Iterable[tuple[str, object]]:
    kind = type(value)
    if kind is FunctionType:
        variables = ((f"().{name}", part) for name, part in _of_function(value))
        return (*variables, *((f".{name}", part) for name, part in vars(value).items()))
    if kind is GeneratorType:
        return ((f"().{name}", part) for name, part in _of_generator(value))
    if kind is MethodType:
        return ((".__self__", value.__self__), ("", value.__func__))
    if kind is BuiltinFunctionType:
        return ((".__self__", value.__self__),)
    if issubclass(kind, partial):
        return ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    if issubclass(kind, dict):
        return ((f"[{_key(key)}]", part) for key, part in dict.items(value))
    if issubclass(kind, (list, tuple, deque, set, frozenset)):
        return _items(value, kind)
    if issubclass(kind, torch.nn.Module):
        return _members(value)
    if issubclass(kind, type):
        attributes = type.__dict__["__dict__"].__get__(value).copy()
        return ((f".{name}", part) for name, part in _named(attributes))
    if issubclass(kind, torch.optim.Optimizer) or _is_ours(kind):
        return ()
    return ((f".{name}", part) for name, part in _attributes_of(value))


def _of_function(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Variables of the functions around it, and its default arguments."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # not set
            yield name, cell.cell_contents
    defaults = function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    yield from zip(names[len(names) - len(defaults) :], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()


def _of_generator(generator: GeneratorType[Any, Any, Any]) -> Iterable[tuple[str, object]]:
    """Variables of a function that waits in a ``yield``."""
    return () if generator.gi_frame is None else locals_of(generator.gi_frame).items()


def _items(value: Any, kind: type) -> Iterable[tuple[str, object]]:
    iterate: Callable[[Any], Iterator[object]] = next(
        base.__iter__ for base in (list, tuple, deque, set, frozenset) if issubclass(kind, base)
    )
    # A long container without a tensor among its first parts has none, most likely.
    has_tensors = any(issubclass(type(part), torch.Tensor) for part in islice(iterate(value), 64))
    parts = iterate(value) if has_tensors else islice(iterate(value), _MOST_PARTS)
    fields = getattr(kind, "_fields", None) if issubclass(kind, tuple) else None
    if fields is not None:
        return zip((f".{name}" for name in fields), parts, strict=False)
    return ((f"[{index}]", part) for index, part in enumerate(parts))


def _members(module: torch.nn.Module) -> Iterator[tuple[str, object]]:
    """The tensors of a module by the names that its ``state_dict`` would have, then the rest."""
    for path, submodule in torch.nn.Module.named_modules(module):
        own = vars(submodule)
        for kind in ("_parameters", "_buffers"):
            for name, tensor in own.get(kind, {}).items():
                yield f".{path}.{name}".replace("..", "."), tensor
    for name, value in _attributes(module):
        yield (f".{name}" if name else ""), value


def _attributes(model: torch.nn.Module) -> Iterator[tuple[str, object]]:
    for path, module in torch.nn.Module.named_modules(model):
        for name, value in list(vars(module).items()):
            if name in _OWN_ATTRIBUTES or not _may_lead_on(value):
                continue
            if name.startswith(_COMPOSABLE) and issubclass(type(value), dict):
                for state in list(dict.values(value)):
                    if not issubclass(type(state), torch.Tensor):
                        yield path, state
            else:
                yield f"{path}.{name}".lstrip("."), value


def _attributes_of(value: object) -> Iterator[tuple[str, object]]:
    """The attributes of an instance. Of its class, only the slots' own getters run."""
    kind = type(value)
    if type.__getattribute__(kind, "__dictoffset__"):
        yield from object.__getattribute__(value, "__dict__").copy().items()
    for base in type.__getattribute__(kind, "__mro__"):
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            if inspect.ismemberdescriptor(base.__dict__.get(name)):
                try:
                    yield name, base.__dict__[name].__get__(value)
                except AttributeError:  # not set
                    continue


def _is_ours(kind: type) -> bool:
    return str(type.__getattribute__(kind, "__module__")).startswith("pytorch_memlab.")


def _key(key: object) -> str:
    return repr(key) if type(key) in (str, int) else f"<{type(key).__name__}>"
