"""Edits of causes, in programs that run out of memory: they run, and need less."""

from __future__ import annotations

import pytest
from support.ran_out import edited, facts_of, peak_of, written

from pytorch_memlab.advice.causes.attention_matrices import AttentionMatrices
from pytorch_memlab.advice.causes.full_precision_base import FullPrecisionBase
from pytorch_memlab.advice.causes.growing_buffer import GrowingBuffer
from pytorch_memlab.advice.causes.model_twice import ModelTwice
from pytorch_memlab.advice.causes.no_grad import NoGrad
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
    assert written(remedy) == (
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
    assert written(remedy)[0] == (
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.25)"
    )
    saved = peak_of(ATTENDS) - peak_of(edited(ATTENDS, remedy))
    # Six layers with the weights of four heads, of 512 x 512 numbers.
    assert saved >= 6 * 4 * 512 * 512 * 4


JOINS = """\
import torch
from torch import nn

net = nn.Linear(256, 256, bias=False).cuda()
bank = torch.zeros({first}, device="cuda")
with torch.no_grad():
    for step in range(60):
        new = net(torch.randn(256, 256, device="cuda"))
        bank = {join}
        print((bank @ new if {of_columns} else new @ bank.T).shape)
"""


@pytest.mark.parametrize(
    ("first", "join", "newest"),
    [
        ("0, 256", "torch.cat([bank, new])", "[-2048:]"),
        ("0, 256", "torch.cat([new, bank])", "[:2048]"),
        ("0, 256", "torch.vstack((new, bank))", "[:2048]"),
        ("256, 0", "torch.cat([bank, new], dim=1)", "[:, -2048:]"),
        ("256, 0", "torch.cat([new, bank], 1)", "[:, :2048]"),
        ("256, 0", "torch.cat([bank, new], -1)", "[..., -2048:]"),
        ("256, 0", "torch.hstack([bank, new])", "[:, -2048:]"),
    ],
)
def test_the_newest_part_of_a_tensor_that_grows_is_kept(first, join, newest, tmp_path):
    of_columns = first == "256, 0"
    text = JOINS.format(first=first, join=join, of_columns=of_columns)
    if of_columns:
        text = text.replace("bank @ new", "new @ bank")
    remedy = GrowingBuffer().remedy(facts_of(text, "38MiB", tmp_path))
    assert remedy is not None
    assert written(remedy) == (f"bank = {join}{newest}",)
    kind = "columns" if of_columns else "rows"
    assert remedy.effect == f"keeps the newest 2048 {kind} only"
    assert peak_of(text) - peak_of(edited(text, remedy)) >= remedy.size


def test_a_tensor_that_grows_in_a_dimension_that_is_not_written_is_left_alone(tmp_path):
    text = JOINS.format(first="0, 256", join="torch.cat([bank, new], axis)", of_columns=False)
    text = text.replace("net = ", "axis = 0\nnet = ")
    remedy = GrowingBuffer().remedy(facts_of(text, "38MiB", tmp_path))
    assert remedy is not None
    assert remedy.change is None


STATISTICS = """\
import torch
from torch import nn

net = nn.Sequential(*(nn.Linear(256, 256) for _ in range(8))).cuda()

def statistics(inputs):
    results = []
    for batch in inputs:
        results.append(net(batch))
    return torch.cat(results).mean(0)

def images(count):
    for _ in range(count):
        yield torch.randn(1024, 256, device="cuda")

first = statistics(images(2))
second = statistics(images(12))
{ending}
"""


def test_a_function_that_is_called_twice_without_training_gets_a_decorator(tmp_path):
    text = STATISTICS.format(ending="print((first - second).square().sum().item())")
    remedy = NoGrad().remedy(facts_of(text, "64MiB", tmp_path))
    assert remedy is not None
    assert written(remedy) == ("@torch.no_grad()",)
    # What each of 14 forward passes saves: inputs of eight layers, of a MiB each.
    assert peak_of(text) - peak_of(edited(text, remedy)) > 80 * MIB


def test_a_function_whose_other_result_is_trained_with_gets_none(tmp_path):
    text = STATISTICS.format(ending="(first - 1).square().sum().backward()")
    remedy = NoGrad().remedy(facts_of(text, "64MiB", tmp_path))
    assert remedy is not None
    line = 1 + text.splitlines().index("second = statistics(images(12))")
    assert remedy.code[0] == f"# program.py in place of line {line}:"
    assert written(remedy) == ("with torch.no_grad():", "second = statistics(images(12))")


COPIES = """\
import copy
import torch
from torch import nn

net = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(4))).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
best, least, copies = None, 0, []
for epoch in range(3):
    loss = net(torch.randn(8, 1024, device="cuda")).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {keep}
out = net(torch.randn(4096, 1024, device="cuda"))
{use}
"""
COPY = "least, best = float(loss), copy.deepcopy({})"


@pytest.mark.parametrize(
    ("keep", "use", "why", "changed", "copies"),
    [
        (
            COPY.format("net.state_dict()"),
            "net.load_state_dict(best)",
            "best (line 13) is a second copy of the parameters: 16.0 MiB",
            COPY.format("net.state_dict()").replace(
                "copy.deepcopy(net.state_dict())",
                "{key: value.cpu() for key, value in net.state_dict().items()}",
            ),
            1,
        ),
        (
            COPY.format("net"),
            "net.load_state_dict(best.state_dict())",
            "best (line 13) is a second copy of the parameters: 16.0 MiB",
            COPY.format("net") + ".cpu()",
            1,
        ),
        (
            "copies.append(copy.deepcopy(net))",
            "net.load_state_dict(copies[0].state_dict())",
            "copies (line 13) keeps copies of the parameters: 48.0 MiB",
            "copies.append(copy.deepcopy(net).cpu())",
            3,
        ),
    ],
)
def test_copies_of_a_model_go_to_host_memory(keep, use, why, changed, copies, tmp_path):
    text = COPIES.format(keep=keep, use=use)
    # Parameters and gradients of 16 MiB each, workspaces of 16.25; activations of 16 do not fit.
    remedy = ModelTwice().remedy(facts_of(text, f"{92 + 16 * copies}MiB", tmp_path))
    assert remedy is not None
    assert (remedy.why, remedy.size) == (why, copies * 16 * MIB)
    assert "".join(line.strip() + " " for line in written(remedy)).strip() == changed
    assert peak_of(text) - peak_of(edited(text, remedy)) == copies * 16 * MIB


@pytest.mark.parametrize("gpu", ["76MiB", "92MiB"])  # for no copy, and for one
def test_a_copy_that_is_being_made_is_named(gpu, tmp_path):
    program = COPIES.replace("4096", "8")
    text = program.format(keep=COPY.format("net.state_dict()"), use="net.load_state_dict(best)")
    remedy = ModelTwice().remedy(facts_of(text, gpu, tmp_path))
    assert remedy is not None
    assert remedy.why.startswith("best (line 13) is a second copy of the parameters: ")
    copied = {"76MiB": 1, "92MiB": 2}[gpu] * 16 * MIB
    assert copied - 16 * MIB < remedy.size < copied
    assert peak_of(edited(text, remedy)) == peak_of(program.format(keep="pass", use="pass"))
