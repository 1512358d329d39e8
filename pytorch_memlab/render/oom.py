"""An out-of-memory report as text: at most 20 lines of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from .._common.ipython import file_name
from .._common.prose_size import prose_size
from .._common.quoted import visible
from ..history.causes import Basis, Cause, Remedy, remedies
from ..history.model import Category
from ..history.out_of_memory import LineHolder, OutOfMemory, Place
from .page import notebook_text
from .rows import WIDTH, cut, filled

LINES: Final = 20
_HOLDERS: Final = 4
_GROWN: Final = 2
_NAME: Final = 22

_WHY = {
    Cause.MEMORY_FRACTION: "PyTorch may use {allowed} only: set_per_process_memory_fraction",
    Cause.OTHER_PROCESS: "other processes hold {size} of this GPU",
    Cause.OTHER_STREAM: "{size} are cached for another stream, and blocks never change streams",
    Cause.FRAGMENTATION: "{size} are cached in pieces that are too small",
    Cause.NO_GRAD: "autograd saved {size}, and no backward pass follows",
    Cause.RUNNING_SUM: "{name}{at} keeps the graphs of {times} additions: {size}",
    Cause.KEPT_GRAPHS: "{name}{at} keeps {times} tensors with their graphs: {size}",
    Cause.RETAINED_GRAPH: "retain_graph=True{at} keeps the graphs of all steps: about {size}",
    Cause.KEPT_RESULTS: "{name}{at} keeps {times} tensors on the GPU: {size}",
    Cause.ATTENTION_DIMENSIONS: "attention{at} has 3 dimensions, so no fused kernel runs: {size}",
    Cause.ATTENTION_MATRICES: "attention{at} stores {rows} x {columns} matrices: {size}",
    Cause.LOGITS: "logits of {vocabulary} classes{at} take {whole}",
    Cause.TOO_LARGE: "one tensor of {size} is larger than the GPU, which has {room}",
    Cause.MODEL_TWICE: "{name}{at} is a second copy of the parameters: {size}",
    Cause.GRADIENTS_KEPT: "gradients of the step before take {size}",
    Cause.OPTIMIZER_TEMPORARIES: "{name} makes temporaries for all parameters: {size}",
    Cause.OPTIMIZER_STATE: "{name} keeps {whole}, twice the parameters",
    Cause.PARAMETERS: "the parameters take {whole}, most of the GPU",
    Cause.ACTIVATIONS: "{count} modules in {name} saved {whole} for backward",
    Cause.BATCH: "each of {batch} samples in the batch takes about {each}",
}

_CODE = {
    Cause.MEMORY_FRACTION: "torch.cuda.set_per_process_memory_fraction({fraction}, {device})",
    Cause.OTHER_PROCESS: "nvidia-smi  # names them; CUDA_VISIBLE_DEVICES=1 takes another GPU",
    Cause.OTHER_STREAM: "make these tensors on one stream (checked: {requests} requests fit)",
    Cause.FRAGMENTATION: "PYTORCH_CUDA_ALLOC_CONF={settings}",
    Cause.NO_GRAD: "with torch.no_grad():  # around {call}",
    Cause.RUNNING_SUM: "{name} += loss.item()",
    Cause.KEPT_GRAPHS: "{name}.append({value}.item())  # or .detach()",
    Cause.RETAINED_GRAPH: "state = state.detach()  # between steps, without retain_graph",
    Cause.KEPT_RESULTS: "{name}.append({value}.cpu())",
    Cause.ATTENTION_DIMENSIONS: (
        "q, k, v = (x.unsqueeze(1) for x in (q, k, v))  # and result.squeeze(1)"
    ),
    Cause.ATTENTION_MATRICES: "scaled_dot_product_attention(q, k, v)  # with 4 dimensions each",
    Cause.LOGITS: "loss = sum(checkpoint(part_loss, h) for h in hidden.chunk(8))",
    Cause.TOO_LARGE: "for part in tensor.chunk({parts}): ...  # in place of all at once",
    Cause.MODEL_TWICE: '{name} on the CPU: map_location="cpu", or .cpu()',
    Cause.GRADIENTS_KEPT: "optimizer.zero_grad(set_to_none=True)  # before the forward pass",
    Cause.OPTIMIZER_TEMPORARIES: "torch.optim.{name}(parameters, fused=True)",
    Cause.OPTIMIZER_STATE: "torch.optim.{other}(parameters)  # keeps {factored}",
    Cause.PARAMETERS: "{name} = {name}.to(torch.bfloat16)  # before .cuda()",
    Cause.ACTIVATIONS: "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
    Cause.BATCH: "a batch of at most about {fitting}",
}

_NAMELESS = {
    Cause.KEPT_GRAPHS: "keep numbers in {name}: .item(), or .detach()",
    Cause.KEPT_RESULTS: "keep copies in host memory in {name}: .cpu()",
}
"""Advice for causes where the program does not append to a list."""

_SIZES = ("allowed", "room", "whole", "factored", "each")
"""Details that are bytes."""

_SHORT = {
    Category.SAVED: "saved for backward",
    Category.OTHERS: "other tensors",
}


def text(oom: OutOfMemory) -> str:
    """The text that a terminal shows after the traceback."""
    head = [*_head(oom), *_held(oom)]
    advice = _advice(oom, remedies(oom))
    room = LINES - len(advice)
    lines = [*head[:room], *_lines(oom, room - len(head)), *advice][:LINES]
    return "".join(f"{cut(visible(line))}\n" for line in lines)


def fragment(report: str) -> str:
    """The text of a report for a notebook."""
    return notebook_text(report.strip("\n"), "Out of memory")


def data(oom: OutOfMemory) -> dict[str, Any]:
    """The report as plain data, for JSON."""
    request = oom.request
    return {
        "error": request.text,
        "device": f"cuda:{request.device}",
        "gpu": oom.gpu,
        "simulated": oom.is_simulated,
        "place": asdict(oom.frames[0].place) if oom.frames else None,
        "requested": request.requested,
        "segment": request.segment,
        "capacity": request.capacity,
        "free": request.free,
        "context": request.context,
        "other_processes": request.others,
        "in_use": oom.in_use,
        "cached": oom.cached,
        "largest_free_block": _largest_free(oom),
        "categories": {str(category): size for category, size in oom.by_category()},
        "lines": [
            {
                "file": holder.place.file if holder.place else "",
                "line": holder.place.line if holder.place else 0,
                "bytes": holder.size,
                "blocks": holder.blocks,
                "names": list(holder.names),
                "categories": [str(category) for category in holder.categories],
            }
            for holder in oom.by_line()
        ],
        "remedies": [
            {
                "cause": remedy.cause.value,
                "bytes": remedy.size,
                "basis": remedy.basis.value,
                "why": _why(remedy),
                "code": _code(remedy),
            }
            for remedy in remedies(oom)
        ],
        "missing": list(oom.missing),
    }


def _head(oom: OutOfMemory) -> Iterator[str]:
    request = oom.request
    place = oom.frames[0].place if oom.frames else None
    where = f" at {_short(place)}, in {place.function}" if place else ""
    yield f"Out of memory on cuda:{request.device}{where}"
    if place and place.source:
        yield f"    {place.source}"
    places = {block.place for block in oom.blocks if block.node == oom.node and block.place}
    line = f" of {_short(next(iter(places)))}" if len(places) == 1 else ""
    backward = f" in {oom.node}{line}" if oom.node else ""
    part, segment = prose_size(request.requested), prose_size(request.segment)
    if part == segment:
        yield f"  asked for a segment of {segment}{backward}"
    else:
        yield f"  asked for {part}{backward}, which needs a segment of {segment}"
    yield (
        f"  in use {prose_size(oom.in_use)}, cached {prose_size(oom.cached)} "
        f"(largest block {prose_size(_largest_free(oom))}), free {prose_size(request.free)}"
    )
    taken = (
        "CUDA context and other processes not known"
        if request.context is None or request.others is None
        else f"CUDA context {prose_size(request.context)}, "
        f"other processes {prose_size(request.others)}"
    )
    allowed = "" if request.allowed is None else f", {prose_size(request.allowed)} allowed"
    yield f"  of {prose_size(request.capacity)}{allowed}; {taken}"


def _held(oom: OutOfMemory) -> list[str]:
    found = oom.by_category()
    named = [
        f"{prose_size(size)} {_SHORT.get(category, str(category))}" for category, size in found
    ]
    lines: list[str] = []
    for count in range(len(named)):
        more = "" if count + 1 == len(named) else ", …"
        text = f"held by {', '.join(named[: count + 1])}{more}"
        longer = textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
        if len(longer) > 2:
            break
        lines = longer
    return lines


def _lines(oom: OutOfMemory, room: int) -> list[str]:
    """Holders by line, and the lines that made blocks again and again."""
    holders = [holder for holder in oom.by_line() if holder.place is not None]
    grown = _grown(holders)
    shown = holders[: max(0, min(_HOLDERS, room - bool(grown)))]
    if not shown:
        return _tensors(oom, room)
    places = [_short(holder.place) for holder in shown if holder.place]
    width = max(map(len, places))
    lines = []
    for holder, place in zip(shown, places, strict=True):
        source = holder.place.source if holder.place else ""
        names = _names(holder.names)
        room_left = WIDTH - 14 - width - 2 - len(names)
        code = cut(source, room_left)
        lines.append(f"  {prose_size(holder.size):>10}  {filled(place, width)}  {code}{names}")
    return [*lines, *([grown] if grown else [])]


def _tensors(oom: OutOfMemory, room: int) -> list[str]:
    """The largest tensors that have a name, where no line is known."""
    named = sorted((one for one in oom.blocks if one.name), key=lambda block: -block.size)
    return [
        f"  {prose_size(block.size):>10}  {block.name}  {'x'.join(map(str, block.shape))}"
        f" {block.dtype}".rstrip()
        for block in named[: max(0, min(_HOLDERS, room))]
    ]


def _names(names: Sequence[str]) -> str:
    """The first variables of a line that there is room for."""
    if not names:
        return ""
    shown = cut(names[0], _NAME)
    if len(names) > 1 and len(shown) + len(names[1]) + 2 <= _NAME:
        shown += f", {names[1]}"
    elif len(names) > 1:
        shown += ", …"
    return f"  ({shown})"


def _grown(holders: Sequence[LineHolder]) -> str:
    text = ""
    for holder in [one for one in holders if one.blocks > 1][:_GROWN]:
        each = prose_size(holder.size // holder.blocks)
        longer = f"{text}, " if text else "  grew most: "
        longer += f"{_short(holder.place)} +{each} x {holder.blocks}"
        if text and len(longer) > WIDTH:
            break
        text = longer
    return text


def _advice(oom: OutOfMemory, found: Sequence[Remedy]) -> list[str]:
    lines = []
    for number, remedy in enumerate(found, 1):
        why = textwrap.wrap(
            f"{number}. {_why(remedy)}{_effect(remedy)}",
            WIDTH - 2,
            initial_indent="  ",
            subsequent_indent="     ",
        )
        lines += [*why[:2], f"       {_code(remedy)}"]
    notes = [f"settings of the allocator were not checked: {oom.unchecked}"] * bool(oom.unchecked)
    notes += [f"could not find out: {', '.join(oom.missing)}"] * bool(oom.missing)
    for note in notes:
        lines += textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ")[:2]
    head = "what helps, the most likely cause first" if found else "no single cause stands out"
    return [head, *lines]


def _why(remedy: Remedy) -> str:
    return _WHY[remedy.cause].format(**_details(remedy))


def _code(remedy: Remedy) -> str:
    details, code = _details(remedy), _CODE[remedy.cause]
    if details.get("value") == "":  # what is put there has no name
        code = _NAMELESS.get(remedy.cause, code)
    return code.format(**details)


def _effect(remedy: Remedy) -> str:
    if remedy.cause is Cause.FRAGMENTATION:
        requests = remedy.details["requests"]
        if not remedy.details["is_whole"]:
            return f" (about: this request and the {requests:,} before it fit; others may not)"
        return f" (checked: this request and the {requests:,} before it fit; later ones may not)"
    if remedy.basis is Basis.ESTIMATED:
        return f" (saves about {prose_size(remedy.size)})"
    if remedy.cause in (Cause.OPTIMIZER_STATE, Cause.PARAMETERS):
        return f" (saves {prose_size(remedy.size)})"
    return ""


def _details(remedy: Remedy) -> dict[str, str]:
    named = {
        key: prose_size(value) if key in _SIZES and isinstance(value, int) else str(value)
        for key, value in remedy.details.items()
    }
    line = remedy.details.get("line")
    at = f" (line {line})" if line else ""
    return {"name": "", "size": prose_size(remedy.size), "at": at, **named}


def _largest_free(oom: OutOfMemory) -> int:
    blocks = [block.size for block in oom.request.free_blocks if block.stream == oom.request.stream]
    return max(blocks, default=0)


def _short(place: Place | None) -> str:
    if place is None:
        return ""
    name = file_name(place.file)
    return f"{name}:{place.line}"
