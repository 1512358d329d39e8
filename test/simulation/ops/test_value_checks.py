"""Ops that look whether values are right, of tensors without values."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab.simulation import simulate


@pytest.fixture
def dry():
    with simulate("a100", compute=False) as machine:
        yield machine


def test_windows_overlap(dry):
    signal = torch.randn(2, 40_000, device="cuda", requires_grad=True)
    window = torch.hann_window(512, device="cuda")
    spectrum = torch.stft(signal, 512, window=window, return_complex=True)
    restored = torch.istft(spectrum, 512, window=window, length=40_000)
    restored.sum().backward()
    assert restored.shape == (2, 40_000)
    assert signal.grad.shape == signal.shape
    assert dry.data_dependent_reads == ()


def test_a_window_that_a_program_made_is_looked_at(dry):
    spectrum = torch.zeros(3, 2, dtype=torch.complex64)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        torch.istft(spectrum.cuda(), 4, window=torch.zeros(4).cuda(), return_complex=False)


@pytest.mark.parametrize("known", [(), ("fweights",), ("aweights",)])
def test_weights_leave_something_to_divide_by(dry, known):
    observations = torch.randn(5, 5000, device="cuda", requires_grad=True)
    weights = {
        "fweights": torch.ones(5000, dtype=torch.int64),
        "aweights": torch.ones(5000),
    }
    placed = {name: weight.cuda() for name, weight in weights.items()}
    for name in weights.keys() - {*known}:
        dry.values.forget_values(placed[name])
    torch.cov(observations, **placed).sum().backward()
    assert observations.grad.shape == (5, 5000)
    assert dry.data_dependent_reads == ()


def test_tensors_that_a_program_compares_are_taken_as_equal(dry):
    first, second = torch.randn(2, 5000, device="cuda")
    assert torch.equal(first, second)
    assert not torch.equal(first, second[:5])
    assert torch.equal(first.max() > 0, second.max() > 0)
    assert [(read.op, read.count) for read in dry.data_dependent_reads] == [
        ("aten::equal", 1),
        ("aten::equal", 1),
        ("aten::equal", 1),
    ]
