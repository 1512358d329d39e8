"""Ops that write to their arguments allocate their temporaries before they write."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab.simulation import simulate


def ones(*shape, dtype=torch.float32, device="cuda"):
    return torch.ones(*shape, dtype=dtype, device=device)


def test_without_room_for_temporaries_nothing_is_written():
    with simulate("96MiB"):
        target = torch.zeros(1000, device="cuda")
        indices = torch.zeros(2**20, dtype=torch.int64, device="cuda")
        values = ones(2**20)
        filling = ones(60 * 2**20, dtype=torch.uint8)
        with pytest.raises(torch.OutOfMemoryError):
            target.index_put_((indices,), values, accumulate=True)
        assert target.sum().item() == 0
        del filling
        target.index_put_((indices,), values, accumulate=True)
        assert target[0].item() == 2**20


def put_at_unlike_indices(device):
    indices = [torch.zeros(count, dtype=torch.int64, device=device) for count in (3, 2)]
    ones(4, 5, device=device).index_put_(indices, ones(1, device=device), accumulate=True)


@pytest.mark.parametrize(
    "misfit",
    [
        put_at_unlike_indices,
        lambda device: ones(4, 5, device=device).cumsum_(7),
        lambda device: ones(4, 5, device=device).addmm_(
            ones(4, device=device), ones(5, device=device)
        ),
        lambda device: ones(2, 4, 5, device=device).baddbmm_(
            ones(4, 3, device=device), ones(3, 5, device=device)
        ),
        lambda device: ones(4, 5, device=device).copy_(ones(3, 3, device="cpu")),
    ],
)
def test_pytorch_refuses_arguments_that_do_not_fit(misfit):
    with pytest.raises((IndexError, RuntimeError)) as on_cpu:
        misfit("cpu")
    with simulate("1GiB"), pytest.raises(on_cpu.type) as on_gpu:
        misfit("cuda")
    assert str(on_gpu.value) == str(on_cpu.value)
    assert on_gpu.value.__context__ is None
