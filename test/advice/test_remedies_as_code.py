"""Each remedy, against the program into which a person writes what the remedy says."""

from __future__ import annotations

import pytest
from support.remedied_programs import (
    ADVERSARIAL,
    CONVOLUTIONS,
    LANGUAGE_MODEL,
    WIDE,
    edited,
    run,
    written,
)

from pytorch_memlab.advice.around_program import Outcome
from pytorch_memlab.advice.catalogue import chosen
from pytorch_memlab.advice.causes.model_state import Sharding
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.attention.sdp_backend import cudnn_version

PROGRAMS = {"lm": LANGUAGE_MODEL, "cnn": CONVOLUTIONS, "gan": ADVERSARIAL, "wide": WIDE}

_UNCHANGED = {}


def unchanged(program, path):
    """The run of a program as it is, which several tests compare with."""
    if program not in _UNCHANGED:
        _UNCHANGED[program] = run(path)
    return _UNCHANGED[program]


@pytest.mark.parametrize(
    ("program", "name", "saves"),
    [
        ("lm", "set_to_none", True),
        ("wide", "fused", True),
        ("wide", "for_loop", True),
        ("gan", "fused", False),
        ("lm", "autocast_bf16", True),
        ("cnn", "autocast_bf16", True),
        ("lm", "checkpoint", True),
        ("cnn", "checkpoint", True),
        ("gan", "checkpoint", True),
        ("lm", "shard=4", True),
        ("gan", "shard=2", True),
    ],
)
def test_the_program_with_the_remedy_written_into_it_has_the_peak_that_was_promised(
    tmp_path, program, name, saves
):
    path = written(tmp_path, PROGRAMS[program])
    (remedy,) = chosen([name])
    promised = run(path, [remedy])
    assert promised.finding.outcome is Outcome.APPLIED
    assert promised.finding.edits
    environment = remedy.environment() if isinstance(remedy, Sharding) else {}
    found = run(edited(path, promised.finding.edits), environment=environment)
    assert found.peaks == promised.peaks
    before = unchanged(program, path)
    assert found.peaks != before.peaks
    assert (found.active < before.active) == saves


IN_A_CALL = LANGUAGE_MODEL.replace(
    "def train(steps):\n    net = GPT().cuda()\n", "def train(net, steps):\n"
)


@pytest.mark.parametrize(
    ("call", "lines"),
    [
        ("train(GPT().cuda(), 2)", ("model = GPT()", "train(model.cuda(), 2)")),
        (
            "def made():\n    return GPT().cuda()\n\ntrain(made(), 2)",
            ("    model = GPT()", "    return model.cuda()"),
        ),
    ],
)
def test_a_model_without_a_variable_gets_one(call, lines, tmp_path):
    text = IN_A_CALL.replace("\ntrain(2)", f"\n{call}")
    assert text.count("GPT()") == 1
    path = written(tmp_path, text)
    promised = run(path, chosen(["checkpoint"]))
    [edit] = promised.finding.edits
    assert (edit.lines[0], edit.lines[-1]) == lines
    assert run(edited(path, [edit])).peaks == promised.peaks != run(path).peaks


@pytest.mark.parametrize("name", ["expandable_segments", "max_split_size=64", "roundup=4"])
def test_a_setting_of_the_allocator_in_the_environment(tmp_path, name):
    path = written(tmp_path, LANGUAGE_MODEL)
    (remedy,) = chosen([name])
    promised = run(path, [remedy])
    (code,) = promised.finding.code
    variable, _, value = code.partition("=")
    assert run(path, environment={variable: value}).peaks == promised.peaks


HALF = LANGUAGE_MODEL.replace("GPT().cuda()", "GPT().cuda().bfloat16()")


prefers_flash = pytest.mark.skipif(
    not (RELEASE >= (2, 11) and cudnn_version() > 91500),
    reason="this release runs flash attention without being asked",
)


