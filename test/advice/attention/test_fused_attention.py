"""Attention that programs write out, and the call in its place: they compute the same."""

from __future__ import annotations

import linecache
import textwrap

import pytest
import torch

from pytorch_memlab.advice.attention.fused_attention import fused_attention

HEAD = """\
import math
import torch
from torch import nn
from torch.nn import functional as F


"""

WRITTEN = {
    "plain": """
        def attention(q, k, v):
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            weights = scores.softmax(dim=-1)
            return weights @ v
    """,
    "another scale": """
        def attention(q, k, v):
            scores = torch.matmul(q, k.mT) * 0.3
            return torch.matmul(torch.softmax(scores, -1), v)
    """,
    "no scale": """
        def attention(q, k, v):
            return F.softmax(q @ k.mT, dim=-1) @ v
    """,
    "a scaled query": """
        def attention(q, k, v):
            d = q.size(-1)
            att = (q / math.sqrt(d)) @ k.transpose(2, 3)
            att = F.softmax(att, dim=-1, dtype=torch.float32).to(q.dtype)
            out = att @ v
            return out.transpose(1, 2).flatten(2)
    """,
    "causal by a triangle": """
        def attention(q, k, v):
            t = q.size(-2)
            mask = torch.tril(torch.ones(t, t)).bool()
            att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
            att = att.masked_fill(~mask, float("-inf"))
            att = F.softmax(att, dim=-1)
            y = att @ v
            return y
    """,
    "a triangle behind the scores": """
        def attention(q, k, v):
            t = q.size(-2)
            att = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            triangle = torch.tril(
                torch.ones(t, t, dtype=torch.bool))
            att = att.masked_fill(~triangle, float("-inf"))
            att = F.softmax(att, dim=-1)
            y = att @ v
            return y
    """,
    "causal and padding": """
        def attention(q, k, v, mask=KEEP):
            t = q.size(-2)
            causal = torch.tril(torch.ones(t, t, dtype=torch.bool))
            att = q @ k.mT / math.sqrt(q.size(-1))
            att = att.masked_fill(~causal, float("-inf"))
            att = att.masked_fill(~mask[None, None], float("-inf"))
            return att.softmax(-1) @ v
    """,
    "padding and a triangle of ones": """
        def attention(q, k, v, mask=KEEP):
            t = q.size(-2)
            att = q @ k.mT / math.sqrt(q.size(-1))
            att = att.masked_fill(mask == 0, -1e9)
            above = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
            att.masked_fill_(above, -1e9)
            return att.softmax(-1) @ v
    """,
    "causal by what is above": """
        def attention(q, k, v):
            t = q.size(-2)
            above = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=1)
            scores = q @ k.mT / math.sqrt(q.size(-1))
            scores.masked_fill_(above, -torch.inf)
            return scores.softmax(-1) @ v
    """,
    "causal by minus infinity": """
        def attention(q, k, v):
            t = q.size(-2)
            bias = torch.triu(torch.full((t, t), float("-inf")), diagonal=1)
            scores = q @ k.mT / math.sqrt(q.size(-1)) + bias
            return scores.softmax(-1) @ v
    """,
    "a triangle that is not causal": """
        def attention(q, k, v):
            t = q.size(-2)
            mask = torch.tril(torch.ones(t, t), diagonal=2)
            scores = q @ k.mT / math.sqrt(q.size(-1))
            scores = scores.masked_fill(mask == 0, -1e9)
            return scores.softmax(-1) @ v
    """,
    "a higher triangle that is not causal": """
        def attention(q, k, v):
            t = q.size(-2)
            above = torch.triu(torch.ones(t, t, dtype=torch.bool), diagonal=2)
            scores = q @ k.mT / math.sqrt(q.size(-1))
            scores = scores.masked_fill(above, -1e9)
            return scores.softmax(-1) @ v
    """,
    "a mask of the caller": """
        def attention(q, k, v, mask=KEEP):
            scores = q @ k.mT / math.sqrt(q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, float("-inf"))
            weights = torch.softmax(scores, dim=-1)
            return torch.matmul(weights, v)
    """,
    "an additive mask": """
        def attention(q, k, v, mask=BIAS):
            scores = q @ k.mT
            scores = scores / math.sqrt(q.size(-1))
            scores = scores + mask
            weights = torch.softmax(scores, dim=-1)
            result = torch.bmm(weights.flatten(0, 1), v.flatten(0, 1)) if False else weights @ v
            return result
    """,
    "where": """
        def attention(q, k, v, mask=KEEP):
            scores = q @ k.mT
            scores = torch.where(mask, scores, float("-inf"))
            return scores.softmax(-1) @ v
    """,
    "einsum": """
        def attention(q, k, v):
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) * q.shape[-1] ** -0.5
            weights = scores.softmax(dim=-1)
            return torch.einsum("bhqk,bhkd->bhqd", weights, v)
    """,
    "dropout": """
        def attention(q, k, v):
            scores = q @ k.mT / math.sqrt(q.size(-1))
            weights = F.dropout(scores.softmax(-1), 0.4, False)
            return weights @ v
    """,
    "einsum in another layout": """
        def attention(q, k, v, mask=KEEP):
            queries, keys, values = (one.transpose(1, 2) for one in (q, k, v))
            energy = torch.einsum("nqhd,nkhd->nhqk", [queries, keys])
            energy = energy.masked_fill(mask == 0, float("-1e20"))
            weights = torch.softmax(energy / (8 ** (1 / 2)), dim=3)
            out = torch.einsum("nhql,nlhd->nqhd", [weights, values]).reshape(2, 16, 24)
            return out
    """,
    "dropout of the caller": """
        def attention(q, k, v, mask=None, dropout=nn.Dropout(0.5).eval()):
            scores = q @ k.mT / math.sqrt(q.size(-1))
            if mask is not None:
                scores = scores.masked_fill(mask == 0, -1e9)
            weights = F.softmax(scores, dim=-1)
            if dropout is not None:
                weights = dropout(weights)
            return torch.matmul(weights, v)
    """,
    "a transposed key": """
        def attention(q, k, v):
            k_t = k.permute(0, 1, 3, 2)
            scores = (q @ k_t) * 0.5
            return scores.softmax(dim=-1) @ v
    """,
    "a permuted key": """
        def attention(q, k, v):
            k = k.transpose(1, 2)
            scores = torch.matmul(q, k.permute(0, 2, 3, 1))
            return scores.softmax(dim=-1) @ v
    """,
    "a bias that is taken off": """
        def attention(q, k, v, mask=KEEP):
            scores = q @ k.mT / math.sqrt(q.size(-1))
            scores = scores - 1e9 * (1 - mask.float())
            weights = nn.Softmax(dim=-1)(scores)  # softmax()
            return weights @ v
    """,
}

