"""Edits of causes, in programs that run out of memory: they run, and need less."""

from __future__ import annotations

import pytest
from support.ran_out import edited, facts_of, peak_of

from pytorch_memlab.advice.causes.attention_matrices import AttentionMatrices
from pytorch_memlab.advice.causes.full_precision_base import FullPrecisionBase
from pytorch_memlab.advice.causes.optimizer_temporaries import OptimizerTemporaries

MIB = 2**20

STEPS = """\
import torch
from torch import nn

model = nn.ModuleList(nn.Linear(1024, 1024, bias=False) for _ in range(6)).cuda()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(8, 1024, device="cuda")
    for layer in model:
        x = layer(x)
    x.mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("name", ["NAdam", "RAdam"])
def test_an_optimizer_without_a_fused_implementation_steps_in_a_loop(name, tmp_path):
    text = STEPS.format(optimizer=name)
    # Parameters, gradients and two states of 24 MiB each, workspaces of 16.25, and temporaries.
    remedy = OptimizerTemporaries().remedy(facts_of(text, "122MiB", tmp_path))
    assert remedy is not None
    assert remedy.code == (
        f"optimizer = torch.optim.{name}(model.parameters(), lr=0.1, foreach=False)",
    )
    saved = peak_of(text) - peak_of(edited(text, remedy))
    assert saved >= remedy.size > 0


ADAPTED = """\
import torch
from torch import nn

class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(1024, 4, bias=False), nn.Linear(4, 1024, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))

model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(10)))
{freeze}
for index in range(10):
    model[index] = Adapted(model[index])
model.cuda()
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
for step in range(2):
    loss = model(torch.randn(8, 1024, device="cuda")).mean()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "freeze",
    [
        "model.requires_grad_(False)",
        "for p in model.parameters():\n    p.requires_grad = False",
        "for p in model.parameters():\n    p.requires_grad_(False)",
    ],
)
def test_frozen_parameters_are_halved_after_they_are_frozen(freeze, tmp_path):
    text = ADAPTED.format(freeze=freeze)
    remedy = FullPrecisionBase().remedy(facts_of(text, "44MiB", tmp_path))
    assert remedy is not None
    assert remedy.size == 20 * MIB  # half of ten matrices of 4 MiB
    new = edited(text, remedy)
    before, after = new.index(freeze), new.index("for parameter in model.parameters():")
    assert before < after < new.index("model.cuda()")
    assert peak_of(text) - peak_of(new) > 16 * MIB


ATTENDS = """\
import torch
from torch import nn, einsum

class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend, self.project = nn.Softmax(dim=-1), nn.Linear(64, 192, bias=False)

    def forward(self, x):
        q, k, v = (t.view(1, 512, 4, 16).transpose(1, 2) for t in self.project(x).chunk(3, -1))
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * 0.25
        attn = self.attend(dots)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return out.transpose(1, 2).reshape(1, 512, 64)

net = nn.Sequential(*(Attention() for _ in range(6))).cuda()
net(torch.randn(1, 512, 64, device="cuda")).mean().backward()
"""


def test_a_module_of_any_name_takes_the_softmax(tmp_path):
    remedy = AttentionMatrices().remedy(facts_of(ATTENDS, "52MiB", tmp_path))
    assert remedy is not None
    assert remedy.code[1] == (
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25)"
    )
    saved = peak_of(ATTENDS) - peak_of(edited(ATTENDS, remedy))
    # Six layers with the weights of four heads, of 512 x 512 numbers.
    assert saved >= 6 * 4 * 512 * 512 * 4
