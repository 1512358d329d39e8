"""``fit`` on programs that run out of memory late: what it says is what a whole run does."""

from __future__ import annotations

import re
import traceback

import pytest
import torch
from support.fit_command import fitted

from pytorch_memlab import simulate

IN_AN_ATTRIBUTE = """\
import torch
from torch import nn


class Loop:
    def __init__(self):
        self.net = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 10)).cuda()
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.history = []

    def step(self, x, y):
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.net(x), y).backward()
        self.optimizer.step()
        self.history.append(self.net[0](x))


loop, done = Loop(), 0
for epoch in range(5):
    for _ in range(40):
        loop.step(torch.randn(384, 256, device="cuda"), torch.randint(10, (384,), device="cuda"))
        done += 1
"""

BY_STEP = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
saved, done = {}, 0
for step in range(200):
    loss = net(torch.randn(32, 512).cuda()).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    saved[step] = {"loss": loss, "weights": [p.detach().clone() for p in net.parameters()]}
    done += 1
"""

AFTER_AN_EPOCH = """\
import torch
from torch import nn

net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(10)).cuda()
net(torch.zeros(1, 3, 32, 32, device="cuda"))
optimizer = torch.optim.Adam(net.parameters())


def evaluate():
    return sum(net(torch.randn(size, 3, 32, 32).cuda()).argmax(1).sum() for size in (32, 2048))


for epoch in range(2):
    for step in range(20):
        optimizer.zero_grad()
        net(torch.randn(32, 3, 32, 32).cuda()).square().mean().backward()
        optimizer.step()
    evaluate()
"""

AFTER_MANY_STEPS = """\
import torch
from torch import nn

net = nn.Sequential(nn.Embedding(8000, 64), nn.Linear(64, 8000)).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)


def validate():
    with torch.no_grad():
        scores = [net(torch.randint(8000, (512,), device="cuda")) for _ in range(12)]
    return torch.cat(scores).mean()


for step in range(1, 201):
    net(torch.randint(8000, (512,), device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    if step % 40 == 0:
        validate()
"""


def line_that_fails(text: str, size: str) -> tuple[int, dict[str, int]]:
    """The last line of the program that a whole run executes, and the program's variables."""
    variables = {"__name__": "__main__"}
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(size, compute=False, context=0),
    ):
        exec(compile(text, "program.py", "exec"), variables)
    frames = traceback.extract_tb(caught.tb)
    return [one.lineno for one in frames if one.filename == "program.py"][-1], variables


@pytest.fixture
def fit(capsys, tmp_path, monkeypatch):
    def of(text, *words):
        (tmp_path / "program.py").write_text(text)
        monkeypatch.chdir(tmp_path)
        return fitted(capsys, "--gpu", *words, "program.py")[:2]

    return of


@pytest.mark.parametrize(
    ("text", "size", "holder"),
    [
        (IN_AN_ATTRIBUTE, "200MiB", "self.history"),
        (IN_AN_ATTRIBUTE, "400MiB", "self.history"),
        (BY_STEP, "128MiB", "saved"),
    ],
)
def test_the_step_that_fails_and_what_grows_are_those_of_a_whole_run(text, size, holder, fit):
    code, out = fit(text, size)
    _, variables = line_that_fails(text, size)
    [step] = re.findall(rf"  out of memory at step (\d+) of 200 on {size}\n", out)
    assert code == 3
    assert int(step) == variables["done"] + 1
    assert re.search(rf"^grows by \S+ MiB a step \({holder}\) at program.py:", out, re.MULTILINE)


def test_an_evaluation_that_fails_after_an_epoch_is_a_no(fit):
    line, _ = line_that_fails(AFTER_AN_EPOCH, "300MiB")
    code, out = fit(AFTER_AN_EPOCH, "300MiB")
    assert code == 3
    assert f"out of memory at program.py:{line} in " in out


def test_more_steps_reach_an_evaluation_that_fails_as_the_report_says(fit):
    code, out = fit(AFTER_MANY_STEPS, "150MiB")
    assert code == 4
    assert "  so far (24 steps; validate() not reached)\n" in out
    assert (
        "the loops ended after 24 steps, where their peak repeated: --steps N runs N,\n"
        "  which may reach more of the program\n"
    ) in out
    line, _ = line_that_fails(AFTER_MANY_STEPS, "150MiB")
    code, out = fit(AFTER_MANY_STEPS, "150MiB", "--steps", "40")
    assert code == 3
    assert f"out of memory at program.py:{line} in " in out
    assert "--steps N runs N," not in out