AS_CALL = {
    "plain": ("lines 8 to 10", "return {}(q, k, v)"),
    "another scale": ("lines 8 to 9", "return {}(q, k, v, scale=0.3)"),
    "no scale": ("line 8", "return {}(q, k, v, scale=1.0)"),
    "a mask of the caller": (
        "lines 8 to 12",
        "return {}(q, k, v, attn_mask=(mask != 0) if mask is not None else None)",
    ),
    "causal by a triangle": (
        "lines 10 to 13",
        "y = {}(q, k, v, is_causal=True, scale=1.0 / math.sqrt(k.size(-1)))",
    ),
    "a triangle behind the scores": (
        "lines 9 to 14",
        "y = {}(q, k, v, is_causal=True, scale=1 / math.sqrt(k.size(-1)))",
    ),
    "causal and padding": (
        "lines 10 to 13",
        "return {}(q, k, v, attn_mask=causal & mask[None, None])",
    ),
    "dropout": ("lines 8 to 10", "return {}(q, k, v, dropout_p=0.4 if False else 0.0)"),
}


def source_of(text: str) -> str:
    return HEAD + textwrap.dedent(text).lstrip("\n")


def written(text: str, folder, *, has_heads: bool = True):
    path = folder / "model.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    line = next(n for n, one in enumerate(text.splitlines(), 1) if "softmax(" in one)
    return fused_attention(str(path), line, has_heads=has_heads)


def run(text: str, *shape: int) -> torch.Tensor:
    torch.manual_seed(0)
    keep = torch.rand(shape[-2], shape[-2]) > 0.3
    keep |= torch.eye(shape[-2], dtype=torch.bool)
    variables = {"KEEP": keep, "BIAS": torch.randn(shape[-2], shape[-2])}
    exec(compile(text, "model.py", "exec"), variables)
    return variables["attention"](*(torch.randn(shape) for _ in range(3)))


def edited(text: str, edit) -> str:
    lines = text.splitlines()
    lines[edit.first - 1 : edit.last] = edit.lines
    return "\n".join(lines)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "an additive mask"])
