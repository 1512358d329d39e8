"""Facts after a GPU ran out of memory: the tensors that hold it, and the code that made them.

Nothing here allocates memory on a device, and nothing of it keeps a tensor alive. A part that
fails is named and left out.
"""

from __future__ import annotations

import ast
import linecache
import math
import re
import sys
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import islice, takewhile
from types import CodeType
from typing import Any, Final, TypeVar

import torch

from .._common.frames.call_stacks import FrameLine, call_stacks
from .._common.frames.user_code import is_of_user
from .._common.process.garbage_collection import no_garbage_collection
from ..devices import get_device, simulated_machine
from ..devices.allocations import allocations_of, workspaces_among
from ..history.block_categories import TensorCategories, freed_category
from ..history.live_blocks import LiveBlock
from ..history.model import Category
from ..history.out_of_memory import (
    BlockInUse,
    ModelFacts,
    OptimizerFacts,
    OutOfMemory,
    ProgramFrame,
    ProgramLine,
    SettingsCheck,
    TensorGroup,
    UntrainedModelFacts,
)
from ..history.replay import LONGEST, check_settings
from ..simulation.inspect import FailedRequest, LoggedBlock, SimulatedFailure, settings_string
from ..tensors.live_objects import LiveObjects, live_objects
from ..tensors.memory import address_of
from ..tensors.saved import LEAF, grad_fn, name_of, saved_by_graphs
from .leaks import kind_of
from .names import TensorNames, locals_of, names_of_variables
from .rows import rows_of

Stack = tuple[FrameLine, ...]
_Kind = TypeVar("_Kind")

_DESCRIBED: Final = 1000
"""Number of the largest tensors that are described one by one."""
_NAMED: Final = 300
_SMALL_NAMED: Final = 500
"""Number of small tensors of autograd that are named: they keep graphs."""
_GRAPH_NODES: Final = 20_000
_MOST_MODULES: Final = 100
_ADDITIONS = frozenset({"AddBackward0", "AddBackward1"})
_UNNAMED: Final = re.compile(r"saved by |[A-Z]\w*?\d+(\.\w+)*$")
"""Rows of tensors that no variable leads to."""
_SOFTMAX: Final = "SoftmaxBackward0"
_ATTENTION: Final = "scaled_dot_product_attention"
_PRODUCTS: Final = (" @ ", "matmul(", "bmm(", "einsum(", "mm(")
_NEAR: Final = 8
"""Number of lines from a softmax to the product of matrices that it belongs to."""


def facts_of(
    failed: FailedRequest, error: BaseException, simulated: SimulatedFailure | None
) -> OutOfMemory:
    return _Search(failed, error, simulated).run()


