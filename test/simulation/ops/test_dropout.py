"""Dropout on a simulated GPU: the fused kernel, its mask, and what it leaves to other ops."""

from __future__ import annotations

import pytest
import torch
from support.dry_run_comparison import events_of
from torch.nn import functional as F

from pytorch_memlab import simulate


def allocated_by(make):
    """Bytes that a result and all it keeps take."""
    before = torch.cuda.memory_allocated()
    result = make()
    return torch.cuda.memory_allocated() - before, result


@pytest.mark.parametrize(("dtype", "element"), [(torch.float32, 4), (torch.float16, 2)])
def test_a_mask_of_a_byte_for_each_element_is_kept(dtype, element):
    with simulate("1GiB"):
        tensor = torch.ones(1024, 512, device="cuda", dtype=dtype, requires_grad=True)
        taken, result = allocated_by(lambda: F.dropout(tensor, 0.25))
        assert taken == 1024 * 512 * (element + 1)
        assert type(result.grad_fn).__name__ == "NativeDropoutBackward0"


def test_the_mask_comes_before_the_result():
    def program():
        F.dropout(torch.ones(2048, 1024, device="cuda"), 0.5)

    sizes = [event[1] for event in events_of(program, compute=True) if event[0] == "malloc"]
    assert sizes == [2048 * 1024 * 4, 2048 * 1024, 2048 * 1024 * 4]


def test_what_it_computes():
    with simulate("1GiB"):
        torch.manual_seed(0)
        tensor = torch.ones(100_000, device="cuda", requires_grad=True)
        result = F.dropout(tensor, 0.25)
        result.sum().backward()
        kept = (result.detach() != 0).float()
        assert 0.74 < kept.mean().item() < 0.76
        torch.testing.assert_close(result.detach(), kept / 0.75)
        torch.testing.assert_close(tensor.grad, kept / 0.75)


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_without_effect_it_takes_nothing(p, training):
    with simulate("1GiB"):
        tensor = torch.ones(1024, device="cuda")
        taken, result = allocated_by(lambda: F.dropout(tensor, p, training))
        assert taken == 0
        assert result is tensor or result.data_ptr() == tensor.data_ptr()


def test_all_is_dropped_without_a_mask():
    with simulate("1GiB"):
        tensor = torch.ones(1024, device="cuda")
        taken, result = allocated_by(lambda: F.dropout(tensor, 1.0))
        assert taken == 4096
        assert not result.any()


def test_in_place_takes_a_noise_of_the_tensors_dtype():
    def program():
        F.dropout(torch.ones(2048, 1024, device="cuda"), 0.5, inplace=True)

    sizes = [event[1] for event in events_of(program, compute=True) if event[0] == "malloc"]
    assert sizes == [2048 * 1024 * 4, 2048 * 1024 * 4]


def test_in_inference_it_is_the_same_kernel():
    with simulate("1GiB"), torch.inference_mode():
        torch.cuda.reset_peak_memory_stats()
        tensor = torch.ones(1024, 512, device="cuda")
        before = torch.cuda.memory_allocated()
        F.dropout(tensor, 0.5)
        assert torch.cuda.max_memory_allocated() - before == 1024 * 512 * 5


def test_the_hosts_own_dropout_is_left_alone():
    with simulate("1GiB"):
        tensor = torch.ones(8, requires_grad=True)
        assert type(F.dropout(tensor, 0.5).grad_fn).__name__ == "MulBackward0"


@pytest.mark.parametrize("drop", [F.dropout, F.alpha_dropout, F.feature_alpha_dropout])
def test_the_allocator_sees_the_same_without_arithmetic(drop):
    def program():
        tensor = torch.ones(300, 500, device="cuda", requires_grad=True)
        drop(tensor, 0.3, True).sum().backward()

    computed = events_of(program, compute=True)
    assert len(computed) > 8
    assert events_of(program, compute=False) == computed