def test_the_call_computes_what_the_lines_compute(name, tmp_path):
    text = source_of(WRITTEN[name])
    fused = written(text, tmp_path)
    assert fused is not None
    new = edited(text, fused.edit)
    assert "softmax" not in new
    torch.testing.assert_close(run(new, 2, 3, 16, 8), run(text, 2, 3, 16, 8))


def test_a_triangle_that_is_read_again_stays(tmp_path):
    text = source_of(WRITTEN["a triangle behind the scores"])
    fused = written(f"{text}seen = triangle\n", tmp_path)
    assert fused is not None
    assert fused.edit.lines[:2] == tuple(text.splitlines()[9:11])


@pytest.mark.parametrize("name", AS_CALL)
def test_the_line_to_write(name, tmp_path):
    fused = written(source_of(WRITTEN[name]), tmp_path)
    assert fused is not None
    where, line = AS_CALL[name]
    call = line.format("F.scaled_dot_product_attention")
    assert fused.code == (f"# model.py in place of {where}:", call)


@pytest.mark.parametrize("name", ["plain", "a mask of the caller", "where"])
def test_three_dimensions_get_a_fourth(name, tmp_path):
    text = source_of(WRITTEN[name])
    fused = written(text, tmp_path, has_heads=False)
    assert fused is not None
    assert "q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)" in fused.code[-1]
    torch.testing.assert_close(run(edited(text, fused.edit), 6, 16, 8), run(text, 6, 16, 8))


def test_a_module_that_is_a_softmax_may_be_set_beside_another_one(tmp_path):
    text = source_of(
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.attend, self.drop = nn.Softmax(dim=-1), nn.Dropout(0.1)

            def forward(self, q, k, v):
                dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * 0.5
                attn = self.drop(self.attend(dots))
                return torch.einsum("b h i j, b h j d -> b h i d", attn, v)
        """
    )
    path = tmp_path / "model.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    line = 1 + text.splitlines().index("        attn = self.drop(self.attend(dots))")
    fused = fused_attention(str(path), line, has_heads=True)
    assert fused is not None
    assert fused.code[1] == (
        "return F.scaled_dot_product_attention(q, k, v,"
        " dropout_p=self.drop.p if self.drop.training else 0.0, scale=0.5)"
    )


def test_a_buffer_of_the_module_is_followed_and_its_dropout_kept(tmp_path):
    text = source_of(
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                self.drop = nn.Dropout(0.1)
                self.register_buffer("bias", torch.tril(torch.ones(64, 64)).view(1, 1, 64, 64))

            def forward(self, q, k, v):
                t = q.size(2)
                att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(q.size(-1)))
                att = att.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf"))
                att = F.softmax(att, dim=-1)
                att = self.drop(att)
                y = att @ v  # (B, nh, T, T) x (B, nh, T, hs)
                return y.transpose(1, 2)


        def attention(q, k, v):
            return Attention().eval()(q, k, v)
        """
    )
    fused = written(text, tmp_path)
    assert fused is not None
    [line] = fused.edit.lines
    assert line == (
        "        y = F.scaled_dot_product_attention(q, k, v,"
        " dropout_p=self.drop.p if self.drop.training else 0.0, is_causal=True)"
        "  # (B, nh, T, T) x (B, nh, T, hs)"
    )
    torch.testing.assert_close(run(edited(text, fused.edit), 2, 3, 16, 8), run(text, 2, 3, 16, 8))


