"""Memory of flash attention, forward and backward."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.attention_calls import taken, tensors

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.attention.flash import splits_of

RANDOM = [16, 8] if RELEASE >= (2, 7) else []


def test_flash_attention_takes_its_result_the_sums_and_the_random_state():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(8, 16, 512, 64))
        results: list[torch.Tensor] = []
        forward = taken(lambda: results.append(F.scaled_dot_product_attention(*parts)))
        assert forward == [8 * 16 * 512 * 64 * 2, 8 * 16 * 512 * 4, *RANDOM]
        assert results[0].stride() == parts[0].stride()
        gradient = torch.ones_like(results[0])
        backward = taken(lambda: results[0].backward(gradient))
        whole = 8 * 16 * 512 * 64 * 2
        # Contiguous copies with the sequence before the heads, three gradients, then the sums of
        # result times gradient and the query's gradient in float32.
        assert backward == [whole] * 5 + [8 * 16 * 512 * 4, 2 * whole]


def test_flash_attention_copies_nothing_that_has_its_sequence_before_its_heads():
    with simulate("a100", compute=False):
        parts = [
            torch.randn(8, 512, 16, 64, dtype=torch.float16, device="cuda", requires_grad=True)
            for _ in range(3)
        ]
        result = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        flat = result.transpose(1, 2).reshape(8, 512, 1024)
        whole = 8 * 16 * 512 * 64 * 2
        backward = taken(lambda: flat.backward(torch.ones_like(flat)))
        assert backward == [whole] + [whole] * 3 + [8 * 16 * 512 * 4, 2 * whole]


def test_flash_attention_pads_head_dimensions_to_multiples_of_8():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(8, 16, 512, 36))
        results: list[torch.Tensor] = []
        whole = 8 * 16 * 512 * 40 * 2
        forward = taken(lambda: results.append(F.scaled_dot_product_attention(*parts)))
        assert forward == [whole] * 4 + [8 * 16 * 512 * 4, *RANDOM]
        assert results[0].stride(-2) == 40


def test_flash_attention_shares_out_the_keys_when_queries_are_few():
    with simulate("a100", compute=False), torch.no_grad():
        parts = tensors(sizes=(1, 8, 1, 128), keys=4096, grad=False)
        made = taken(lambda: F.scaled_dot_product_attention(*parts))
        # 32 blocks of 128 keys in 16 parts: 8 * 16 blocks use 216 halves of SMs best.
        assert made == [8 * 128 * 2, 8 * 4, 16 * 8 * 4, 16 * 8 * 4 * 128, *RANDOM]


@pytest.mark.parametrize(
    ("blocks", "key_blocks", "expected"), [(8, 32, 16), (173, 32, 1), (172, 2, 1), (1, 1, 1)]
)
def test_the_fewest_parts_that_use_the_gpu_nearly_best(blocks, key_blocks, expected):
    assert splits_of(blocks, 216, key_blocks) == expected


def test_grouped_queries_need_gradients_of_all_heads():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(2, 8, 512, 64), heads=2)
        result = F.scaled_dot_product_attention(*parts, enable_gqa=True)
        query, group = 2 * 8 * 512 * 64 * 2, 2 * 2 * 512 * 64 * 2
        gradient = torch.ones_like(result)
        assert taken(lambda: result.backward(gradient)) == [
            *(query, query),
            *(query, group, group),
            *(2 * 8 * 512 * 4, 2 * query),
            *(query, query),
        ]


def test_deterministic_flash_attention_accumulates_for_each_split():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(1, 8, 128, 64))
        result = F.scaled_dot_product_attention(*parts)
        gradient = torch.ones_like(result)
        torch.use_deterministic_algorithms(True)
        try:
            made = taken(lambda: result.backward(gradient))
        finally:
            torch.use_deterministic_algorithms(False)
        assert made[-1] == 14 * 8 * 128 * 64 * 4  # 108 SMs for 8 heads
