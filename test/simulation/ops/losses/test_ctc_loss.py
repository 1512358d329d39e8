"""CTC loss by PyTorch and by cuDNN: temporaries, shapes and values."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries
from torch.nn import functional as F

from pytorch_memlab import simulate


@pytest.mark.parametrize(("steps", "blanks"), [(216, False), (217, True)])
def test_the_gradient_of_a_ctc_loss_keeps_lengths_and_beta(steps, blanks):
    lengths = ([steps] * 4, [5] * 4)

    def gradient(x, y, forward):
        return aten._ctc_loss_backward(forward[0], x, y, *lengths, *forward, 0)

    def forward():
        return aten._ctc_loss(randn(steps, 4, 40).log_softmax(2), indices(4, 5) + 1, *lengths)

    make = [lambda: randn(steps, 4, 40).log_softmax(2), lambda: indices(4, 5) + 1, forward]
    offsets, beta, result = 4 * 8, 4 * steps * 11 * 4, steps * 4 * 40 * 4
    row, joined = 4 * steps * 4, 4 * steps * 6 * 4
    assert events(gradient, *make) == [
        *(offsets, offsets, offsets, beta, result),
        *(temporaries(joined, row, joined) if blanks else []),
        *(-beta, -offsets, -offsets, -offsets),
    ]


@computed_or_dry
def test_lengths_of_a_ctc_loss_are_numbers_and_its_labels_go_to_the_gpu(compute):
    def loss(x, lengths, targets):
        return F.ctc_loss(x, targets, *lengths, zero_infinity=True)

    numbers = [10] * 4, [5, 4, 3, 2]
    tensors = tuple(torch.tensor(one) for one in numbers)
    probabilities = lambda: randn(10, 4, 20).log_softmax(2)  # noqa: E731
    forward = [32, 32, 32, 16, 4 * 10 * 11 * 4, -32, -32, -32, -1760]
    finite = [4, 4, 16, -16, -4, -4]
    mean = [16, 16, -16, 16, 4, -16, -16, -16]
    for lengths in (numbers, tensors):
        make = [probabilities, lambda lengths=lengths: lengths]
        on_gpu = events(loss, *make, lambda: indices(14) + 1, compute=compute)
        assert on_gpu == [*forward, *finite, *mean]
        on_host = events(loss, *make, lambda: torch.arange(14) % 9 + 1, compute=compute)
        assert on_host[:8] == [14 * 8, *forward[:7]]
        assert sum(on_host) == 4


@pytest.mark.parametrize("steps", [10, 300])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_ctc_loss_has_shapes_without_values(steps, dtype):
    def loss():
        leaf = randn(steps, 4, 20).requires_grad_()
        F.ctc_loss(leaf.log_softmax(2), indices(4, 5) + 1, [steps] * 4, [5] * 4).backward()
        lengths = (torch.tensor(one, device="cuda", dtype=dtype) for one in ([steps] * 4, LABELS))
        targets = indices(14).to(dtype) + 1
        F.ctc_loss(leaf.log_softmax(2), targets, *lengths, zero_infinity=True).backward()

    computed = events(loss)
    assert len(computed) > 20
    assert events(loss, compute=False) == computed


LABELS = [5, 4, 3, 2]


@computed_or_dry
@pytest.mark.parametrize("in_tensors", [False, True])
def test_cudnn_makes_the_gradient_with_the_loss(in_tensors, compute):
    targets = (torch.arange(14) % 9 + 1).int()
    lengths = torch.tensor([10] * 4).int(), torch.tensor(LABELS).int()
    given = lengths if in_tensors else tuple(one.tolist() for one in lengths)
    loss = lambda x: F.ctc_loss(x, targets, *given, reduction="none")  # noqa: E731
    found = events(loss, lambda: randn(10, 4, 20).log_softmax(2), compute=compute)
    copies = [14 * 4, 16, 16] if in_tensors else []
    assert found == [*copies, 3200, 16, *(-size for size in reversed(copies)), -3200]
    with simulate("1GiB", compute=compute) as machine:
        leaf = torch.randn(10, 4, 20, device="cuda").log_softmax(2).requires_grad_()
        result = loss(leaf)
        assert type(result.grad_fn).__name__[:-1] == "CudnnCtcLossBackward"
        result.sum().backward()
        assert any("_cudnn_ctc_loss" in name for name, _ in machine.approximations[0].uncounted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_ctc_loss_computes_what_a_cpu_computes(dtype, reduction):
    torch.manual_seed(0)
    probabilities = torch.randn(10, 4, 20).log_softmax(2)
    targets = torch.randint(1, 20, (14,), dtype=dtype)
    lengths = [10] * 4, LABELS

    def run(leaf):
        loss = F.ctc_loss(leaf, targets, *lengths, reduction=reduction)
        loss.sum().backward()
        return loss.detach().cpu(), leaf.grad.cpu()

    expected = run(probabilities.double().requires_grad_())
    with simulate("1GiB"):
        found = run(probabilities.cuda().requires_grad_())
        wide = tuple(one.double() for one in found)
        torch.testing.assert_close(wide, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("joined", [False, True])
def test_lengths_without_values_are_the_longest(joined):
    with simulate("a100", compute=False) as machine:
        probabilities = torch.randn(50, 8, 20, device="cuda").log_softmax(2).requires_grad_()
        targets = torch.ones(8 * 30 if joined else (8, 30), dtype=torch.int64, device="cuda")
        lengths = (torch.randn(8, 9999, device="cuda") > 0).sum(1)
        assert machine.data_dependent_reads == ()
        loss = F.ctc_loss(probabilities, targets, lengths, lengths, reduction="none")
        *_, alpha = loss.grad_fn._saved_result1.shape
        assert alpha == 2 * (8 * 30 if joined else 30) + 1
        (read,) = {read.op for read in machine.data_dependent_reads}
        assert read == "aten::ctc_loss"
