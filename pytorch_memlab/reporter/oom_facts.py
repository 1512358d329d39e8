"""Facts after a GPU ran out of memory: the tensors that hold it, and the code that made them.

Nothing here allocates memory on a device, and nothing of it keeps a tensor alive. A part that
fails is named and left out.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from types import CodeType
from typing import Any, Final

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
    OutOfMemory,
    ProgramFrame,
    ProgramLine,
    SettingsCheck,
)
from ..history.replay import LONGEST, check_settings
from ..simulation.inspect import FailedRequest, LoggedBlock, SimulatedFailure, settings_string
from ..tensors.live_objects import LiveObjects, live_objects, unreferenced
from ..tensors.saved import grad_fn
from .names import TensorNames, names_of_variables
from .oom_attention import attention_calls, softmax_calls
from .oom_groups import plain_name, storage_address, tensor_groups
from .oom_models import ModelSearch, Stack, last_line, runs_in
from .rows import Rows, rows_of

_DESCRIBED: Final = 1000
"""Number of the largest tensors that are described one by one."""
_NAMED: Final = 300
_SMALL_NAMED: Final = 500
"""Number of small tensors of autograd that are named: they keep graphs."""
_MOST_MODULES: Final = 100
_UNNAMED: Final = re.compile(r"saved by |[A-Z]\w*?\d+(\.\w+)*$")
"""Rows of tensors that no variable leads to."""


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
            softmaxes = softmax_calls(self._oom, self._places.values())
            self._find(attention=attention_calls(self._oom, self._error), softmaxes=softmaxes)
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
            for number in range(code.co_firstlineno, last_line(code) + 1)
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
            addresses = {id(tensor): storage_address(tensor) for tensor in tensors}
            # A tensor that gives no address may have several blocks, and is described first.
            at_address = {-1: sys.maxsize, **self._failed.blocks}
            here = {key: at_address.get(address, 0) for key, address in addresses.items()}
            nodes += [grad_fn(tensor) for tensor in tensors if not here[id(tensor)]]
            tensors = [tensor for tensor in tensors if here[id(tensor)]]
            tensors.sort(key=lambda tensor: -here[id(tensor)])
            in_graphs = unreferenced(tensors)  # no variable leads to them
            rest = tensors[_DESCRIBED:]
            del tensors[_DESCRIBED:]
            with_graph = [tensor for tensor in rest if grad_fn(tensor) is not None]
            with_graph.sort(key=lambda tensor: id(tensor) in in_graphs)
            small = [tensor for tensor in rest if grad_fn(tensor) is None]
            del rest
            tensors += with_graph[:_SMALL_NAMED]
            nodes += [grad_fn(tensor) for tensor in with_graph[_SMALL_NAMED:]]
            del with_graph
            wanted = {id(tensor) for tensor in tensors[:_NAMED]}
            made = [id(tensor) for tensor in tensors[_NAMED:] if grad_fn(tensor) is not None]
        wanted.update([key for key in made if key not in in_graphs][:_SMALL_NAMED])
        variables = names_of_variables(sys._getframe(), wanted)
        names = TensorNames()
        for optimizer in optimizers:
            names.add_optimizer(optimizer)
        categories = TensorCategories(modules, optimizers)
        rows = rows_of(
            LiveObjects(tensors, modules, optimizers, nodes), names.now(variables), categories
        )
        numbers = {id(tensor): tensor for tensor in tensors}
        blocks = self._described(rows)
        for tensor in small:
            address = addresses[id(tensor)]
            if address not in blocks:
                blocks[address] = BlockInUse(0, categories.of(tensor), None)
        del small
        models = ModelSearch(self._device, self._error, self._simulated, self._failed.blocks)
        model, repeated = models.model(modules, variables)
        model = replace(model, untrained=models.untrained(optimizers))
        self._find(model=model)
        self._find(blocks=self._blocks(blocks, repeated))
        sizes, fixed = self._failed.blocks, self._fixed_addresses()
        self._find(groups=tensor_groups(numbers, variables, sizes, fixed))
        facts = map(models.optimizer, optimizers)
        self._find(optimizers=tuple(fact for fact in facts if fact.parameters))

    def _described(self, rows: Rows) -> dict[int, BlockInUse]:
        """The blocks of the tensors of a report on the GPU, by their addresses."""
        blocks: dict[int, BlockInUse] = {}
        for row, piece in zip(rows.tensors, rows.storages, strict=True):
            if piece is None or row.device != self._device or not piece.number:
                continue
            shape = tuple(length for length in row.size if isinstance(length, int))
            is_named = not _UNNAMED.match(row.name)
            blocks[piece.storage[1]] = BlockInUse(
                row.nbytes,
                Category(row.category),
                self._place(((*row.line, ""),)) if row.line else None,
                name=plain_name(row.name) if is_named else "",
                shape=shape,
                dtype=row.dtype,
                node=row.saved_by or "",
            )
        return blocks

    def _fixed_addresses(self) -> set[int]:
        """The addresses of blocks of parameters and buffers, in which views of them lie too."""
        return {
            address
            for address, block in zip(self._failed.blocks, self._oom.blocks, strict=True)
            if block.category in (Category.PARAMETERS, Category.BUFFERS)
        }

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
                    origins[number] = self._place(places), runs_in(places, repeated)
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


def _user_modules() -> tuple[str, ...]:
    """Files of the modules of the user that are imported."""
    files = (vars(module).get("__file__") for module in list(sys.modules.values()))
    user_files = (file for file in files if isinstance(file, str) and is_of_user(file))
    return tuple(islice(user_files, _MOST_MODULES))
