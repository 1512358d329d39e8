"""Parameters that get gradients, and that no optimizer updates."""

from __future__ import annotations

import gc
import linecache
from dataclasses import replace

import pytest
import torch
from support.ran_out import written

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.causes.untrained_parameters import UntrainedParameters
from pytorch_memlab.history.out_of_memory import OutOfMemory

PROGRAM = """\
import torch
from torch import nn

def layers(count):
    return nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(count)))

class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = layers(12)
        self.head = nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))

{made}
for step in range(3):
    x = torch.randn(16, 8, 64, 64, device="cuda")
    {step}
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LOSS = (
    (
        "net, judge = layers(1).cuda(), layers(12).cuda()\n"
        "optimizer = torch.optim.SGD(net.parameters(), 0.1)"
    ),
    "loss = (judge(net(x)) - judge(x)).abs().mean()",
)
PROBE = (
    "model = Both().cuda()\noptimizer = torch.optim.SGD(model.head.parameters(), 0.1)",
    "loss = model(x).mean()",
)


def ran(text: str, gpu: str, path) -> OutOfMemory | int:
    """The facts of a program that runs out of memory, or the peak of one that fits."""
    path.write_text(text)
    linecache.checkcache(str(path))
    gc.collect()  # an optimizer of another test is none of this program
    try:
        with simulate(gpu, compute=False, context=0):
            exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
            return torch.cuda.max_memory_allocated()
    except torch.OutOfMemoryError as error:
        report = uncaught.add(error)
        assert report is not None
        assert isinstance(report.facts, OutOfMemory)
        return report.facts


def remedy_of(made: str, step: str, folder):
    text = PROGRAM.format(made=made, step=step)
    facts = ran(text, "48MiB", folder / "program.py")
    assert isinstance(facts, OutOfMemory)
    return text, UntrainedParameters().remedy(facts)


def test_a_model_of_the_loss_requires_no_gradients(tmp_path):
    text, remedy = remedy_of(*LOSS, tmp_path)
    assert remedy is not None
    assert written(remedy) == ("judge.requires_grad_(False)",)
    # Twelve convolutions, of 8 x 8 x 3 x 3 weights and 8 biases each.
    assert remedy.why == (
        "no optimizer has 27.4 KiB of the parameters of judge, and they require gradients"
    )
    before = ran(text, "1GiB", tmp_path / "program.py")
    new = text.replace(LOSS[0], f"{LOSS[0]}\njudge.requires_grad_(False)")
    after = ran(new, "1GiB", tmp_path / "edited.py")
    assert isinstance(before, int)
    assert isinstance(after, int)
    assert before - after > 11 * 16 * 8 * 64 * 64 * 4  # inputs of its layers, for x alone


def test_gradients_that_are_there_are_said_to_be(tmp_path):
    facts = ran(PROGRAM.format(made=LOSS[0], step=LOSS[1]), "48MiB", tmp_path / "program.py")
    assert isinstance(facts, OutOfMemory)
    [judge] = facts.model.untrained
    assert judge.gradients == 0  # the first forward pass fails
    of_a_later_step = replace(judge, gradients=judge.parameters)
    facts = replace(facts, model=replace(facts.model, untrained=(of_a_later_step,)))

    remedy = UntrainedParameters().remedy(facts)

    assert remedy is not None
    assert remedy.why.endswith("of the parameters of judge, and they get gradients")


def test_only_what_the_optimizer_has_requires_gradients(tmp_path):
    text, remedy = remedy_of(*PROBE, tmp_path)
    assert remedy is not None
    assert written(remedy) == (
        "trained = {",
        "id(parameter)",
        "for group in optimizer.param_groups",
        'for parameter in group["params"]',
        "}",
        "for parameter in model.parameters():",
        "parameter.requires_grad_(id(parameter) in trained)",
    )
    assert remedy.change is not None
    path = tmp_path / "program.py"
    edits = remedy.change.edits
    lines = text.splitlines()
    lines[edits[0].first - 1 : edits[0].last] = edits[0].lines
    after = ran("\n".join(lines), "1GiB", path)
    before = ran(text, "1GiB", path)
    assert isinstance(before, int)
    assert isinstance(after, int)
    # All but two of the maps that twelve layers make: one is read while the next one is made.
    assert before - after >= 10 * 16 * 8 * 64 * 64 * 4


@pytest.mark.parametrize(
    ("made", "step"),
    [
        # All are trained.
        (LOSS[0].replace("net.p", "nn.ModuleList([net, judge]).p"), LOSS[1]),
        # Nothing is known of how they are updated.
        (
            LOSS[0].replace(
                "torch.optim.SGD(net.parameters(), 0.1)",
                "__import__('types').SimpleNamespace(zero_grad=int, step=int)",
            ),
            LOSS[1],
        ),
        # It is frozen, and what runs through it is for the other model.
        (f"{LOSS[0]}\njudge.requires_grad_(False)", "loss = judge(layers(30).cuda()(x)).mean()"),
    ],
)
def test_models_that_are_trained_or_frozen_are_left_alone(made, step, tmp_path):
    assert remedy_of(made, step, tmp_path)[1] is None
