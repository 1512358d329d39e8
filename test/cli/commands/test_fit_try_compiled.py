"""``fit --try compile,memory_budget``: the whole table of a program, eager and compiled."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytorch_memlab.advice.causes.compiled_activations import MemoryBudget
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 13), reason="graphs of other releases are others")

PROGRAM = """\
import sys
import torch
import torch._inductor.config
from torch import nn

# Kernels have one configuration, so that nothing is timed.
torch._inductor.config.triton.autotune_pointwise = False
torch._inductor.config.deterministic = True


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(x)))


torch.set_float32_matmul_precision("high")
net = nn.Sequential(Block(), Block()).cuda()
if "compiled" in sys.argv:
    for block in net:
        block.compile()
result = net(torch.randn(16384, 256, device="cuda"))
result.backward(result.detach())
"""

EAGER = """\
remedy                     peak       saves  fits  what it changes
none                  554.0 MiB              no
compile               398.0 MiB   156.0 MiB  yes   faster steps, time to
                                                   compile, other rounding
memory_budget=0.5     does not apply: no compiled graph has a backward pass
"""

EDIT = """\
compile, train.py before line 22:
    net.compile()
"""

# Each block is a separate graph (``net.compile()`` makes one graph from 2.15 on, two before).
# A product of 16384 rows, 256 and 1024 wide, is 2 * 16384 * 256 * 1024 = 8.59 GFLOP. The forward
# pass has four, and the backward pass two for each but the first, whose input has no gradient: 11.
# Without a budget, the results of both that go up are saved; with 0, both are computed again.
COMPILED = """\
remedy                     peak       saves  fits  what it changes
none                  398.0 MiB              yes
memory_budget=0       270.0 MiB   128.0 MiB  yes   time: what is not saved is
                                                   computed a second time (17.18
                                                   GFLOP a step, +18%)
memory_budget=0.5     334.0 MiB    64.0 MiB  yes   time: what is not saved is
                                                   computed a second time (0
                                                   FLOP a step, +0%)
compile               already used: the program compiles

memory_budget=0:
    import torch._functorch.config
    torch._functorch.config.activation_memory_budget = 0  # before the first compiled call
"""


# One graph. Without a budget, the results of both that go up are saved. With a half, one is
# computed again; with 0, all products are but the last, at once, so the peak is as at first.
WHOLE = """\
none                  398.0 MiB              yes
memory_budget=0.5     334.0 MiB    64.0 MiB  yes   time: what is not saved is
                                                   computed a second time (8.59
                                                   GFLOP a step, +9%)
memory_budget=0       398.0 MiB         0 B  yes   time: what is not saved is
                                                   computed a second time (25.77
                                                   GFLOP a step, +27%)
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder to work in, with a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("train.py").write_text(PROGRAM)
    return "train.py"


def table(capsys: pytest.CaptureFixture[str], names: str, *words: str) -> str:
    main(["fit", "--gpu", "420MiB", "--cuda-context", "0B", "--try", names, *words])
    return capsys.readouterr().out


def test_a_program_is_compiled_and_its_edit_says_so(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = table(capsys, "compile,memory_budget=0.5", program)
    assert EAGER in text
    assert EDIT in text


def test_each_budget_of_a_compiled_program_is_a_row(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = table(capsys, "compile,memory_budget=0.5,memory_budget=0", program, "compiled")
    assert COMPILED in text


@pytest.mark.skipif(RELEASE < (2, 15), reason="net.compile() makes two graphs before 2.15")
def test_budgets_of_a_whole_net_are_those_of_one_graph(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    each = "    for block in net:\n        block.compile()\n"
    Path(program).write_text(PROGRAM.replace(each, "    net.compile()\n"))
    assert WHOLE in table(capsys, "memory_budget=0.5,memory_budget=0", program, "compiled")


@pytest.mark.parametrize("value", ["2", "-0.1", "half"])
def test_a_budget_is_a_part(value: str) -> None:
    with pytest.raises(UsageError, match="a part from 0 to 1"):
        MemoryBudget(value)
