"""A slice of a ``ModuleList`` makes a module in compiled code, which cuts no graph."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from pytorch_memlab import simulate
from pytorch_memlab.history.module_paths import ModulePaths
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")


class AllButTheFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts[1:]:
            x = part(x)
        return x


def test_a_whole_graph_is_compiled_once_while_module_paths_are_followed() -> None:
    paths = ModulePaths()
    with simulate("h100", compute=False):
        model = AllButTheFirst().cuda()
        step = torch.compile(model, fullgraph=True)
        counters.clear()
        paths.begin()
        try:
            for _ in range(3):
                step(torch.ones(4, 8, device="cuda"))
        finally:
            paths.end()
        assert counters["stats"]["unique_graphs"] == 1
