"""Memory of memory-efficient attention, forward and backward, and of cuDNN's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.attention_calls import CUDNN, EFFICIENT, taken, tensors
from torch.nn.attention import sdpa_kernel

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.attention.efficient import tile_of, workspace


def test_efficient_attention_pads_the_sums_and_the_mask():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, sizes=(2, 8, 60, 64))
        mask = torch.ones(60, 60, dtype=torch.bool, device="cuda")
        results: list[torch.Tensor] = []

        def attend() -> None:
            results.append(F.scaled_dot_product_attention(*parts, attn_mask=mask))

        whole = 2 * 8 * 60 * 64 * 4
        assert taken(attend) == [
            *(4, 4, 60 * 60 * 4),  # minus infinity, zero, the mask to add
            60 * 64 * 4,
            *(whole, 2 * 8 * 64 * 4),
        ]
        assert results[0].stride() == (60 * 8 * 64, 64, 8 * 64, 1)


def test_efficient_attention_keeps_no_sums_without_a_gradient():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, grad=False)
        assert taken(lambda: F.scaled_dot_product_attention(*parts)) == [2 * 8 * 64 * 64 * 4]


def test_efficient_attention_accumulates_wide_heads_in_float32():
    with simulate("a100", compute=False), sdpa_kernel(EFFICIENT), torch.no_grad():
        parts = tensors(sizes=(2, 8, 64, 136), grad=False)
        whole = 2 * 8 * 64 * 136 * 2
        assert taken(lambda: F.scaled_dot_product_attention(*parts)) == [whole, 2 * whole]


def test_efficient_attention_backward_takes_the_workspace_of_its_kernel():
    with simulate("a100", compute=False), sdpa_kernel(EFFICIENT):
        parts = tensors(sizes=(2, 8, 60, 64))
        result = F.scaled_dot_product_attention(*parts)
        gradient = torch.ones_like(result)
        whole = 2 * 8 * 60 * 64 * 2
        # One block of 64 queries by 64 columns in each head: 4096 floats and a lock of 16 bytes.
        assert taken(lambda: result.backward(gradient)) == [
            *(whole,) * 3,
            2 * 8 * 60 * 4,
            2 * 8 * (4096 * 4 + 16),
            *(whole,) * 3,  # clones in the layout of the leaves
        ]


def test_efficient_attention_backward_in_float32_sums_products_itself():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, sizes=(2, 8, 60, 64))
        result = F.scaled_dot_product_attention(*parts)
        gradient = torch.ones_like(result)
        whole = 2 * 8 * 60 * 64 * 4
        assert taken(lambda: result.backward(gradient)) == [
            *(whole,) * 3,
            *(whole, 2 * 8 * 60 * 4, 2 * 8 * 60 * 4),
            2 * 8 * (4096 * 4 + 16),
            *(whole,) * 3,
        ]


def test_a_learnt_masks_gradient_has_aligned_rows():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, sizes=(2, 8, 60, 32), grad=False)
        mask = torch.zeros(2, 8, 60, 60, device="cuda", requires_grad=True)
        result = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        gradient = torch.ones_like(result)
        made = taken(lambda: result.backward(gradient))
        assert made[:4] == [*(2 * 8 * 60 * 32 * 4,) * 3, 2 * 8 * 60 * 64 * 4]


@pytest.mark.parametrize(
    ("gpu", "dtype", "size", "dropout", "expected"),
    [
        ("a100", torch.float16, 128, False, (128, 128, False)),
        ("l4", torch.float16, 128, False, (64, 64, True)),
        ("l4", torch.float16, 96, False, (128, 64, False)),
        ("l4", torch.float16, 96, True, (64, 64, True)),
        ("rtx5090", torch.float16, 96, False, (64, 64, True)),
        ("t4", torch.float16, 128, False, (128, 64, False)),
        ("a100", torch.float16, 136, False, (128, 64, True)),
        ("a100", torch.float32, 128, False, (128, 64, False)),
        ("l4", torch.float32, 128, False, (64, 64, False)),
        ("v100", torch.float32, 256, False, (64, 64, False)),
    ],
)
def test_the_kernel_depends_on_the_shared_memory(gpu, dtype, size, dropout, expected):
    tile = tile_of(PRESETS[gpu], dtype, size, dropout)
    assert (tile.queries, tile.keys, tile.accumulates) == expected


def test_accumulated_keys_are_split_unless_algorithms_are_deterministic():
    tile = tile_of(PRESETS["a100"], torch.float16, 256, False)
    # 2 blocks of 128 queries by 4 of 64 columns; 8 splits of 64 keys by 256 columns, twice
    query = 2 * 4 * (4 + 128 * 64)
    assert workspace(tile, (2, 4, 256, 512), (256, 256), True) == 8 * 4 * (query + 2 * 8 * 64 * 256)
    assert workspace(tile, (2, 4, 256, 512), (256, 256), False) == 8 * 4 * (query + 2 * 64 * 256)
    assert workspace(tile, (32, 4, 256, 512), (256, 256), True) == 128 * 4 * (query + 2 * 64 * 256)


def test_cudnns_own_workspace_is_named_as_unknown():
    with simulate("h100", compute=False) as machine, sdpa_kernel(CUDNN):
        parts = tensors(sizes=(2, 8, 64, 64))
        results: list[torch.Tensor] = []
        whole, sums = 2 * 8 * 64 * 64 * 2, 2 * 8 * 64 * 4
        forward = taken(lambda: results.append(F.scaled_dot_product_attention(*parts)))
        assert forward == [8, 8, whole, sums]
        gradient = torch.ones_like(results[0])
        backward = taken(lambda: results[0].backward(gradient))
        assert backward == [whole] * 3 + [2 * whole + sums]
        forward_op, backward_op = (
            f"aten._scaled_dot_product_cudnn_attention{name}.default" for name in ("", "_backward")
        )
        assert set(machine.approximations[0].uncounted) == {
            (forward_op, "cuDNN workspaces"),
            (backward_op, "cuDNN workspaces"),
        }
        assert set(machine.approximations[0].estimated) == {backward_op}
        with torch.no_grad():
            forward = taken(lambda: F.scaled_dot_product_attention(*parts))
        assert forward == [8, 8, whole]
