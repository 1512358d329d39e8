"""Causes of an out-of-memory error and their remedies: one small rule for each cause.

A rule looks at the facts and returns a remedy, or None where it does not apply. What it says is
computed from the blocks in use, or was checked by making the requests again; an estimate is marked
as one. The most specific causes come first: those outside the program, then mistakes of the
program, then fragmentation, then what the program is too large for.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Final

from .model import Category
from .out_of_memory import BlockInUse, OutOfMemory, Place, ProgramFrame, TensorGroup

_MOST: Final = 3
"""Number of remedies that a report names."""
_LARGE_VOCABULARY: Final = 8192
_LONG_SEQUENCE: Final = 128
_LOSSES = ("cross_entropy", "CrossEntropyLoss", "log_softmax", "nll_loss", "criterion")

_Details = dict[str, str | int]

_FIXED: Final = frozenset(
    {
        Category.PARAMETERS,
        Category.GRADIENTS,
        Category.OPTIMIZER_STATE,
        Category.BUFFERS,
        Category.WORKSPACES,
    }
)
"""Categories that do not grow with the batch."""


class Cause(Enum):
    """The cause of an out-of-memory error."""

    MEMORY_FRACTION = "the memory fraction"
    OTHER_PROCESS = "another process"
    OTHER_STREAM = "memory cached for another stream"
    NO_GRAD = "autograd saves what no backward pass needs"
    RUNNING_SUM = "a running sum of losses"
    KEPT_GRAPHS = "a list of tensors with their graphs"
    RETAINED_GRAPH = "a graph that is kept over steps"
    ATTENTION_DIMENSIONS = "attention with three dimensions"
    ATTENTION_MATRICES = "attention written out"
    LOGITS = "logits of a large vocabulary"
    TOO_LARGE = "one tensor larger than the GPU"
    MODEL_TWICE = "a second copy of the parameters"
    GRADIENTS_KEPT = "gradients of the step before"
    FRAGMENTATION = "fragmentation"
    KEPT_RESULTS = "a list of results"
    OPTIMIZER_TEMPORARIES = "temporaries of the optimizer"
    OPTIMIZER_STATE = "the state of the optimizer"
    PARAMETERS = "the parameters"
    ACTIVATIONS = "activations of repeated modules"
    BATCH = "the size of the batch"


_SCALES_WITH_BATCH: Final = frozenset({Cause.LOGITS, Cause.ACTIVATIONS})
"""Causes that a smaller batch may remedy too: the program may be right as it is."""


class Basis(Enum):
    """The way in which a number of bytes is known."""

    CHECKED = "checked"
    COMPUTED = "computed"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Remedy:
    """A remedy for one cause."""

    cause: Cause
    size: int
    details: Mapping[str, str | int] = field(default_factory=dict)
    basis: Basis = Basis.COMPUTED


def remedies(oom: OutOfMemory) -> list[Remedy]:
    """Up to three remedies, the one for the most likely cause first."""
    found = [remedy for rule in RULES if (remedy := rule(oom)) is not None]
    # What frees less than the request lacks does not help alone.
    found.sort(key=lambda remedy: remedy.size < oom.shortage)
    others = {remedy.cause for remedy in found} - {Cause.BATCH}
    if not others <= _SCALES_WITH_BATCH:
        found = [remedy for remedy in found if remedy.cause is not Cause.BATCH]
    return found[:_MOST]


def _memory_fraction(oom: OutOfMemory) -> Remedy | None:
    request = oom.request
    if request.allowed is None or request.segment > request.free:
        return None
    share = -(-100 * (request.reserved + request.segment) // request.capacity)
    return Remedy(
        Cause.MEMORY_FRACTION,
        request.segment,
        {"allowed": request.allowed, "fraction": f"{share / 100:.2f}", "device": request.device},
    )


def _other_process(oom: OutOfMemory) -> Remedy | None:
    others = oom.request.others or 0
    if others < oom.shortage or others * 10 < oom.request.capacity:
        return None
    return Remedy(Cause.OTHER_PROCESS, others)


def _other_stream(oom: OutOfMemory) -> Remedy | None:
    streams = [one for one in oom.request.free_blocks if one.stream != oom.request.stream]
    size = sum(one.size for one in streams)
    return _checked(Cause.OTHER_STREAM, size, oom, has_settings=False) if streams else None


def _fragmentation(oom: OutOfMemory) -> Remedy | None:
    if oom.cached < oom.request.requested or oom.cached * 8 < oom.request.capacity:
        return None
    return _checked(Cause.FRAGMENTATION, oom.cached, oom, has_settings=True)


def _checked(cause: Cause, size: int, oom: OutOfMemory, *, has_settings: bool) -> Remedy | None:
    """A remedy that was checked: by other settings, or by one stream in place of several."""
    fitting = (one for one in oom.checks if one.fits and bool(one.settings) is has_settings)
    check = next(fitting, None)
    if check is None:
        return None
    details: _Details = {
        "settings": check.settings,
        "requests": check.requests,
        "is_whole": check.is_whole,
    }
    return Remedy(cause, size, details, Basis.CHECKED)


def _no_grad(oom: OutOfMemory) -> Remedy | None:
    saved = oom.of_category(Category.SAVED)
    is_much = _is_much(saved, oom)
    if oom.node or not is_much or any(one.names & {"backward", "grad"} for one in oom.frames):
        return None
    if (oom.optimizers or oom.of_category(Category.GRADIENTS)) and not oom.model.is_evaluating:
        return None
    # The line of the failing file that was called first.
    places = [frame.place for frame in oom.frames]
    calling = [place.source for place in places if place.file == places[0].file]
    return Remedy(Cause.NO_GRAD, saved, {"call": calling[-1] if calling else ""})


def _running_sum(oom: OutOfMemory) -> Remedy | None:
    for group in oom.groups:
        if group.running_sums >= 2 and _is_much(group.graphs, oom):
            line = _line_with(oom, rf"\b{re.escape(group.name)}\s*(\+=|=.*\+)")
            sums = group.running_sums
            return Remedy(
                Cause.RUNNING_SUM, group.graphs, {"name": group.name, "line": line, "times": sums}
            )
    return None


def _kept_graphs(oom: OutOfMemory) -> Remedy | None:
    for group in oom.groups:
        details = _list_details(oom, group)
        # A pair may be the state of a recurrent layer, unless it was appended to.
        is_list = not group.is_variable and (group.tensors >= 3 or details["line"])
        if is_list and group.graphs > group.own and _is_much(group.graphs, oom):
            return Remedy(Cause.KEPT_GRAPHS, group.graphs, details)
    return None


def _retained_graph(oom: OutOfMemory) -> Remedy | None:
    if not any("retain_graph" in frame.calls_with for frame in oom.frames):
        return None
    saved = oom.of_category(Category.SAVED)
    if not _is_much(saved, oom):
        return None
    line = _line_with(oom, "retain_graph")
    return Remedy(Cause.RETAINED_GRAPH, saved, {"line": line}, Basis.ESTIMATED)


def _kept_results(oom: OutOfMemory) -> Remedy | None:
    for group in oom.groups:
        is_list = not group.is_variable and group.tensors >= 3
        is_kept = is_list and group.own >= group.graphs and _is_much(group.own, oom)
        twice = _model_twice(oom) if is_kept else None
        if is_kept and (twice is None or twice.details["name"] != group.name):
            return Remedy(Cause.KEPT_RESULTS, group.own, _list_details(oom, group))
    return None


def _attention_dimensions(oom: OutOfMemory) -> Remedy | None:
    for call in oom.attention:
        line = (call.file, call.line)
        size = sum(
            block.size
            for block in oom.blocks
            if block.place is not None
            and (block.place.file, block.place.line) == line
            and _is_score_matrix(block)
        )
        if oom.frames and oom.frames[0].place == call:
            size += oom.request.requested
        if size >= oom.shortage:
            return Remedy(Cause.ATTENTION_DIMENSIONS, size, {"line": call.line})
    return None


def _attention_matrices(oom: OutOfMemory) -> Remedy | None:
    places = _places(oom, oom.frames[:1])
    place = next((place for place in places if place in oom.softmaxes), None)
    if place is None or any("scaled_dot_product_attention" in one.source for one in places):
        return None
    matrices = [block for block in oom.blocks if _is_score_matrix(block)]
    sizes = Counter[tuple[int, int]]()
    for block in matrices:
        rows, columns = block.shape[-2:]
        made = block.place
        # The first softmax holds nothing while it runs: the scores do.
        if made is not None and (made == place or (rows == columns and made.file == place.file)):
            sizes[rows, columns] += block.size
    if not sizes:
        return None
    rows, columns = sizes.most_common(1)[0][0]
    if rows != columns and columns >= _LARGE_VOCABULARY:  # probabilities of words
        return None
    size = sum(block.size for block in matrices if block.shape[-2:] == (rows, columns))
    if not _is_much(size, oom):
        return None
    details: _Details = {"rows": rows, "columns": columns, "line": place.line}
    return Remedy(Cause.ATTENTION_MATRICES, size, details)


def _logits(oom: OutOfMemory) -> Remedy | None:
    places = _places(oom, oom.frames)
    lines = [place.line for place in places if any(name in place.source for name in _LOSSES)]
    sizes = Counter[int]()
    for block in oom.blocks:
        shape = block.shape
        if block.category not in _FIXED and len(shape) > 1 and shape[-1] >= _LARGE_VOCABULARY:
            sizes[shape[-1]] += block.size
    if not lines or not sizes:
        return None
    vocabulary, size = sizes.most_common(1)[0]
    whole = size + oom.request.requested
    if not _is_much(whole, oom):
        return None
    details: _Details = {"vocabulary": vocabulary, "line": lines[0], "whole": whole}
    return Remedy(Cause.LOGITS, whole * 7 // 8, details, Basis.ESTIMATED)


def _too_large(oom: OutOfMemory) -> Remedy | None:
    request = oom.request
    room = request.capacity - (request.context or 0) - (request.others or 0)
    if request.requested <= room:
        return None
    parts = -(-4 * request.requested // room)
    return Remedy(Cause.TOO_LARGE, request.requested, {"parts": parts, "room": room})


def _model_twice(oom: OutOfMemory) -> Remedy | None:
    parameters = Counter(
        (block.shape, block.dtype)
        for block in oom.blocks
        if block.category is Category.PARAMETERS and block.shape
    )
    # Tensors that are no parameters, by the container that leads to them.
    containers: dict[str, list[BlockInUse]] = {}
    for block in oom.blocks:
        name, bracket, _ = block.name.partition("[")
        if bracket and block.category in (Category.OTHERS, Category.SAVED):
            containers.setdefault(name, []).append(block)
    if any("serialization" in file for _, file in oom.functions) and oom.frames:
        target = re.match(r"\s*(\w+)\s*=", oom.frames[0].place.source)
        if target is not None:  # while it is read nothing leads to it
            containers[target[1]] = [
                one
                for one in oom.blocks
                if one.category is Category.OTHERS and one.shape and not one.name
            ]
    for name, blocks in containers.items():
        shapes = Counter((block.shape, block.dtype) for block in blocks)
        same = sum((shapes & parameters).values())
        size = sum(block.size for block in blocks)
        if same >= 2 and 2 * same > sum(shapes.values()) and _is_much(size, oom):
            return Remedy(Cause.MODEL_TWICE, size, {"name": name, "line": _assigned(oom, name)})
    owners = Counter[str]()
    for block in oom.blocks:
        if block.category is Category.PARAMETERS and "." in block.name:
            owners[block.name.partition(".")[0]] += block.size
    for (first, one), (second, other) in pairwise(owners.most_common()):
        if one == other and _is_much(other, oom):
            name = second if _line_with(oom, rf"\b{second}\s*=.*copy") else first
            return Remedy(Cause.MODEL_TWICE, other, {"name": name, "line": _assigned(oom, name)})
    return None


def _gradients_kept(oom: OutOfMemory) -> Remedy | None:
    gradients = oom.of_category(Category.GRADIENTS)
    if oom.node or _is_in_optimizer(oom) or not gradients or gradients < oom.shortage:
        return None
    return Remedy(Cause.GRADIENTS_KEPT, gradients)


def _optimizer_temporaries(oom: OutOfMemory) -> Remedy | None:
    if not _is_in_optimizer(oom) or _makes_state(oom):
        return None
    for optimizer in oom.optimizers:
        if optimizer.uses_foreach and optimizer.name in ("Adam", "AdamW", "SGD", "Adagrad"):
            size = oom.of_category(Category.TEMPORARIES) + oom.request.requested
            size = max(size, optimizer.parameters)
            return Remedy(Cause.OPTIMIZER_TEMPORARIES, size, {"name": optimizer.name})
    return None


def _optimizer_state(oom: OutOfMemory) -> Remedy | None:
    if not _is_in_optimizer(oom) or not _makes_state(oom):
        return None
    for one in oom.optimizers:
        if one.parameters:
            whole, factored = 2 * one.parameters, one.factored or 0
            other = "SGD" if one.factored is None else "Adafactor"
            details: _Details = {
                "name": one.name,
                "whole": whole,
                "factored": factored,
                "other": other,
            }
            return Remedy(Cause.OPTIMIZER_STATE, whole - factored, details)
    return None


def _parameters(oom: OutOfMemory) -> Remedy | None:
    model = oom.model
    names = ("_apply", "convert", "load_state_dict", "__init__")
    moves = any(name in names for name, _ in oom.functions)
    if not moves or oom.of_category(Category.PARAMETERS) * 2 < oom.in_use or not model.float32:
        return None
    name = model.name or "model"
    return Remedy(Cause.PARAMETERS, model.float32 // 2, {"whole": model.parameters, "name": name})


def _activations(oom: OutOfMemory) -> Remedy | None:
    model = oom.model
    size = sum(
        block.size
        for block in oom.blocks
        if block.is_in_repeated and block.category in (Category.SAVED, Category.TEMPORARIES)
    )
    if model.repeats < 2 or not _is_much(size, oom):
        return None
    saved = size - size // model.repeats  # one of them is computed again at a time
    details: _Details = {"name": model.repeated, "count": model.repeats, "whole": size}
    return Remedy(Cause.ACTIVATIONS, saved, details, Basis.ESTIMATED)


def _batch(oom: OutOfMemory) -> Remedy | None:
    sizes = Counter[int]()
    for block in oom.blocks:
        if block.category not in _FIXED and len(block.shape) > 1:
            sizes[block.shape[0]] += block.size
    # Samples times heads, or times words, are multiples of the samples.
    least = sizes.total() / 10
    multiples = {
        batch: sum(size for one, size in sizes.items() if one % batch == 0)
        for batch, size in sizes.most_common()
        if batch > 1 and size >= least
    }
    if not multiples:
        return None
    batch, size = max(multiples.items(), key=lambda one: one[1])
    if size * 4 < oom.in_use:
        return None
    total = size + oom.request.requested
    fitting = max(1, int(batch * (total - oom.shortage) / total))
    details: _Details = {"batch": batch, "fitting": fitting, "each": total // batch}
    return Remedy(Cause.BATCH, total - total * fitting // batch, details, Basis.ESTIMATED)


RULES: Final[tuple[Callable[[OutOfMemory], Remedy | None], ...]] = (
    _memory_fraction,
    _other_process,
    _other_stream,
    _no_grad,
    _running_sum,
    _kept_graphs,
    _retained_graph,
    _attention_dimensions,
    _attention_matrices,
    _logits,
    _too_large,
    _model_twice,
    _gradients_kept,
    _fragmentation,
    _kept_results,
    _optimizer_temporaries,
    _optimizer_state,
    _parameters,
    _activations,
    _batch,
)
"""In the order in which causes are considered."""


def _is_much(size: int, oom: OutOfMemory) -> bool:
    """True if the bytes are a quarter of those in use, or as many as the request lacks."""
    return size > 0 and (size * 4 >= oom.in_use or size >= max(oom.shortage, oom.in_use // 10))


def _places(oom: OutOfMemory, frames: Sequence[ProgramFrame]) -> list[Place]:
    """The lines of some frames, then those that hold most."""
    holding = [holder.place for holder in oom.by_line()[:6] if holder.place is not None]
    return [*(frame.place for frame in frames), *holding]


def _is_in_optimizer(oom: OutOfMemory) -> bool:
    return any("/optim/" in file.replace("\\", "/") for _, file in oom.functions)


def _makes_state(oom: OutOfMemory) -> bool:
    return any(name == "_init_group" for name, _ in oom.functions)


def _is_score_matrix(block: BlockInUse) -> bool:
    shape = block.shape
    return len(shape) >= 3 and min(shape[-2:]) >= _LONG_SEQUENCE


def _list_details(oom: OutOfMemory, group: TensorGroup) -> _Details:
    """The container, and the line and the variable that are put into it."""
    name = re.escape(group.name)
    line = _line_with(oom, rf"\b{name}(\.append\(|\.extend\(|\s*\+=|\[.*\]\s*=)")
    sources = [frame.source[line] for frame in oom.frames if line in frame.source]
    found = re.search(rf"\b{name}\.append\(([\w.]+)\)", sources[0]) if sources else None
    value = found[1] if found else ""
    return {"name": group.name, "line": line, "times": group.tensors, "value": value}


def _line_with(oom: OutOfMemory, pattern: str) -> int:
    """The last line up to the running one, of a running function, that matches; 0 if none does."""
    for frame in oom.frames:
        for number, text in reversed(frame.source.items()):
            if re.search(pattern, text):
                return number
    return 0


def _assigned(oom: OutOfMemory, name: str) -> int:
    return _line_with(oom, rf"\b{re.escape(name)}\s*=")
