"""``fit --expert-load`` runs a rank whose experts get more tokens than those of others."""

from __future__ import annotations

import re

import pytest
import torch.distributed as dist
from support.fit_command import fitted

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="this torch has no torch.distributed"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.usefixtures("no_rank"),
]


EXPERTS = """\
import os
import sys
import torch
import torch.distributed as dist

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
rank, size, count = dist.get_rank(), dist.get_world_size(), 4096
groups = [dist.new_group(list(range(n, n + 4))) for n in range(0, size, 4)]
group = groups[rank // 4] if "four" in sys.argv else None
size = dist.get_world_size(group)
tokens = torch.empty(count, 1024, device="cuda")
scores = torch.randn(count, 8, device="cuda")
counts = scores.argmax(-1).bincount(minlength=8)
received = torch.empty_like(counts)
dist.all_to_all_single(received, counts, group=group)
inputs = counts.view(size, -1).sum(1).tolist()
outputs = received.view(size, -1).sum(1).tolist()
mine = torch.empty(sum(outputs), 1024, device="cuda")
dist.all_to_all_single(mine, tokens, outputs, inputs, group=group)
"""
"""Tokens of 4 KiB, 16 MiB on each rank, and beside them those that its experts get."""


@pytest.fixture
def script(tmp_path):
    def write(old="", new=""):
        path = tmp_path / "experts.py"
        path.write_text(EXPERTS.replace(old, new) if old else EXPERTS)
        return str(path)

    return write


def loads_of(out):
    """The rows of the table of loads: the load and the peak."""
    return re.findall(r"^(\d[\d.]*) +\d+ +(\S+) +\S+ +\w+$", out, re.MULTILINE)


def fit_loads(capsys, loads, *words, gpu="24GiB"):
    return fitted(capsys, "--expert-load", loads, "--gpu", gpu, *words)


@pytest.mark.parametrize("mesh", ["ep=8", "dp=8"])
def test_each_load_needs_its_share_of_the_tokens(mesh, script, capsys):
    code, out, _ = fit_loads(capsys, "8,1.0,2.5", "--mesh", mesh, script())
    assert code == 0
    assert "2 ranks of 8 without values" in out
    assert "fits on all ranks with expert loads up to 8\n" in out
    # The small tensors share a segment of 2 MiB.
    assert re.search(r"^all +0-7 +34\.0M~ ", out, re.MULTILINE)
    assert loads_of(out) == [
        ("1", f"{2 + 16 + 16}.0M~"),
        ("2.5", f"{2 + 16 + 40}.0M~"),
        ("8", f"{2 + 16 + 128}.0M~"),
    ]
    assert "the largest load that fits is 8\n" in out


def test_the_experts_are_those_of_the_group_that_exchanges_tokens(script, capsys):
    words = ("--ranks", "6", "--mesh", "dp=8", script(), "four")
    code, out, _ = fit_loads(capsys, "2.5", *words)
    assert code == 0
    assert loads_of(out) == [("2.5", "58.0M~")]
    code, out, err = fit_loads(capsys, "5", *words)
    assert code == 2
    assert out == ""
    assert err.splitlines()[0] == (
        "pytorch-memlab fit: error: --expert-load 5 cannot be: the experts of one of 4 ranks get 4"
        " times their share at most, where a token has 1 of 8 experts"
    )


def test_the_load_that_does_not_fit_decides(script, capsys):
    larger = script("4096", "1 << 20")
    code, out, _ = fit_loads(capsys, "1,2,8", "--ranks", "0", "--mesh", "ep=8", larger)
    assert code == 3
    assert "fits on all ranks with even expert loads, does not fit with 8\n" in out
    [*_, (_, two), (_, eight)] = loads_of(out)
    # Tokens of 4 GiB, 54 MiB for their scores and what they choose.
    assert (two, eight) == ("12.05G~", "36.05G~")
    left = [float(one) for one in re.findall(r"^\d +0 +\S+ +(-?[\d.]+)G", out, re.MULTILINE)]
    [limit] = re.findall(r"a line to the next one leaves nothing\s+at (\d\.\d\d)", out)
    assert "the largest load that fits is 2;" in out
    assert float(limit) == pytest.approx(2 + left[1] / 4, abs=0.02)  # 4 GiB a load


def test_without_loads_tokens_choose_evenly_and_a_note_says_so(script, capsys):
    code, out, _ = fitted(capsys, "--mesh", "ep=8", "--gpu", "24GiB", script())
    assert code == 0
    assert re.search(r"^all +0-7 +34\.0M~ ", out, re.MULTILINE)
    note = "tokens choose their experts evenly, as their scores are not known"
    assert note in out.replace("\n  ", " ")
    code, out, _ = fitted(capsys, "--mesh", "ep=8", script("scores.argmax(-1)", "counted"))
    assert code == 2  # there is no such name
    code, out, _ = fitted(
        capsys,
        "--mesh",
        "dp=8",
        script("scores.argmax(-1)", "(torch.arange(count, device='cuda') % 8)"),
    )
    assert code == 0
    assert note not in out.replace("\n  ", " ")


@pytest.mark.parametrize(
    ("old", "new", "mesh", "why"),
    [
        (
            "scores.argmax(-1)",
            "(torch.arange(count, device='cuda') % 8)",
            "ep=8",
            "no tokens choose",
        ),
        ("sum(outputs)", "count", "ep=8", "the load of experts changes nothing"),
        ("", "", "dp=8", "--mesh has no ep"),
    ],
)
def test_a_program_that_no_load_changes_has_no_verdict(old, new, mesh, why, script, capsys):
    exchange = "dist.all_to_all_single(mine, tokens, outputs, inputs, group=group)\n"
    path = script() if not old else script(old, new)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text.replace(exchange, ""))
    code, out, _ = fit_loads(capsys, "1,2.5", "--ranks", "0", "--mesh", mesh, path)
    assert code == 2
    assert why in out.partition("no verdict: ")[2].replace("\n  ", " ")


def test_a_rank_that_fails_with_a_load_is_named(script, capsys):
    path = script("mine =", "assert sum(outputs) <= 4096, 'too many tokens'\nmine =")
    code, out, err = fit_loads(capsys, "1,2.5", "--ranks", "3", "--mesh", "ep=8", path)
    assert code == 2
    assert "no verdict: rank 3 failed with an expert load of 2.5\n" in out
    assert "AssertionError: too many tokens" in err


@pytest.mark.parametrize(
    ("loads", "part"),
    [
        ("1.0,big", "'big'"),
        ("", "''"),
        ("0", "'0'"),
        ("-1", "'-1'"),
        ("inf", "'inf'"),
        ("1;2", "'1;2'"),
    ],
)
def test_a_mistyped_list_has_one_line(loads, part, script, capsys):
    code, out, err = fitted(capsys, f"--expert-load={loads}", "--mesh", "ep=8", script())
    assert (code, out) == (2, "")
    assert err == (
        "pytorch-memlab fit: error: --expert-load has numbers such as 1.0,2.5, of which 1.0 is an"
        f" even share of the tokens, and not {part}\n"
    )


def test_it_is_a_question_about_the_ranks_of_a_job(script, capsys):
    code, _, err = fit_loads(capsys, "1,2", script())
    assert (code, err.count("\n")) == (2, 1)
    assert "--expert-load needs the number of ranks: give --mesh" in err
    code, _, err = fit_loads(capsys, "1,2", "--mesh", "ep=8", "--budget", "1GiB", script())
    assert (code, err.count("\n")) == (2, 1)
