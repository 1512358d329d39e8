"""Zeros that autograd's nodes make, of which C++ says only that they are for CPU tensors.

Note [Zero gradients]
A node makes zeros in place of a gradient that nothing led to. On CUDA they are where that output
of the forward pass was. A custom function may have outputs on several devices: its node remembers
where each of them was. Any other node works on one GPU: that of the nearest leaf that it leads to,
or of the nearest output of a custom function, as copies between devices are custom functions here.
The last op does not tell it: nodes on other GPUs may have run in between.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import Any, Final, NamedTuple

import torch

from ..machine.machine import Machine
from ..machine.simulated_gpu import SimulatedGPU

_PLACES: Final = "_memlab_places"
_INPUTS: Final = "_memlab_inputs"
_NO_TENSOR: Final = object()
_MOST_NODES: Final = 1000
"""How many nodes are looked at for one zero gradient."""


class InputPlace(NamedTuple):
    """An input of a custom function that wants a gradient: its place among tensors, its device."""

    position: int
    device: torch.device


def note_outputs(machine: Machine, outputs: Any, inputs: tuple[Any, ...]) -> None:
    """Remember where the outputs and the inputs of a custom function are, for its node."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    node = next((output.grad_fn for output in outputs if _has_node(output)), None)
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return
    gpu_of = machine.gpu_of
    places = [
        gpu_of(output) if isinstance(output, torch.Tensor) else _NO_TENSOR for output in outputs
    ]
    setattr(node, _PLACES, places)
    setattr(node, _INPUTS, _places_of(inputs))
    if len(set(places) - {_NO_TENSOR}) > 1:
        node.register_prehook(partial(_expect_zeros, machine, places))


def places_of_inputs(node: Any) -> list[InputPlace | None]:
    """The devices of the gradients that the node of a custom function has to return."""
    places: list[InputPlace | None] = getattr(node, _INPUTS, [])
    return places


def _places_of(inputs: tuple[Any, ...]) -> list[InputPlace | None]:
    places: list[InputPlace | None] = []
    tensors = 0
    for value in inputs:
        is_tensor = isinstance(value, torch.Tensor)
        wants = is_tensor and value.requires_grad
        places.append(InputPlace(tensors, value.device) if wants else None)
        tensors += is_tensor
    return places


def gpu_of_zeros(machine: Machine, node: Any) -> SimulatedGPU | None:
    """The GPU on which a node that runs makes zeros; None: the CPU."""
    thread = machine.thread
    places = getattr(node, _PLACES, None)
    if places is not None and thread.zero_gradients:
        return thread.zero_gradients.popleft()
    if len(machine.gpus) == 1:
        return thread.last_gpu
    if places is not None:
        gpus = {place for place in places if place is not _NO_TENSOR}
        return gpus.pop() if len(gpus) == 1 else thread.last_gpu
    return _nearest_gpu(machine, node)


def _has_node(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.grad_fn is not None


def _expect_zeros(machine: Machine, places: list[Any], gradients: tuple[Any, ...]) -> None:
    """Before a node of several devices: they are made in the order of its outputs."""
    machine.thread.zero_gradients = deque(
        place
        for place, gradient in zip(places, gradients, strict=False)
        if gradient is None and place is not _NO_TENSOR
    )


def _nearest_gpu(machine: Machine, node: Any) -> SimulatedGPU | None:
    waiting = deque(node.next_functions)
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        following, output = waiting.popleft()
        if following is None or following in seen:
            continue
        seen.add(following)
        places = getattr(following, _PLACES, ())
        if output < len(places):
            place: SimulatedGPU | None = places[output]
            return place
        leaf = getattr(following, "variable", None)
        gpu = None if leaf is None else machine.gpu_of(leaf)
        if gpu is not None:  # a leaf of the CPU may be a number, or kept there until it is used
            return gpu
        waiting.extend(following.next_functions)
    return machine.thread.last_gpu
