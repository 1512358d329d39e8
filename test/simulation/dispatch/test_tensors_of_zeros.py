"""Tangents that are zero: tensors without memory, which no kernel may read."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward

from pytorch_memlab import simulate


@pytest.mark.parametrize("compute", [True, False])
@pytest.mark.parametrize("device", ["cuda:1", "cpu"])
def test_a_tangent_of_zeros_that_is_scaled_has_no_memory(device, compute):
    with simulate("1GiB", 2, compute=compute):
        tensor, other = torch.ones(3, device=device), torch.ones(3, device=device)
        before = torch.cuda.memory_allocated(1)
        zeros = torch._efficientzerotensor((3,), device=device)
        scaled = torch.ops.aten.mul.Scalar(zeros, 0.5)
        assert (scaled.device, scaled._is_zerotensor()) == (tensor.device, True)
        assert torch.cuda.memory_allocated(1) == before
        added = torch.ops.aten.add.Scalar(zeros, 2.0)
        assert (added.device, added._is_zerotensor()) == (tensor.device, False)
        _, tangent = torch.func.jvp(
            lambda one: torch.sub(one, other, alpha=0.5), (tensor,), (torch.ones_like(tensor),)
        )
        assert tangent.device == tensor.device
        with forward.dual_level():
            dual = forward.make_dual(tensor, torch.ones_like(tensor)).clone()
            torch._foreach_sub_([dual], [other], alpha=0.5)
            tangent = forward.unpack_dual(dual).tangent
            assert tangent.device == tensor.device
        if compute:
            assert (added.tolist(), tangent.tolist()) == ([2.0] * 3, [1.0] * 3)
