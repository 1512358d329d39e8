"""``pytorch-memlab fit --try``: the whole table, its exit codes, and one-line errors."""

from __future__ import annotations

import re

import pytest

from pytorch_memlab.cli.main import main
from pytorch_memlab.cli.parser import CommandParser

PROGRAM = """\
import sys
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(256, 1024)
        self.down = nn.Linear(1024, 256)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


net = nn.Sequential(*[Block() for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
assert "--strict" not in sys.argv or not optimizer.defaults["fused"], "no fused step\\nhere"
for _ in range(2):
    result = net(torch.randn(16384, 256, device="cuda"))
    result.backward(result.detach())
    optimizer.step()
    optimizer.zero_grad()
"""

TABLE = """\
train.py on 1TiB (490.0 MiB)

remedy                     peak       saves  fits  what it changes
none                  674.0 MiB              no
checkpoint            482.0 MiB   192.0 MiB  yes   time: blocks are computed a
                                                   second time (34.36 GFLOP a
                                                   step, +17%)
fused                 674.0 MiB         0 B  no    faster steps, sums in another
                                                   order
set_to_none           already used: zero_grad sets gradients to None
sdpa_math             does not apply: scaled_dot_product_attention is never
                      called

to fit: checkpoint 3 of 4 blocks (Block): peak 482.0 MiB, 25.77 GFLOP a step,
  +13% more; none of them can be left out
checkpoint 3 blocks, train.py before line 17:
    from functools import partial
    from torch.utils.checkpoint import checkpoint
    for block in net[:3]:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

checkpoint, train.py before line 17:
    from functools import partial
    from torch.utils.checkpoint import checkpoint
    for block in net:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False)

peak: the most that PyTorch's allocator takes of the GPU, its cache included;
  each row is the program with this remedy alone
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")  # an estimate before torch 2.9
    (tmp_path / "train.py").write_text(PROGRAM)
    return "train.py"


def test_the_table_of_remedies_their_code_and_the_fewest_blocks(program, capsys):
    names = "checkpoint,set_to_none,fused,sdpa_math"
    assert main(["fit", "--try", names, "--budget", "490MiB", "--gpu", "1TiB", program]) == 0
    assert capsys.readouterr().out == TABLE


def test_a_program_that_a_remedy_makes_fail_has_its_error_in_the_row(program, capsys):
    assert main(["fit", "--try=fused", "--gpu", "24GiB", program, "--strict"]) == 0
    row = capsys.readouterr().out.splitlines()[4]
    assert row == "fused                 fails: AssertionError: no fused step"


def test_no_remedy_is_enough(program, capsys):
    code = main(["fit", "--try", "checkpoint", "--gpu", "200MiB", program])
    assert code == 3
    assert "checkpointing all 4 blocks (Block) is not enough" in capsys.readouterr().out


def test_a_program_that_fails_as_it_is(tmp_path, capsys):
    path = tmp_path / "broken.py"
    path.write_text("raise ValueError('no data')\n")
    assert main(["fit", "--try=fused", str(path)]) == 2
    out, error = capsys.readouterr()
    assert out.splitlines()[1:] == ["the program fails as it is, so no remedy was tried"]
    assert error.rstrip().endswith("ValueError: no data")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--try", "chekpoint", "x.py"], "cannot open the script x.py: No such file or directory"),
        (["--try", "chekpoint"], "there is no remedy 'chekpoint': did you mean checkpoint?"),
        (
            ["--try", "fused,elephant"],
            "there is no remedy 'elephant': there are sdpa_flash, ",
        ),
        (["--try", "fused=1"], "the remedy fused takes no value '1'"),
        (["--try", "shard=1"], "shard=N takes a number of GPUs from 2 on, not 1"),
        (["--try", "fused,fused"], "the remedy fused is named twice"),
        (["--try", "roundup=3"], "roundup_power2_divisions"),
        (["--try", "--gpu", "a100,h100"], "--try is for one GPU: name one with --gpu"),
        (["--budget", "much"], "--budget is a size such as '450MiB', or bytes, not 'much'"),
        (["--budget", "100MiB", "--gpu", "h100"], "nothing is left of the GPU's 100.00 MiB"),
    ],
)
def test_a_mistake_is_told_in_one_line_before_anything_runs(program, capsys, arguments, message):
    script = [] if "x.py" in arguments else [program]
    assert main(["fit", *arguments, *script]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert error.startswith("pytorch-memlab fit: error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "value", "script"),
    [
        (["--try", "train.py"], "", "train.py"),
        (["--try", "a,b", "train.py"], "a,b", "train.py"),
        (["--try=a", "train.py", "--try", "c"], "a", "train.py"),
        (["--other", "o", "--try", "train.py"], "", "train.py"),
        (["--flag", "--try", "a", "train.py", "--try"], "a", "train.py"),
    ],
)
def test_an_option_that_may_stand_without_a_value(words, value, script):
    parser = CommandParser("test", "")
    parser.optional_values["--try"] = lambda word: bool(re.fullmatch("[a-z,]+", word))
    parser.add_argument("--try", dest="value")
    parser.add_argument("--other")
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("script")
    parser.add_argument("rest", nargs="...")
    options = parser.parse(words)
    assert (options.value, options.script) == (value, script)


def test_a_long_name_does_not_move_its_columns(write, capsys):
    script = write(
        """
        import torch
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(8, 64, device="cuda")).sum().backward()
            optimizer.step()
        """
    )

    main(["fit", "--gpu", "1GiB", "--try", "fused,evaluation_predictions", script])

    assert capsys.readouterr().out.splitlines()[2:7] == [
        "remedy                       peak       saves  fits  what it changes",
        "none                    22.0 MiB~              yes",
        "fused                   22.0 MiB~         0 B  yes   faster steps, sums in",
        "                                                     another order",
        "evaluation_predictions  does not apply: the program has no such cause at its",
    ]