@pytest.mark.parametrize(
    "lines",
    [
        ["scores = q @ k.mT", "w = scores.softmax(-1)", "y = w @ v", "return y, w"],
        ["scores = q @ k.mT", "w = scores.softmax(-1)", "w = w / w.sum()", "return w @ v"],
        ["scores = (q @ k.mT).tanh()", "return scores.softmax(-1) @ v"],
        ["scores = q @ k.mT", "return scores.softmax(-2) @ v"],
        ["scores = q @ k.mT + MASK", "scores = scores * 2", "return scores.softmax(-1) @ v"],
        ["return q.softmax(-1) @ v"],
        ["scores = q @ k.mT", "p = scores.softmax(-1)", "return p @ v, p"],
        ["w = q @ k.mT", "n = w.size(-1)", "w = w.softmax(-1)", "return w @ v"],
    ],
)
def test_what_the_call_cannot_do_is_left_alone(lines, tmp_path):
    body = "".join(f"    {line}\n" for line in lines)
    assert written(f"{HEAD}def attention(q, k, v):\n{body}", tmp_path) is None


RETURNS_WEIGHTS = """
def attention(q, k, v, drop=None):
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    weights = F.softmax(scores, dim=-1)
    {product}


class Layer(nn.Module):
    def forward(self, q, k, v):
        {call}
        return out
"""


@pytest.mark.parametrize(
    ("product", "code"),
    [
        (
            "return weights @ v, weights",
            ("return F.scaled_dot_product_attention(q, k, v), None",),
        ),
        (
            "out = weights @ v\n    out = out.flatten(2)\n    return out, weights",
            (
                "out = F.scaled_dot_product_attention(q, k, v)",
                "out = out.flatten(2)",
                "return out, None",
            ),
        ),
    ],
)
@pytest.mark.parametrize(
    "call",
    [
        "out, _ = attention(q, k, v)",
        "out, self.weights = attention(q, k, v)",
        "out = attention(q, k, v)[0]",
    ],
)
def test_weights_that_no_caller_reads_are_not_returned(product, code, call, tmp_path):
    text = source_of(RETURNS_WEIGHTS.format(product=product, call=call))
    fused = written(text, tmp_path)
    assert fused is not None
    assert tuple(map(str.strip, fused.edit.lines)) == code
    variables = {}
    exec(compile(edited(text, fused.edit), "model.py", "exec"), variables)
    before = {}
    exec(compile(text, "model.py", "exec"), before)
    operands = [torch.randn(2, 3, 16, 8) for _ in range(3)]
    torch.testing.assert_close(variables["Layer"]()(*operands), before["Layer"]()(*operands))


@pytest.mark.parametrize(
    "call",
    [
        "out, weights = attention(q, k, v)\n        print(weights.shape)",
        "out = attention(q, k, v)",
        "out, *_ = attention(q, k, v)",
        "out = attention(q, k, v)[1]",
        "out, self.weights = attention(q, k, v)\n        self.log(self.weights)",
        "out = q",  # who calls it is not known
    ],
)
def test_weights_that_may_be_read_stay(call, tmp_path):
    text = RETURNS_WEIGHTS.format(product="return weights @ v, weights", call=call)
    assert written(source_of(text), tmp_path) is None


def test_a_part_of_a_bias_that_is_causal(tmp_path):
    text = source_of(
        """
        class Attention(nn.Module):
            def __init__(self):
                super().__init__()
                future = torch.triu(torch.full((64, 64), float("-inf")), diagonal=1)
                self.register_buffer("future", future)

            def forward(self, q, k, v):
                n = q.size(2)
                scores = q @ k.transpose(2, 3)
                scores += self.future[:n, :n]
                return scores.softmax(dim=-1) @ v
        """
    )
    fused = written(text, tmp_path)
    assert fused is not None
    assert "attn_mask" not in fused.code[-1]
    assert "is_causal=True" in fused.code[-1]
