"""Remedies that a program has already, and those that do not apply to it, say so."""

from __future__ import annotations

import pytest
from support.remedied_programs import run, written

from pytorch_memlab.advice.around_program import Outcome
from pytorch_memlab.advice.catalogue import chosen

HEAD = """\
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x):
        return self.linear(x).relu()

def network(count=2):
    return nn.Sequential(*[Layer() for _ in range(count)]).cuda()

def train(model, optimizer, forward=None):
    for _ in range(2):
        loss = (forward or model)(torch.randn(8, 64, device="cuda")).sum()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
            optimizer.zero_grad()

"""
MODEL = HEAD + "model = network()\n"
OWN_OPTIMIZER = """\
class Own(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        pass

model = network()
train(model, Own(model.parameters()))
"""
ATTENTION = "q = torch.randn(2, 4, 32, 16, device='cuda', requires_grad=True)\n"


@pytest.mark.parametrize(
    ("name", "program", "reason"),
    [
        (
            "set_to_none",
            MODEL + "train(model, torch.optim.SGD(model.parameters()))",
            "zero_grad sets gradients to None",
        ),
        (
            "fused",
            MODEL + "train(model, torch.optim.SGD(model.parameters(), fused=True))",
            "SGD is fused already",
        ),
        (
            "foreach",
            MODEL + "train(model, torch.optim.SGD(model.parameters()))",
            "SGD is foreach by default",
        ),
        (
            "for_loop",
            MODEL + "train(model, torch.optim.SGD(model.parameters(), foreach=False))",
            "SGD is for_loop already",
        ),
        (
            "autocast_bf16",
            MODEL
            + "with torch.autocast('cuda', torch.float16):\n"
            + "    train(model, torch.optim.SGD(model.parameters()))",
            "the program uses autocast",
        ),
        (
            "autocast_bf16",
            MODEL + "model.forward = torch.autocast('cuda', torch.bfloat16)(model.forward)\n"
            "train(model, None)",
            "the program uses autocast",
        ),
        (
            "autocast_bf16",
            MODEL + "model.bfloat16()(torch.randn(8, 64).cuda().bfloat16()).sum().backward()",
            "the parameters are bfloat16",
        ),
        (
            "checkpoint",
            MODEL
            + "def forward(x):\n"
            + "    for layer in model:\n"
            + "        x = checkpoint(layer, x, use_reentrant=False)\n"
            + "    return x\n"
            + "train(model, None, forward)",
            "the program checkpoints its blocks",
        ),
        (
            "checkpoint",
            MODEL
            + "def forward(x):\n"
            + "    x.requires_grad_()\n"
            + "    return checkpoint(model, x, use_reentrant=True)\n"
            + "train(model, None, forward)",
            "the program checkpoints its blocks",
        ),
        ("sdpa_efficient", ATTENTION + "F.scaled_dot_product_attention(q, q, q)", "all attention"),
        (
            "sdpa_math",
            ATTENTION
            + "with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):\n"
            + "    F.scaled_dot_product_attention(q, q, q)",
            "all attention runs on it",
        ),
    ],
)
def test_a_remedy_that_the_program_has_already(tmp_path, name, program, reason):
    text = program if program.startswith(HEAD) else HEAD + program
    finding = run(written(tmp_path, text), chosen([name])).finding
    assert finding.outcome is Outcome.ALREADY_USED
    assert finding.reason.startswith(reason)
    assert finding.code == finding.edits == ()


@pytest.mark.parametrize(
    ("name", "program", "reason"),
    [
        ("set_to_none", MODEL + "train(model, None)", "zero_grad is never called"),
        ("fused", MODEL + "train(model, None)", "no optimizer takes a step"),
        (
            "fused",
            MODEL + "train(model, torch.optim.RMSprop(model.parameters()))",
            "RMSprop: no fused implementation",
        ),
        (
            "for_loop",
            OWN_OPTIMIZER,
            "Own: no for_loop implementation",
        ),
        ("autocast_bf16", "torch.ones(3).cuda()", "the program calls no module on a GPU"),
        ("checkpoint", "torch.ones(3).cuda()", "the program calls no module"),
        (
            "checkpoint",
            "train(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64)).cuda(), None)",
            "no model has repeated blocks",
        ),
        (
            "checkpoint",
            MODEL + "with torch.no_grad():\n    model(torch.randn(8, 64, device='cuda'))",
            "no block is part of a backward pass",
        ),
        ("sdpa_math", MODEL + "train(model, None)", "scaled_dot_product_attention is never called"),
        (
            "sdpa_math",
            ATTENTION
            + "with torch.nn.attention.sdpa_kernel("
            + "torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):\n"
            + "    F.scaled_dot_product_attention(q, q, q)",
            "the program chooses the kernel of attention itself",
        ),
        (
            "sdpa_flash",
            ATTENTION + "F.scaled_dot_product_attention(q, q, q)",
            (
                "Expected query, key and value to all be of dtype: {Half, BFloat16}. "
                "Got Query dtype: float, Key dtype: float, and Value dtype: float instead."
            ),
        ),
        ("shard=2", MODEL + "train(model, None)", "no optimizer has the parameters of a module"),
        (
            "shard=2",
            MODEL
            + "torch.distributed.init_process_group('nccl')\n"
            + "model = nn.parallel.DistributedDataParallel(model)\n"
            + "train(model, torch.optim.SGD(model.parameters()))",
            "the model is in DistributedDataParallel",
        ),
    ],
)
def test_a_remedy_that_does_not_apply(tmp_path, name, program, reason):
    text = program if program.startswith(HEAD) else HEAD + program
    finding = run(written(tmp_path, text), chosen([name])).finding
    assert (finding.outcome, finding.reason) == (Outcome.DOES_NOT_APPLY, reason)
    assert finding.code == finding.edits == ()


def test_settings_of_the_environment_stay_and_count(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:True")
    set_already, larger = chosen(["expandable_segments", "max_split_size=200"])
    assert set_already.finding().outcome is Outcome.ALREADY_USED
    assert set_already.finding().reason == "expandable_segments:True is set"
    names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
    assert larger.environment() == dict.fromkeys(
        names, "expandable_segments:True,max_split_size_mb:200"
    )


def test_of_the_allocators_settings_one_is_for_linux_alone():
    settings = chosen(["expandable_segments", "max_split_size=64", "roundup=4"])
    assert [setting.what_it_changes for setting in settings] == [
        "nothing the program computes; Linux",
        "nothing the program computes",
        "nothing the program computes",
    ]


def test_a_program_that_is_one_of_several_ranks_is_sharded_already(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    finding = run(written(tmp_path, HEAD), chosen(["shard"])).finding
    assert (finding.outcome, finding.reason) == (
        Outcome.ALREADY_USED,
        "the program is one of 4 ranks",
    )
