"""The place of ``no_grad``: the part of a training that no backward pass reaches."""

from __future__ import annotations

import linecache

import pytest
import torch
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.catalogue import candidates
from pytorch_memlab.advice.forward_only import forward_only_place

DISTILLS = """\
import torch
from torch import nn

def layers(width, depth):
    return nn.Sequential(*[nn.Sequential(nn.Linear(512, width), nn.GELU(), nn.Linear(width, 512))
                           for _ in range(depth)])

class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = layers(1024, 8), layers(32, 1)

    def forward(self, x):
        target = self.teacher(x)
        loss = nn.functional.mse_loss(self.student(x), target{detached})
        return loss

module = Distiller().to("cuda")
{mode}
optimizer = torch.optim.SGD(module.student.parameters(), 0.1)
for step in range(4):
    loss = module(torch.randn(4096, 512, device="cuda"))
    loss.backward()
    optimizer.step()
"""

LOSSES_OF_MAPS = """\
import torch
from torch import nn

net = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(12)]).cuda()

def maps_of(x):
    maps = []
    for layer in net:
        x = layer(x).relu()
        maps.append(x)
    return maps

optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    maps = maps_of(torch.randn(32, 8, 64, 64, device="cuda"))
    loss = sum(one.square().mean() for one in maps)
    loss.backward()
    optimizer.step()
"""


def facts_of(text: str, gpu: str, folder):
    """The facts of a program that runs out of memory."""
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(gpu, compute=False, context=0),
    ):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    return uncaught.add(caught.value).facts


@pytest.mark.parametrize("mode", ["", "module.teacher.eval()", "module.eval()"])
def test_a_part_of_a_step_whose_result_is_detached_needs_no_graph(mode, tmp_path):
    text = DISTILLS.format(detached=".detach()", mode=mode)
    place = forward_only_place(facts_of(text, "150MiB", tmp_path))
    assert place is not None
    assert place.code == ("with torch.no_grad():  # around line 14",)


def test_what_a_step_trains_needs_its_graph(tmp_path):
    text = DISTILLS.format(detached="", mode="")
    assert forward_only_place(facts_of(text, "150MiB", tmp_path)) is None


@knows_saved_tensors
def test_maps_that_a_backward_pass_reads_are_no_results_to_move_away(tmp_path):
    facts = facts_of(LOSSES_OF_MAPS, "100MiB", tmp_path)
    assert any(group.tensors > 3 and group.name == "maps" for group in facts.groups)
    assert "a list of results" not in [cause.name for cause, _ in candidates(facts)]
