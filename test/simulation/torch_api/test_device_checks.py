"""Functions that refuse tensors of several devices in words of their own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.backends import mkldnn

from pytorch_memlab import simulate

_CPU_INPUT = "Input type (torch.FloatTensor) and weight type"
_SAME = "should be the same"
_MKLDNN = " or input should be a MKLDNN tensor and {} is a dense tensor"
_RNN = "Input and {} tensors are not at the same device, found input tensor at {} and {} tensor at "
_ALONG = (
    "Expected tensor to have {} Device, but got tensor with {} Device "
    "(while checking arguments for torch.take_along_dim():)"
)

_RESULT = "Expected {} and input tensors to be on the same device, but got {} on {} and input on {}"


def _suffix(name):
    return _SAME + (_MKLDNN.format(name) if mkldnn.is_available() else "")


def on_cpu(*sizes):
    return torch.ones(*sizes)


def on_gpu(*sizes):
    return torch.ones(*sizes, device="cuda")


def packed(tensor):
    return nn.utils.rnn.pack_padded_sequence(tensor, torch.tensor([2]))


CALLS = {
    "a picture on the CPU": (
        lambda: nn.Conv2d(3, 4, 3).cuda()(on_cpu(1, 3, 8, 8)),
        f"{_CPU_INPUT} (torch.cuda.FloatTensor) {_suffix('weight')}",
    ),
    "a convolution on the CPU": (
        lambda: nn.Conv1d(3, 4, 3).half()(on_gpu(1, 3, 8).half()),
        f"Input type (torch.cuda.HalfTensor) and weight type (torch.HalfTensor) {_SAME}",
    ),
    "a bias on the CPU": (
        lambda: F.conv_transpose2d(on_gpu(1, 3, 8, 8), on_gpu(3, 4, 3, 3), on_cpu(4)),
        f"Input type (torch.cuda.FloatTensor) and bias type (torch.FloatTensor) {_SAME}",
    ),
    "a sequence on the CPU": (
        lambda: nn.LSTM(3, 4).cuda()(on_cpu(2, 1, 3)),
        _RNN.format("parameter", "cpu", "parameter") + "cuda:0",
    ),
    "weights on the CPU": (
        lambda: nn.GRU(3, 4)(packed(on_gpu(2, 1, 3))),
        _RNN.format("parameter", "cuda:0", "parameter") + "cpu",
    ),
    "a state on the CPU": (
        lambda: nn.LSTM(3, 4).cuda()(on_gpu(2, 1, 3), (on_cpu(1, 1, 4), on_cpu(1, 1, 4))),
        _RNN.format("hidden", "cuda:0", "hidden") + "cpu",
    ),
    "a packed sequence and its state": (
        lambda: nn.RNN(3, 4).cuda()(packed(on_gpu(2, 1, 3)), on_cpu(1, 1, 4)),
        _RNN.format("hidden", "cuda:0", "hidden") + "cpu",
    ),
    "indices on the CPU": (
        lambda: torch.take_along_dim(on_gpu(3), on_cpu(2).long()),
        _ALONG.format("cuda:0", "cpu"),
    ),
    "indices on a GPU": (
        lambda: on_cpu(3).take_along_dim(on_gpu(2).long(), 0),
        _ALONG.format("cpu", "cuda:0"),
    ),
    "values on the CPU": (
        lambda: torch.mode(on_gpu(3), out=(on_cpu(1), on_gpu(1).long())),
        "expected device 'cuda:0' but got 'cpu' for values output",
    ),
    "a result on the CPU": (
        lambda: torch.linalg.pinv(on_gpu(3, 3), out=on_cpu(3, 3)),
        "linalg.pinv: " + _RESULT.format("result", "result", "cpu", "cuda:0"),
    ),
    "a norm on the CPU": (
        lambda: torch.linalg.norm(on_gpu(3, 3), out=on_cpu(())),
        "linalg.norm: " + _RESULT.format("result", "result", "cuda:0", "cpu"),
    ),
    "a norm of matrices on the CPU": (
        lambda: torch.linalg.matrix_norm(on_gpu(3, 3), out=on_cpu(())),
        "linalg.matrix_norm: " + _RESULT.format("result", "result", "cuda:0", "cpu"),
    ),
    "a rank on the CPU": (
        lambda: torch.linalg.matrix_rank(on_gpu(3, 3), out=on_cpu(()).long()),
        "torch.linalg.matrix_rank: " + _RESULT.format("result", "result", "cpu", "cuda:0"),
    ),
    "a tolerance on the CPU": (
        lambda: torch.linalg.matrix_rank(on_gpu(3, 3), on_cpu(())),
        "torch.linalg.matrix_rank: " + _RESULT.format("atol", "atol", "cpu", "cuda:0"),
    ),
    "a relative tolerance on the CPU": (
        lambda: torch.linalg.matrix_rank(on_gpu(3, 3), rtol=on_cpu(())),
        "torch.linalg.matrix_rank: " + _RESULT.format("rtol", "rtol", "cpu", "cuda:0"),
    ),
    "an addend of all on the CPU": (
        lambda: torch._foreach_add([on_gpu(3), on_gpu(3)], on_cpu(())),
        "scalar tensor expected to be on cuda:0 but is on cpu",
    ),
    "an addend of all in place": (
        lambda: torch._foreach_add_([on_gpu(3)], on_cpu(()), alpha=2.0),
        "scalar tensor is expected to be on cuda:0 but is on cpu",
    ),
    "a sum on the CPU": (
        lambda: torch.sum(on_gpu(3), 0, out=on_cpu(1)),
        "Expected out tensor to have device cuda:0, but got cpu instead",
    ),
    "a maximum on the CPU": (
        lambda: torch.max(on_gpu(3), 0, out=(on_cpu(()), on_gpu(()).long())),
        "Expected out tensor to have device cuda:0, but got cpu instead",
    ),
    "indices on another device": (
        lambda: torch.mode(on_cpu(3), out=(on_cpu(1), on_gpu(1).long())),
        "expected device 'cpu' but got 'cuda:0' for indices output",
    ),
}


@pytest.mark.parametrize(("call", "words"), CALLS.values(), ids=CALLS)
def test_the_words_are_those_of_the_function(call, words):
    with simulate("1GiB"):
        with pytest.raises(RuntimeError) as caught:
            call()
        assert str(caught.value) == words


def test_numbers_of_the_cpu_pass_where_a_kernel_runs_for_each_tensor():
    with simulate("1GiB"):
        strided = on_gpu(3, 4)[:, ::2]
        for tensors, alpha in (
            ([on_gpu(3), on_gpu(3).half()], 1),
            ([strided, on_gpu(3)], 1),
            ([on_gpu(3).double()], 1),
            ([on_gpu(3).long()], 0.5),
        ):
            sums = torch._foreach_add(tensors, on_cpu(()), alpha=alpha)
            assert [one.flatten()[0].item() for one in sums] == [1 + alpha] * len(tensors)
            assert all(one.is_cuda for one in sums)
        for scale in (torch._foreach_mul, torch._foreach_div):
            [result] = scale([on_gpu(3)], on_cpu(()))
            assert result.tolist() == [1.0, 1.0, 1.0]


def test_tensors_of_one_device_pass():
    with simulate("1GiB"):
        for device in ("cpu", "cuda"):
            tensor = torch.arange(3.0, device=device)
            assert torch.take_along_dim(tensor, tensor.long()).tolist() == [0.0, 1.0, 2.0]
            values, indices = tensor.new_empty(()), tensor.new_empty((), dtype=torch.int64)
            torch.mode(tensor, out=(values, indices))
            assert (values.item(), indices.item()) == (0.0, 0)
            sequence = torch.ones(2, 1, 3, device=device)
            lstm = nn.LSTM(3, 4).to(device)
            assert lstm(sequence)[0].device == lstm(packed(sequence))[0].data.device
            assert F.conv1d(input=sequence, weight=sequence).shape == (2, 2, 1)
