"""cuDNN's recurrent networks: the shapes of all that they take and make.

The weights of a network lie in one buffer: those of all layers and directions, then all biases.
cuDNN has two biases for each gate also where the program has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch

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
    """One parameter in the buffer of weights: the offset of its first element, and its size."""

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
        bidirectional: it also runs from the end to the start.
    """

    mode: int
    input_size: int
    hidden_size: int
    proj_size: int
    num_layers: int
    bidirectional: bool

    @property
    def directions(self) -> int:
        """Directions that each layer runs in."""
        return 2 if self.bidirectional else 1

    @property
    def output_size(self) -> int:
        """Features of one direction's result."""
        return self.proj_size or self.hidden_size

    def parts(self, count: int = 5) -> list[Part]:
        """The position of each parameter, of up to ``count`` in each layer and direction.

        They are two matrices, two biases and the projection; 3 stands for those without biases.
        """
        rows = _GATES[self.mode] * self.hidden_size
        layers: list[list[Part]] = []
        offset = 0
        for layer in range(self.num_layers):
            inputs = self.directions * self.output_size if layer else self.input_size
            sizes = [(rows, inputs), (rows, self.output_size)]
            if self.proj_size:
                sizes.append((self.proj_size, self.hidden_size))
            for _direction in range(self.directions):
                layers.append([])
                for size in sizes:
                    layers[-1].append(Part(offset, size))
                    offset += layers[-1][-1].numel
        for parts in layers:
            parts[2:2] = [Part(offset, (rows,)), Part(offset + rows, (rows,))]
            offset += 2 * rows
            parts[:] = [*parts[:2], parts[4]] if count == 3 else parts[:count]
        return [part for parts in layers for part in parts]

    def numel(self) -> int:
        """Elements of the buffer of weights."""
        return sum(part.numel for part in self.parts())

    def matrices(self) -> int:
        """Elements of the weights that are no biases."""
        return sum(part.numel for part in self.parts() if len(part.size) > 1)

    def reserve(self, steps: int) -> int:
        """Values that training keeps for the backward pass: an estimate."""
        layers = self.num_layers * self.directions
        kept = _KEPT_FOR_BACKWARD[self.mode] + (1 if self.proj_size else 0)
        between = (self.num_layers - 1) * self.directions * self.output_size
        return steps * (layers * kept * self.hidden_size + between)


class Call(NamedTuple):
    """The arguments of ``_cudnn_rnn``, in their order."""

    tensor: torch.Tensor
    weights: list[torch.Tensor]
    weight_stride0: int
    buffer: torch.Tensor | None
    hx: torch.Tensor
    cx: torch.Tensor | None
    mode: int
    hidden_size: int
    proj_size: int
    num_layers: int
    batch_first: bool
    dropout: float
    train: bool
    bidirectional: bool
    batch_sizes: list[int]
    state: torch.Tensor | None

    @property
    def network(self) -> Network:
        """The parameters of the descriptor of cuDNN."""
        return Network(self.mode, self.tensor.shape[-1], *self[7:10], self.bidirectional)

    @property
    def drops(self) -> bool:
        """True if there is a dropout between layers."""
        return self.train and self.dropout > 0

    @property
    def input(self) -> torch.Tensor:
        """The input with its steps first."""
        return self.turned(self.tensor)

    def turned(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with its steps first, or one with its steps first as the program has it."""
        return tensor.transpose(0, 1) if self.batch_first and not self.batch_sizes else tensor

    def output_shape(self) -> tuple[int, ...]:
        """Of what comes out, with its steps first."""
        return (*self.input.shape[:-1], self.network.output_size * self.network.directions)

    def hidden_shape(self) -> tuple[int, ...]:
        """Of the last hidden state."""
        batch = self.batch_sizes[0] if self.batch_sizes else self.input.shape[1]
        network = self.network
        return (network.num_layers * network.directions, batch, network.output_size)

    def check(self) -> None:
        """Refuse states that do not fit."""
        if (self.cx is not None) != (MODES[self.mode] == "LSTM"):
            raise RuntimeError("rnn: illegal defined cx for non-LSTM RNN")
        for name, state in (("hx", self.hx), ("cx", self.cx)):
            if state is not None and not state.is_contiguous():
                raise RuntimeError(f"rnn: {name} is not contiguous")
        if tuple(self.hx.shape) != self.hidden_shape():
            raise RuntimeError(
                f"Expected hidden size {list(self.hidden_shape())}, got {list(self.hx.shape)}"
            )

    def reserve(self) -> int:
        """Bytes of the reserve space."""
        steps = self.tensor.shape[:-1].numel()
        return self.network.reserve(steps) * self.tensor.element_size() if self.train else 0

    def workspace(self) -> int:
        """Bytes of the workspace, as far as they are known.

        PyTorch's issue 2895 tells 17,730,560 bytes for an LSTM and 13,169,920 for a GRU: a copy of
        the matrices, and something for the states of each unit that its batch would tell.
        """
        return self.network.matrices() * self.tensor.element_size()


def views(buffer: torch.Tensor, parts: Iterable[Part]) -> list[torch.Tensor]:
    """Parameters as views of a buffer."""
    return [buffer[part.offset : part.offset + part.numel].view(part.size) for part in parts]


def fill(buffer: torch.Tensor, parts: Iterable[Part], weights: list[torch.Tensor]) -> Any:
    """Copy parameters into a buffer: the views of it that have their values."""
    flat = views(buffer, parts)
    for weight, view in zip(weights, flat, strict=True):
        view.copy_(weight.view_as(view))
    return flat


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
    network = Network(mode, input_size, hidden_size, proj_size, num_layers, bidirectional)
    buffer = torch.zeros(network.numel(), dtype=weights[0].dtype, device=weights[0].device)
    flat = fill(buffer, network.parts(count), weights)
    for weight, view in zip(weights, flat, strict=True):
        weight.set_(view)
    return buffer


def flat_buffer(network: Network, weights: list[torch.Tensor], count: int) -> Any:
    """The buffer that parameters are views of, if they lie in it as cuDNN wants them."""
    first = weights[0]
    numel = network.numel()
    storage = first.untyped_storage()
    if storage.nbytes() // first.element_size() < numel or not weights[-1].is_contiguous():
        return None
    for weight, part in zip(weights, network.parts(count), strict=True):
        if weight.untyped_storage()._cdata != storage._cdata:
            return None
        if weight.storage_offset() != part.offset:
            return None
    return first.detach().as_strided((numel,), (1,), 0)
