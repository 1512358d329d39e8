"""A sum of losses with one backward pass: each loss gets its own, and the update is the same."""

from __future__ import annotations

import linecache

import pytest
import torch
from support.saved_tensors import knows_saved_tensors

from benchmarks.advice import patched
from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.catalogue import candidates

PROGRAM = """\
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scaler = torch.amp.GradScaler(init_scale=4.0)
losses = 8

def train():
    for step in range(3):
{step}

train()
"""

BEHIND_THE_LOOP = """\
        optimizer.zero_grad()
        total = 0.0
        for micro in range(losses):
            x = torch.randn(1024, 64, device="cuda")
            loss = nn.functional.mse_loss(model(x), x)
            total = total + loss
        {backward}
        optimizer.step()
"""

CLEARS_BETWEEN = """\
        total = 0.0
        for micro in range(losses):
            x = torch.randn(1024, 64, device="cuda")
            loss = nn.functional.mse_loss(model(x), x)
            total += loss
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        print(step)
"""

ALONE_IN_A_BRANCH = """\
        total = 0.0
        optimizer.zero_grad()
        for micro in range(losses):
            x = torch.randn(1024, 64, device="cuda")
            loss = nn.functional.mse_loss(model(x), x)
            total = loss + total
        if step >= 0:
            total.backward()
        optimizer.step()
"""

ADDS_A_SHARE = """\
        optimizer.zero_grad()
        total = 0.0
        for micro in range(losses):
            x = torch.randn(1024, 64, device="cuda")
            out = model(x)
            loss = nn.functional.mse_loss(out, x) + 0.1 * nn.functional.l1_loss(out, x)
            total += loss / losses
        scaler.scale(total).backward()
        optimizer.step()
"""

CODE = {
    "total.backward()": ["loss.backward()"],
    "(total / losses).backward()": ["(loss / losses).backward()"],
    "scaler.scale(total).backward()": ["scaler.scale(loss).backward()"],
}


def run(text: str, path, gpu: str):
    """The peak of a program, and its parameters afterwards."""
    path.write_text(text)
    linecache.checkcache(str(path))
    scope = {"__name__": "__main__"}
    with simulate(gpu, context=0):
        exec(compile(text, str(path), "exec"), scope)
        trained = [parameter.detach().cpu() for parameter in scope["model"].parameters()]
        return torch.cuda.max_memory_allocated(), trained


def remedy_of(text: str, path):
    """The name of the cause and the remedy that come first without room for all graphs."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(text, path, "72MiB")
    [(cause, remedy), *_] = candidates(uncaught.add(caught.value).facts)
    return type(cause).__module__.rpartition(".")[2], remedy


@knows_saved_tensors
@pytest.mark.parametrize(
    ("step", "code"),
    [
        *(
            (
                BEHIND_THE_LOOP.format(backward=backward),
                [
                    "# program.py in place of lines 17 to 18:",
                    *of_each,
                    "total = total + loss.detach()",
                ],
            )
            for backward, of_each in CODE.items()
        ),
        (
            CLEARS_BETWEEN,
            [
                "# program.py in place of line 16:",
                "    loss.backward()",
                "    total += loss.detach()",
                "optimizer.step()",
                "# program.py without lines 18 to 19",
            ],
        ),
        (
            ADDS_A_SHARE,
            [
                "# program.py in place of lines 18 to 19:",
                "part = loss / losses",
                "scaler.scale(part).backward()",
                "total += part.detach()",
            ],
        ),
        (
            ALONE_IN_A_BRANCH,
            [
                "# program.py in place of line 17:",
                "loss.backward()",
                "total = loss.detach() + total",
                "# program.py in place of line 19:",
                "pass",
            ],
        ),
    ],
)
def test_each_loss_gets_its_backward_pass_and_the_model_is_the_same(step, code, tmp_path):
    text, path = PROGRAM.format(step=step), tmp_path / "program.py"
    cause, remedy = remedy_of(text, path)
    assert cause == "backward_of_sum"
    assert list(remedy.code) == code
    assert "keeps the graphs of 8 losses until its backward pass" in remedy.why

    before, expected = run(text, path, "1GiB")
    new = patched(path, remedy.change.diff())
    after, trained = run(new, path, "1GiB")
    assert before - after >= remedy.size > 0
    for parameter, other in zip(trained, expected, strict=True):
        torch.testing.assert_close(parameter, other, rtol=1e-5, atol=1e-6)


@knows_saved_tensors
@pytest.mark.parametrize(
    "backward",
    [
        "total.sqrt().backward()",  # not linear
        "(total * total).backward()",
        "total.real.backward()",
        "total.backward(retain_graph=True)",
        "optimizer.zero_grad(); total.backward()",
    ],
)
def test_a_backward_pass_that_is_not_the_sum_of_others_gets_no_edit(backward, tmp_path):
    text = PROGRAM.format(step=BEHIND_THE_LOOP.format(backward=backward))
    cause, remedy = remedy_of(text, tmp_path / "program.py")
    assert cause == "backward_of_sum"
    assert remedy.change is None
    assert list(remedy.code) == ["loss.backward()  # of each loss, not of their sum"]


@knows_saved_tensors
def test_a_sum_without_a_backward_pass_is_a_sum_of_numbers(tmp_path):
    step = BEHIND_THE_LOOP.format(backward="loss.backward()")
    cause, remedy = remedy_of(PROGRAM.format(step=step), tmp_path / "program.py")
    assert cause == "running_sum"
    assert list(remedy.code) == [
        "# program.py in place of line 17:",
        "total = total + loss.item()",
    ]
