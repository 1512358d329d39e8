"""cuDNN's recurrent networks: the shapes of all that they take and make.

The weights of a network lie in one buffer: those of all layers and directions, then all biases.
cuDNN has two biases for each gate also where the program has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

MODES: Final = ("RNN_RELU", "RNN_TANH", "LSTM", "GRU")
"""In the order of ``cudnnRNNMode_t``."""

_GATES: Final = (1, 1, 4, 3)
_KEPT_FOR_BACKWARD: Final = (1, 1, 5, 6)
"""Values of each unit and step that cuDNN keeps in its reserve space, by mode: an estimate.

PyTorch's issue 2895 has the reserve of two networks of four layers of 320 units, 736,000,000 bytes
for an LSTM and 864,000,000 for a GRU: their ratio is 23 to 27. Three of these values are what goes
from layer to layer, which leaves 5 and 6 to each layer; an LSTM's are its four gates and its cell.
Of the plain networks nothing is told but what they must keep: what they return.
"""


class Part(NamedTuple):
    """One parameter in the buffer of weights.

    Args:
        offset: of its first element.
        size: of the parameter.
    """

    offset: int
    size: tuple[int, ...]

    @property
    def numel(self) -> int:
        """Number of its elements."""
        return torch.Size(self.size).numel()


@dataclass(frozen=True, slots=True)
class Network:
    """A recurrent network as cuDNN's descriptor tells it.

    Args:
        mode: position in ``MODES``.
        input_size: features of the input.
        hidden_size: units of a layer.
        proj_size: units that a layer's result is projected to; 0: it is not.
        num_layers: how many lie on top of each other.
        directions: 2 if it also runs from the end to the start.
    """

    mode: int
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    directions: int

    @property
    def output_size(self) -> int:
        """Features of one direction's result."""
        return self.proj_size or self.hidden_size

    def parts(self) -> list[list[Part]]:
        """The position of each parameter."""
        rows = _GATES[self.mode] * self.hidden_size
        layers = []
        offset = 0
        for layer in range(self.num_layers):
            inputs = self.directions * self.output_size if layer else self.input_size
            for _direction in range(self.directions):
                sizes = [(rows, inputs), (rows, self.output_size)]
                if self.proj_size:
                    sizes.append((self.proj_size, self.hidden_size))
                parts = []
                for size in sizes:
                    parts.append(Part(offset, size))
                    offset += parts[-1].numel
                layers.append(parts)
        for parts in layers:
            biases = [Part(offset + index * rows, (rows,)) for index in range(2)]
            parts[2:2] = biases
            offset += 2 * rows
        return layers

    def numel(self) -> int:
        """Elements of the buffer of weights."""
        return sum(part.numel for layer in self.parts() for part in layer)

    def matrices(self) -> int:
        """Elements of the weights that are no biases."""
        return sum(part.numel for layer in self.parts() for part in layer if len(part.size) > 1)

    def reserve(self, steps: int) -> int:
        """Values that training keeps for the backward pass: an estimate."""
        layers = self.num_layers * self.directions
        kept = _KEPT_FOR_BACKWARD[self.mode] + (1 if self.proj_size else 0)
        between = (self.num_layers - 1) * self.directions * self.output_size
        return steps * (layers * kept * self.hidden_size + between)


def given_parts(layer: list[Part], count: int) -> list[Part]:
    """The parts that the program has parameters for."""
    if count == 3:
        return [*layer[:2], layer[4]]
    return layer[:count]


def views(buffer: torch.Tensor, parts: list[list[Part]]) -> Iterator[list[torch.Tensor]]:
    """The parameters of each layer and direction as views of a buffer."""
    for layer in parts:
        yield [buffer[part.offset : part.offset + part.numel].view(part.size) for part in layer]


def flatten(
    weights: list[torch.Tensor],
    count: int,
    input_size: int,
    mode: int,
    hidden_size: int,
    proj_size: int,
    num_layers: int,
    batch_first: bool,
    bidirectional: bool,
) -> torch.Tensor:
    """``torch._cudnn_rnn_flatten_weight``: parameters become views of one buffer."""
    network = Network(
        mode, input_size, hidden_size, proj_size, num_layers, 2 if bidirectional else 1
    )
    buffer = torch.zeros(network.numel(), dtype=weights[0].dtype, device=weights[0].device)
    parts = [given_parts(layer, count) for layer in network.parts()]
    flat = [view for layer in views(buffer, parts) for view in layer]
    for weight, view in zip(weights, flat, strict=True):
        view.copy_(weight.view_as(view))
    for weight, view in zip(weights, flat, strict=True):
        weight.set_(view)  # type: ignore[call-overload]
    return buffer


def flat_buffer(network: Network, weights: list[torch.Tensor], count: int) -> Any:
    """The buffer that parameters are views of, if they lie in it as cuDNN wants them."""
    first = weights[0]
    numel = network.numel()
    storage = first.untyped_storage()
    if storage.nbytes() // first.element_size() < numel:
        return None
    expected = [part for layer in network.parts() for part in given_parts(layer, count)]
    for weight, part in zip(weights, expected, strict=True):
        if weight.untyped_storage()._cdata != storage._cdata:
            return None
        if weight.storage_offset() != part.offset:
            return None
    if not weights[-1].is_contiguous():
        return None
    return first.detach().as_strided((numel,), (1,), 0)