@pytest.mark.parametrize(
    "name", [pytest.param("sdpa_flash", marks=prefers_flash), "sdpa_efficient", "sdpa_math"]
)
def test_a_kernel_of_attention_at_the_start_of_the_program(tmp_path, name):
    path = written(tmp_path, HALF)
    promised = run(path, chosen([name]))
    assert promised.finding.outcome is Outcome.APPLIED
    code = "\n".join(promised.finding.code)
    found = run(written(tmp_path, f"import torch\n{code}\n{HALF}", "chosen.py"))
    assert found.peaks == promised.peaks
    before = unchanged("half", path)  # by cuDNN, or flash attention
    assert (before.active < found.active) == (name == "sdpa_math")


def test_what_runs_the_loss_in_one_statement_has_the_peak_of_autocast_up_to_backward(tmp_path):
    statement = "        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())\n"
    assert statement in LANGUAGE_MODEL
    before = LANGUAGE_MODEL.replace("        logits = net(tokens[:, :-1])\n", "")
    before = before.replace("        loss.backward()\n", "")
    call = "F.cross_entropy(net(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())"
    whole = before.replace(statement, f"        {call}.backward()\n")
    apart = before.replace(
        statement,
        '        with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        f"            loss = {call}\n"
        "        loss.backward()\n        del loss\n",
    )
    promised = run(written(tmp_path, whole), chosen(["autocast_bf16"]))
    assert promised.finding.edits == ()
    assert promised.finding.code[0] == 'with torch.autocast("cuda", dtype=torch.bfloat16):'
    assert run(written(tmp_path, apart, "apart.py")).peaks == promised.peaks


@pytest.mark.parametrize(
    "function",
    ["net", "net.forward", "lambda x: net(x)", "(lambda module: lambda x: module(x))(net)"],
)
def test_autocast_begins_before_a_checkpoint_that_calls_the_whole_module(function, tmp_path):
    text = f"""\
import torch
from torch.utils.checkpoint import checkpoint

net = torch.nn.Linear(64, 64).cuda()
x = torch.ones(8, 64, device="cuda")
loss = checkpoint({function}, x, use_reentrant=False).sum()
loss.backward()
"""
    finding = run(written(tmp_path, text), chosen(["autocast_bf16"])).finding
    assert [(edit.first, edit.last, edit.lines) for edit in finding.edits] == [
        (
            *(6, 6),
            (
                'with torch.autocast("cuda", dtype=torch.bfloat16):',
                f"    loss = checkpoint({function}, x, use_reentrant=False).sum()",
            ),
        )
    ]


def test_autocast_ends_with_a_checkpoint_without_gradients(tmp_path):
    text = """\
import torch
from torch.utils.checkpoint import checkpoint

net = torch.nn.Linear(64, 64).cuda()
x = torch.ones(8, 64, device="cuda")
with torch.no_grad():
    before = checkpoint(net, x, use_reentrant=False)
after = x @ x.T
assert (before.dtype, after.dtype) == (torch.bfloat16, torch.float32)
"""
    finding = run(written(tmp_path, text), chosen(["autocast_bf16"])).finding
    assert [(edit.first, edit.last, edit.lines) for edit in finding.edits] == [
        (
            *(7, 7),
            (
                '    with torch.autocast("cuda", dtype=torch.bfloat16):',
                "        before = checkpoint(net, x, use_reentrant=False)",
            ),
        )
    ]


def test_autocast_ends_before_the_backward_pass_that_runs_a_module_again(tmp_path):
    text = """\
import torch
from torch.utils.checkpoint import checkpoint

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x):
        return checkpoint(self.linear, x, use_reentrant=False)

net = Net().cuda()
loss = net(torch.ones(8, 64, device="cuda")).sum()
loss.backward()
"""
    finding = run(written(tmp_path, text), chosen(["autocast_bf16"])).finding
    assert finding.outcome is Outcome.APPLIED
    assert [(edit.first, edit.last, edit.lines) for edit in finding.edits] == [
        (
            *(13, 13),
            (
                'with torch.autocast("cuda", dtype=torch.bfloat16):',
                '    loss = net(torch.ones(8, 64, device="cuda")).sum()',
            ),
        )
    ]
