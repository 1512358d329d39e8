"""A call of ``_cudnn_rnn``: what its arguments say, and what of them cuDNN takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .layout import MODES, Network

if TYPE_CHECKING:
    import torch

    Weights = list[torch.Tensor]

_LSTM: Final = MODES.index("LSTM")


class Call:
    """A call of ``_cudnn_rnn``, by the names of its arguments."""

    def __init__(
        self,
        tensor: torch.Tensor,
        weights: Weights,
        count: int,
        buffer: torch.Tensor | None,
        hx: torch.Tensor,
        cx: torch.Tensor | None,
        mode: int,
        hidden_size: int,
        proj_size: int,
        num_layers: int,
        batch_first: bool,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_sizes: list[int],
        state: torch.Tensor | None,
    ) -> None:
        self.tensor = tensor
        self.weights = weights
        self.count = count
        self.buffer = buffer
        self.hx = hx
        self.cx = cx
        self.dropout = dropout if train else 0.0
        self.train = train
        self.batch_sizes = batch_sizes
        self.is_transposed = batch_first and not batch_sizes
        self.network = Network(
            mode,
            tensor.shape[-1],
            hidden_size,
            proj_size,
            num_layers,
            2 if bidirectional else 1,
        )

    @property
    def input(self) -> torch.Tensor:
        """The input with its steps first."""
        return self.tensor.transpose(0, 1) if self.is_transposed else self.tensor

    @property
    def steps(self) -> int:
        """Steps of all sequences together."""
        return self.tensor.shape[:-1].numel()

    @property
    def batch(self) -> int:
        """Number of sequences."""
        return self.batch_sizes[0] if self.batch_sizes else self.input.shape[1]

    def check(self) -> None:
        """Refuse states that do not fit."""
        cx = self.cx
        if (cx is not None) != (self.network.mode == _LSTM):
            raise RuntimeError("rnn: illegal defined cx for non-LSTM RNN")
        if not self.hx.is_contiguous():
            raise RuntimeError("rnn: hx is not contiguous")
        if cx is not None and not cx.is_contiguous():
            raise RuntimeError("rnn: cx is not contiguous")
        if tuple(self.hx.shape) != self.hidden_size():
            raise RuntimeError(
                f"Expected hidden size {list(self.hidden_size())}, got {list(self.hx.shape)}"
            )

    @property
    def needs_buffer(self) -> bool:
        """True if the weights have to be copied into a buffer first."""
        return self.buffer is None

    def output_size(self) -> tuple[int, ...]:
        """Size of what comes out, with its steps first."""
        features = self.network.output_size * self.network.directions
        return (*self.input.shape[:-1], features)

    def hidden_size(self) -> tuple[int, ...]:
        """Size of the last hidden state."""
        network = self.network
        return (network.num_layers * network.directions, self.batch, network.output_size)

    def reserve(self) -> int:
        """Bytes of the reserve space."""
        if not self.train:
            return 0
        return self.network.reserve(self.steps) * self.tensor.element_size()

    def workspace(self) -> int:
        """Bytes of the workspace, as far as they are known.

        PyTorch's issue 2895 tells 17,730,560 bytes for an LSTM and 13,169,920 for a GRU: a copy of
        the matrices, and something for the states of each unit that its batch would tell.
        """
        return self.network.matrices() * self.tensor.element_size()


def call_of_backward(args: tuple[Any, ...]) -> tuple[Call, tuple[Any, ...], list[bool]]:
    """A call of ``_cudnn_rnn_backward``."""
    tensor, weights, count, buffer, hx, cx = args[:6]
    return Call(tensor, weights, count, buffer, hx, cx, *args[10:20]), args[7:10], args[21]


def separate_gradients(call: Call) -> bool:
    """True if weights' gradients are copied out of the buffer that cuDNN writes them to."""
    return call.count != (5 if call.network.proj_size else 4)
