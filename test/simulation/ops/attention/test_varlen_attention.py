"""Attention over sequences of several lengths: jagged tensors and ``torch.nn.attention.varlen``."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from support.attention_calls import taken
from torch.nn.attention.bias import causal_lower_right

from pytorch_memlab.errors import UnsupportedCUDACallError
from pytorch_memlab.simulation import simulate

ENDS = [0, 10, 30, 35]
TOKENS, LONGEST, HEADS, SIZE = 35, 20, 4, 16
ROWS = 3 * 128
"""Rows that the backward pass keeps free between three sequences."""


@pytest.fixture
def varlen():
    return pytest.importorskip("torch.nn.attention.varlen", reason="new in torch 2.10")


def parts(device: str, heads: int = HEADS) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [
        torch.randn(TOKENS, count, SIZE, generator=generator, dtype=torch.bfloat16)
        .to(device)
        .requires_grad_()
        for count in (HEADS, heads, heads)
    ]


def offsets() -> torch.Tensor:
    return torch.tensor(ENDS, dtype=torch.int32, device="cuda")


def seen(queries: int, left: int, right: int) -> torch.Tensor:
    distance = torch.arange(queries) - torch.arange(queries).unsqueeze(1)
    return (distance <= (right if right >= 0 else queries)) & (
        distance >= -(left if left >= 0 else queries)
    )


def one_by_one(inputs: list[torch.Tensor], window: tuple[int, int]) -> torch.Tensor:
    """Attention of each sequence alone, in float32."""
    results = []
    for start, end in pairwise(ENDS):
        query, key, value = (one[start:end].transpose(0, 1).float() for one in inputs)
        mask = seen(end - start, *window)
        result = F.scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)
        results.append(result.transpose(0, 1))
    return torch.cat(results)


def with_gradients(result: torch.Tensor, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    result.float().square().sum().backward()
    return [result.detach().float().cpu(), *(one.grad.float().cpu() for one in inputs)]


@pytest.mark.parametrize("heads", [HEADS, 2])
@pytest.mark.parametrize("window", [(-1, -1), (-1, 0), (3, 0), (2, 4)], ids=str)
def test_values_and_gradients_are_those_of_each_sequence_alone(varlen, window, heads):
    inputs = parts("cpu", heads)
    expected = with_gradients(one_by_one(inputs, window), inputs)
    with simulate("a100"):
        cuda = [one.detach().to("cuda").requires_grad_() for one in inputs]
        ends = offsets()
        sizes = {"window_size": window, "enable_gqa": True}
        result = varlen.varlen_attn(*cuda, ends, ends, LONGEST, LONGEST, **sizes)
        actual = with_gradients(result, cuda)
    for one, other in zip(expected, actual, strict=True):
        torch.testing.assert_close(other, one, atol=0.07, rtol=0.02)


def test_memory_is_that_of_the_tokens_and_not_of_padding(varlen):
    whole = TOKENS * HEADS * SIZE * 2
    with simulate("a100", compute=False):
        inputs, ends = parts("cuda"), offsets()
        results: list[torch.Tensor] = []
        attend = varlen.varlen_attn
        forward = taken(lambda: results.append(attend(*inputs, ends, ends, LONGEST, LONGEST)))
        # The result, the logsumexp, two numbers of the random state and one that is not used; the
        # function of PyTorch then makes another random state.
        assert forward == [whole, HEADS * TOKENS * 4, 16, 8, 16]
        gradient = torch.ones_like(results[0])
        backward = taken(lambda: results[0].backward(gradient))
        rows = HEADS * (TOKENS + ROWS) * 4
        assert backward[-5:] == [whole] * 3 + [rows, rows * 32]


def test_a_result_that_is_given_is_written_to(varlen):
    if not hasattr(varlen, "varlen_attn_out"):
        pytest.skip("torch has no varlen_attn_out")
    with simulate("a100"):
        inputs, ends = [one.detach() for one in parts("cuda")], offsets()
        call = *inputs, ends, ends, LONGEST, LONGEST
        expected, out = varlen.varlen_attn(*call), torch.empty_like(inputs[0])
        made = taken(lambda: varlen.varlen_attn_out(out, *call))
        assert made == [HEADS * TOKENS * 4, 16, 8]
        torch.testing.assert_close(out.cpu(), expected.cpu(), atol=0, rtol=0)


def test_a_jagged_tensor_takes_the_kernel_of_its_dtype():
    made = {}
    for dtype in (torch.float32, torch.bfloat16):
        with simulate("a100"):
            rows = [torch.randn(n, HEADS * SIZE, dtype=dtype, device="cuda") for n in (10, 20, 5)]
            jagged = torch.nested.as_nested_tensor(rows, layout=torch.jagged).requires_grad_()
            heads = jagged.unflatten(-1, (HEADS, SIZE)).transpose(1, 2)
            result = F.scaled_dot_product_attention(heads, heads, heads)
            flat = result.transpose(1, 2).flatten(-2)
            expected = [
                F.scaled_dot_product_attention(
                    *[one.cpu().unflatten(-1, (HEADS, SIZE)).transpose(0, 1).float()] * 3
                )
                .transpose(0, 1)
                .flatten(-2)
                for one in rows
            ]
            for one, other in zip(flat.unbind(), expected, strict=True):
                torch.testing.assert_close(one.float().cpu(), other, atol=0.02, rtol=0.02)
            names, waiting = set(), [result.grad_fn]
            while waiting:
                node = waiting.pop()
                names.add(type(node).__name__)
                waiting += [one for one, _ in node.next_functions if one is not None]
            made[dtype] = {name for name in names if "Attention" in name}
    assert made == {
        torch.float32: {"EfficientAttentionBackward0"},
        torch.bfloat16: {"FlashAttentionBackward0"},
    }


def test_efficient_attention_of_jagged_tensors_pads_the_logsumexp_to_the_longest_sequence():
    with simulate("a100", compute=False):
        inputs, ends = [one.detach().float().unsqueeze(0) for one in parts("cuda")], offsets()
        forward = torch.ops.aten._efficient_attention_forward
        call = (*inputs, None, ends, ends, LONGEST, LONGEST, 0.0, 0, True)
        assert taken(lambda: forward(*call)) == [TOKENS * HEADS * SIZE * 4, 3 * HEADS * 32 * 4]


def test_the_last_query_sees_all_keys_where_a_bias_says_so():
    bias = causal_lower_right(2, 4)
    query, key, value = (torch.randn(1, HEADS, length, SIZE) for length in (2, 4, 4))
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    with simulate("a100"):
        cuda = [one.to("cuda") for one in (query, key, value)]
        result = F.scaled_dot_product_attention(*cuda, attn_mask=bias)
        torch.testing.assert_close(result.cpu(), expected)
    with simulate("a100", compute=False):
        cuda = [one.to("cuda") for one in (query, key, value)]
        attend = F.scaled_dot_product_attention
        assert taken(lambda: attend(*cuda, attn_mask=bias)) == [HEADS * 2 * SIZE * 4]


def test_dropout_is_the_same_in_the_backward_pass():
    with simulate("a100"):
        inputs, ends = parts("cuda"), offsets()
        call = torch.ops.aten._flash_attention_forward
        result, *_ = call(*inputs, ends, ends, LONGEST, LONGEST, 0.5, False, False)
        result.backward(torch.ones_like(result))
        value = inputs[2]
        # The result is linear in the value, so both sums are those of the same weights.
        left, right = (value.grad * value).float().sum(), result.float().sum()
        torch.testing.assert_close(left.cpu(), right.cpu(), atol=0.5, rtol=0.02)


def test_keys_in_pages_are_refused_by_name_and_unknown_in_a_dry_run(varlen):
    with simulate("a100"):
        query, ends = parts("cuda")[0].detach(), offsets()
        pages = torch.zeros(3, 256, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
        table = torch.zeros(3, 1, dtype=torch.int32, device="cuda")
        call = query, pages, pages, ends, ends, LONGEST, LONGEST
        with pytest.raises(UnsupportedCUDACallError, match="with block_table"):
            varlen.varlen_attn(*call, seqused_k=ends[1:], block_table=table)
    with simulate("a100", compute=False) as machine:
        key = torch.zeros(3, 256, HEADS, SIZE, dtype=torch.bfloat16, device="cuda")
        ends, table = offsets(), torch.zeros(3, 1, dtype=torch.int32, device="cuda")
        call = parts("cuda")[0].detach(), key, key, ends, ends, LONGEST, LONGEST
        varlen.varlen_attn(*call, seqused_k=ends[1:], block_table=table)
        assert set(machine.approximations[0].uncounted) == {
            ("aten._flash_attention_forward.default", "parts of the keys")
        }