class _Search:
    def __init__(
        self, failed: FailedRequest, error: BaseException, simulated: SimulatedFailure | None
    ) -> None:
        self._failed = failed
        self._error = error
        self._simulated = simulated
        self._device = torch.device("cuda", failed.device)
        self._places: dict[FrameLine, ProgramLine] = {}
        self._missing: list[str] = []
        node = "" if simulated is None else simulated.node
        self._oom = OutOfMemory(failed, "", simulated is not None, node=node)

    def run(self) -> OutOfMemory:
        with self._part("the GPU"):
            self._find(gpu=get_device(self._device).info.description)
        with self._part("the failing line"):
            frames, functions = self._frames()
            self._find(frames=frames, functions=functions)
        with no_garbage_collection():
            with self._part("the tensors"):
                self._tensors()
            if not self._oom.blocks:
                with self._part("the lines"):
                    self._find(blocks=self._blocks({}, ()))
        with self._part("attention"):
            self._find(attention=self._attention(), softmaxes=self._softmaxes())
        self._find(modules=_user_modules(), arguments=tuple(map(str, sys.argv[1:])))
        with self._part("settings"):
            checks, unchecked = self._checks()
            self._find(checks=checks, unchecked=unchecked)
        return replace(self._oom, missing=tuple(self._missing))

    def _find(self, **facts: Any) -> None:
        self._oom = replace(self._oom, **facts)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        """A part of the search; one that fails is named."""
        try:
            yield
        except Exception as error:  # whatever fails, the rest is worth showing
            self._missing.append(f"{name} ({type(error).__name__})")

    # Frames

    def _frames(self) -> tuple[tuple[ProgramFrame, ...], tuple[tuple[str, str], ...]]:
        if self._simulated is not None:
            stack = list(self._simulated.stack)
        else:
            walked = traceback.walk_tb(self._error.__traceback__)
            stack = [(walked_frame.f_code, line) for walked_frame, line in walked][::-1]
        functions = tuple((code.co_name, code.co_filename) for code, _ in stack)
        frames = tuple(
            self._program_frame(code, line) for code, line in stack if is_of_user(code.co_filename)
        )
        return frames, functions

    def _program_frame(self, code: CodeType, line: int) -> ProgramFrame:
        source = {
            number: linecache.getline(code.co_filename, number).rstrip()
            for number in range(code.co_firstlineno, _last_line(code) + 1)
        }
        tuples = [const for const in code.co_consts if isinstance(const, tuple)]
        keywords = {name for const in tuples for name in const if isinstance(name, str)}
        place = ProgramLine(code.co_filename, line, code.co_name, source.get(line, "").strip())
        return ProgramFrame(place, frozenset(code.co_names), frozenset(keywords), source)

    # Tensors

    def _tensors(self) -> None:
        # Unpacked, so that nothing else references the tensors: their references are counted.
        tensors, modules, optimizers, nodes = live_objects()
        with torch._C.DisableTorchFunction():  # whose modes cost more than all of this
            addresses = {id(tensor): _storage_address(tensor) for tensor in tensors}
            # A tensor that gives no address may have several blocks, and is described first.
            sizes = {-1: sys.maxsize, **self._failed.blocks}
            here = {key: sizes.get(address, 0) for key, address in addresses.items()}
            nodes += [grad_fn(tensor) for tensor in tensors if not here[id(tensor)]]
            tensors = [tensor for tensor in tensors if here[id(tensor)]]
            tensors.sort(key=lambda tensor: -here[id(tensor)])
            rest = tensors[_DESCRIBED:]
            del tensors[_DESCRIBED:]
            with_graph = [tensor for tensor in rest if grad_fn(tensor) is not None]
            small = [tensor for tensor in rest if grad_fn(tensor) is None]
            del rest
            tensors += with_graph[:_SMALL_NAMED]
            nodes += [grad_fn(tensor) for tensor in with_graph[_SMALL_NAMED:]]
            del with_graph
            wanted = {id(tensor) for tensor in tensors[:_NAMED]}
            made = [id(tensor) for tensor in tensors[_NAMED:] if grad_fn(tensor) is not None]
        wanted.update(made[:_SMALL_NAMED])
        variables = names_of_variables(sys._getframe(), wanted)
        names = TensorNames()
        for optimizer in optimizers:
            names.add_optimizer(optimizer)
        categories = TensorCategories(modules, optimizers)
        rows = rows_of(
            LiveObjects(tensors, modules, optimizers, nodes), names.now(variables), categories
        )
        blocks: dict[int, BlockInUse] = {}
        numbers = {id(tensor): tensor for tensor in tensors}
        for row, piece in zip(rows.tensors, rows.storages, strict=True):
            if piece is None or row.device != self._device or not piece.number:
                continue
            address = piece.storage[1]
            shape = tuple(length for length in row.size if isinstance(length, int))
            is_named = not _UNNAMED.match(row.name)
            blocks[address] = BlockInUse(
                row.nbytes,
                Category(row.category),
                self._place(((*row.line, ""),)) if row.line else None,
                name=_plain(row.name) if is_named else "",
                shape=shape,
                dtype=row.dtype,
                node=row.saved_by or "",
            )
        for tensor in small:
            address = addresses[id(tensor)]
            if address not in blocks:
                blocks[address] = BlockInUse(0, categories.of(tensor), None)
        del small
        model, repeated = self._model(modules, variables)
        model = replace(model, untrained=self._untrained(optimizers))
        self._find(model=model)
        self._find(blocks=self._blocks(blocks, repeated))
        self._find(groups=self._groups(numbers, variables))
        facts = map(self._optimizer, optimizers)
        self._find(optimizers=tuple(fact for fact in facts if fact.parameters))

    def _blocks(
        self, tensors: Mapping[int, BlockInUse], repeated: Sequence[CodeType]
    ) -> tuple[BlockInUse, ...]:
        """Every block in use, with what is known of it."""
        simulated = self._simulated
        machine = None if simulated is None else simulated_machine()
        other, frames = BlockInUse(0, Category.TEMPORARIES, None), {}
        if machine is not None:
            workspaces = {place.address for place in machine.workspaces.living()}
        else:
            allocations = allocations_of(self._device) or []
            workspace_allocations, _ = workspaces_among(allocations, self._device)
            workspaces = {allocation.address for allocation in workspace_allocations}
            other = BlockInUse(0, Category.UNKNOWN, None)
            frames = {allocation.address: allocation.frames for allocation in allocations}
        workspace = BlockInUse(0, Category.WORKSPACES, None)
        tensors = dict.fromkeys(workspaces, workspace) | dict(tensors)
        origins: dict[int, tuple[ProgramLine | None, bool]] = {}
        blocks = []
        for address, size in self._failed.blocks.items():
            block = tensors.get(address, other)._replace(size=size)
            if simulated is None:  # of a real GPU, the lines that its memory history knows
                stack = tuple((file, line, "") for file, line in frames.get(address, ()))
                block = block._replace(place=self._place(stack) or block.place)
            elif (origin := simulated.live.get(address)) is not None:
                number = call_stacks.number_of(origin)
                if number not in origins:
                    places = call_stacks.places_of(number)
                    origins[number] = self._place(places), _runs(places, repeated)
                place, is_in_repeated = origins[number]
                block = block._replace(place=place, is_in_repeated=is_in_repeated)
                if address not in tensors:  # freed when the error left the functions below
                    block = block._replace(category=_category_of_freed(origin))
            blocks.append(block)
        return tuple(blocks)

    def _place(self, stack: Stack) -> ProgramLine | None:
        """The innermost line of the program in a stack."""
        for frame in stack:
            if is_of_user(frame[0]):
                if frame not in self._places:
                    source = linecache.getline(frame[0], frame[1]).strip()
                    self._places[frame] = ProgramLine(*frame, source)
                return self._places[frame]
        return None

    def _groups(
        self, tensors: Mapping[int, torch.Tensor], variables: Mapping[int, str]
    ) -> tuple[TensorGroup, ...]:
        """Variables that lead to several tensors, or to one that autograd made."""
        members: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        containers = set()
        for key, name in variables.items():
            tensor = tensors.get(key)
            if tensor is not None and not issubclass(type(tensor), torch.nn.Parameter):
                group = _group_name(name)
                members[group].append(tensor)
                if "[" in name:  # others are variables, of several calls of one function too
                    containers.add(group)
        owned = {
            name: {_storage_address(tensor) for tensor in tensors}
            for name, tensors in members.items()
        }
        fixed = self._addresses_of(Category.PARAMETERS, Category.BUFFERS)
        graphs = {
            name: self._graph_of(tensors) - fixed - owned[name] for name, tensors in members.items()
        }
        # What another variable keeps too is not freed with this one.
        holders = Counter(address for name in members for address in owned[name] | graphs[name])
        sizes = self._failed.blocks
        groups = []
        for name, members_of_name in members.items():
            first = members_of_name[0]
            if len(members_of_name) < 2 and grad_fn(first) is None:
                continue
            alone = [address for address in graphs[name] if holders[address] == 1]
            is_variable = name not in containers  # a function may have it several times
            is_sum = is_variable and first.numel() == 1
            groups.append(
                TensorGroup(
                    name,
                    len(members_of_name),
                    own=sum(sizes.get(address, 0) for address in owned[name]),
                    graphs=sum(sizes.get(address, 0) for address in alone),
                    running_sums=_running_sums(grad_fn(first)) if is_sum else 0,
                    is_variable=is_variable,
                    elements=max(tensor.numel() for tensor in members_of_name),
                )
            )
        return tuple(sorted(groups, key=lambda group: -(group.own + group.graphs)))

    def _addresses_of(self, *categories: Category) -> set[int]:
        """Addresses of the blocks of some categories; a view of a parameter lies in such a one."""
        blocks = zip(self._failed.blocks, self._oom.blocks, strict=True)
        return {address for address, block in blocks if block.category in categories}

    def _graph_of(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Addresses of what the graphs of some tensors keep."""
        saved = islice(saved_by_graphs(map(grad_fn, tensors)), _GRAPH_NODES)
        return {_storage_address(tensor) for node, tensor in saved if name_of(node) != LEAF}

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> OptimizerFacts:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        here = [p for p in parameters if p.device == self._device]
        group = optimizer.param_groups[0] if optimizer.param_groups else {}
        uses_foreach = not group.get("fused") and group.get("foreach") is not False
        return OptimizerFacts(
            type(optimizer).__name__,
            sum(map(_nbytes, here)),
            uses_foreach and "foreach" in group,
            sum(map(_factored, here)),
        )

    # Modules

    def _model(
        self, modules: list[torch.nn.Module], variables: Mapping[int, str]
    ) -> tuple[ModelFacts, tuple[CodeType, ...]]:
        parameters: dict[int, torch.nn.Parameter] = {}
        training = []
        for module in modules:
            own_parameters = (vars(module).get("_parameters") or {}).values()
            own = [parameter for parameter in own_parameters if parameter is not None]
            parameters.update((id(parameter), parameter) for parameter in own)
            if any(parameter.device == self._device for parameter in own):
                training.append(module.training)
        float32 = [p for p in parameters.values() if p.dtype is torch.float32]
        names = [variables[key].split(".", 1)[0] for key in parameters if key in variables]
        name = Counter(names).most_common(1)[0][0] if names else ""
        attribute, count, codes = self._repeated(modules)
        facts = ModelFacts(
            sum(map(_nbytes, parameters.values())),
            sum(map(_nbytes, float32)),
            _plain(name),
            attribute,
            count,
            bool(training) and not any(training),
            sum(_nbytes(p) for p in float32 if p.device == self._device and not p.requires_grad),
        )
        return facts, codes

    def _untrained(
        self, optimizers: Sequence[torch.optim.Optimizer]
    ) -> tuple[UntrainedModelFacts, ...]:
        """Modules in variables whose gradients no optimizer takes, the largest first."""
        trained = {
            id(parameter)
            for optimizer in optimizers
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        untrained: list[UntrainedModelFacts] = []
        seen = set[int]()
        is_trained = any(self._in_variables(torch.optim.Optimizer))  # none is left of another one
        for name, module in self._in_variables(torch.nn.Module) if is_trained else ():
            parameters = {
                id(parameter): parameter
                for parameter in module.parameters()
                if parameter.requires_grad
            }
            others = [
                parameter
                for key, parameter in parameters.items()
                if key not in trained and key not in seen and parameter.device == self._device
            ]
            seen.update(parameters)
            if others:
                gradients = (other.grad for other in others if other.grad is not None)
                is_partly_trained = not trained.isdisjoint(parameters)
                size = sum(map(_nbytes, others))
                sizes = size, sum(map(_nbytes, gradients))
                untrained.append(UntrainedModelFacts(name, *sizes, is_partly_trained))
        return tuple(sorted(untrained, key=lambda model: -model.parameters))

    def _in_variables(self, kind: type[_Kind]) -> Iterator[tuple[str, _Kind]]:
        """Objects in variables of the running program, and in attributes of its objects."""
        for frame, _ in traceback.walk_tb(self._error.__traceback__):
            if not is_of_user(frame.f_code.co_filename):
                continue
            for name, value in list(locals_of(frame).items()):
                if isinstance(value, kind):
                    yield name, value
                elif name == "self" and hasattr(value, "__dict__"):
                    for attribute, part in list(vars(value).items()):
                        if isinstance(part, kind):
                            yield f"self.{attribute}", part

    def _repeated(
        self, modules: Iterable[torch.nn.Module]
    ) -> tuple[str, int, tuple[CodeType, ...]]:
        """The list of modules of one class that saved the most."""
        numbers = Counter[int]()
        stacks: dict[Stack, int] = {}
        if self._simulated is not None:
            for address, block in self._simulated.live.items():
                numbers[call_stacks.number_of(block)] += self._failed.blocks.get(address, 0)
            stacks = {call_stacks.places_of(number): size for number, size in numbers.items()}
        best: tuple[int, str, int, tuple[CodeType, ...]] = (0, "", 0, ())
        for module in modules:
            for attribute, child in (vars(module).get("_modules") or {}).items():
                if not issubclass(type(child), (torch.nn.ModuleList, torch.nn.Sequential)):
                    continue
                # A module without others in it saves little but its input.
                children = vars(child)["_modules"].values()
                kinds = Counter(type(child) for child in children if vars(child).get("_modules"))
                for kind, count in kinds.items():
                    code = getattr(getattr(kind, "forward", None), "__code__", None)
                    if count < 2 or not isinstance(code, CodeType):
                        continue
                    size = sum(size for stack, size in stacks.items() if _runs(stack, (code,)))
                    best = max(
                        best, (size, attribute, count, (code,)), key=lambda candidate: candidate[0]
                    )
        return best[1:]

    # Attention

    def _attention(self) -> tuple[ProgramLine, ...]:
        calls: dict[tuple[str, int], tuple[ProgramLine, int]] = {}
        for place in (frame.place for frame in self._oom.frames):
            if _ATTENTION in place.source:
                calls[place.file, place.line] = place, self._dimensions(place)
        for block in sorted(self._oom.blocks, key=lambda block: -block.size):
            source_line = block.place
            if source_line is not None and _ATTENTION in source_line.source and block.shape:
                calls.setdefault(
                    (source_line.file, source_line.line), (source_line, len(block.shape))
                )
        return tuple(place for place, dimensions in calls.values() if dimensions == 3)

    def _softmaxes(self) -> tuple[ProgramLine, ...]:
        # The product itself may hold nothing any more.
        places = {frame.place for frame in self._oom.frames} | set(self._places.values())
        # A module that is one may have any name.
        taken = {block.place for block in self._oom.blocks if block.node == _SOFTMAX}
        if self._oom.frames and "softmax" in self._running_in_library():
            taken.add(self._oom.frames[0].place)
        return tuple(
            place
            for place in places
            if ("softmax(" in place.source or place in taken) and _is_near_product(place)
        )

    def _running_in_library(self) -> set[str]:
        """Functions that the innermost line of the program was running."""
        first = self._oom.frames[0].place
        inner = takewhile(lambda place: place != (first.function, first.file), self._oom.functions)
        return {name for name, _ in inner}

    def _dimensions(self, place: ProgramLine) -> int:
        """Of the first argument of a call that failed, by the variables of its function."""
        for frame, line in traceback.walk_tb(self._error.__traceback__):
            if (frame.f_code.co_filename, line) == (place.file, place.line):
                with suppress(Exception):
                    value = locals_of(frame).get(_first_argument(place.source))
                    return value.dim() if isinstance(value, torch.Tensor) else 0
                break
        return 0

    # Settings

    def _checks(self) -> tuple[tuple[SettingsCheck, ...], str]:
        failed, simulated = self._failed, self._simulated
        cached = sum(block.size for block in failed.free_blocks)
        if cached < failed.requested:
            return (), ""
        if simulated is None:
            return (), "a real GPU keeps no record of the requests"
        if failed.private.reserved:
            return (), "requests of CUDA graphs and memory pools are not made again"
        if simulated.length > LONGEST:
            return (), f"more than {LONGEST // 3:,} tensors are alive"
        now = settings_string()
        other_stream = sum(b.size for b in failed.free_blocks if b.stream != failed.stream)
        checks = []
        check = partial(check_settings, failed, simulated.requests, simulated.length)
        if other_stream * 2 > cached:
            made = check(now, one_stream=True, is_whole=simulated.is_whole)
            checks.append(replace(made, settings=""))
        for setting in ("expandable_segments:True", "max_split_size_mb:128"):
            if setting.partition(":")[0] not in now:
                both = f"{now},{setting}" if now else setting
                checks.append(check(both, is_whole=simulated.is_whole))
                if checks[-1].fits:
                    break
        return tuple(checks), ""


def _category_of_freed(block: LoggedBlock) -> Category:
    """The category of a block as a recording knows it."""
    category = freed_category(block) if isinstance(block, LiveBlock) else Category.UNKNOWN
    return Category.TEMPORARIES if category is Category.UNKNOWN else category


def _runs(stack: Stack, codes: Iterable[CodeType]) -> bool:
    """True if one of some functions is on a stack."""
    return any(
        name == code.co_name
        and file == code.co_filename
        and code.co_firstlineno <= line <= _last_line(code)
        for code in codes
        for file, line, name in stack
    )


def _user_modules() -> tuple[str, ...]:
    """Files of the modules of the user that are imported."""
    files = (vars(module).get("__file__") for module in list(sys.modules.values()))
    user_files = (file for file in files if isinstance(file, str) and is_of_user(file))
    return tuple(islice(user_files, _MOST_MODULES))


def _is_near_product(place: ProgramLine) -> bool:
    lines = range(max(1, place.line - _NEAR), place.line + _NEAR + 1)
    near = " ".join(linecache.getline(place.file, line) for line in lines)
    return any(product in near for product in _PRODUCTS)


def _last_line(code: CodeType) -> int:
    return max((line for _, _, line in code.co_lines() if line), default=code.co_firstlineno)


def _plain(name: str) -> str:
    """A name without the function that has the variable.

    >>> _plain("attention().scores"), _plain("model.weight")
    ('scores', 'model.weight')
    """
    return name.rpartition("().")[2]


def _group_name(name: str) -> str:
    """The container that a name leads through.

    >>> _group_name("losses[17]"), _group_name("main().state['a.weight']"), _group_name("loss")
    ('losses', 'state', 'loss')
    """
    return _plain(kind_of(name)).partition("[")[0]


def _factored(parameter: torch.Tensor) -> int:
    """The bytes of Adafactor's state, as ``torch/optim/_adafactor.py`` makes it."""
    if parameter.dim() < 2:
        return _nbytes(parameter)
    *matrices, rows, columns = parameter.shape  # a value is kept for each row and each column
    return math.prod(matrices) * (rows + columns) * parameter.element_size()


def _nbytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _storage_address(tensor: torch.Tensor) -> int:
    """Address of the storage of a tensor on the GPU; -1 for one that gives none."""
    with torch._C.DisableTorchFunction():
        try:
            return address_of(tensor, tensor.untyped_storage())
        except Exception:  # sparse, a wrapper without memory, or a class that refuses
            return -1


def _running_sums(node: Any) -> int:
    """The number of additions that follow one upon the other, from a node towards the leaves."""
    count, level = 0, [node]
    while count < _GRAPH_NODES:
        level = [node for node in level if node is not None and name_of(node) in _ADDITIONS]
        if not level:
            break
        count += 1  # the sum may be the left or the right operand
        following = (following_node for node in level for following_node, _ in node.next_functions)
        level = list({id(node): node for node in following}.values())
    return count


def _first_argument(source: str) -> str:
    """The variable that a line gives to attention first, empty if it is none."""
    for text in (source, source.partition("=")[2].strip()):
        with suppress(SyntaxError):
            for node in ast.walk(ast.parse(text)):
                match node:
                    case ast.Call(func=function, args=[ast.Name(id=name), *_]):
                        if ast.unparse(function).endswith(_ATTENTION):
                            return name
    return ""
