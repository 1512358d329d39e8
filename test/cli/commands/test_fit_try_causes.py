"""``pytorch-memlab fit --try`` with causes: the edit for what is wrong with a program."""

from __future__ import annotations

import pytest

from pytorch_memlab.advice.catalogue import all_causes, causes_to_try, named_changes
from pytorch_memlab.cli.main import main

PROGRAM = """\
import torch
layers = torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10)
net = torch.nn.Sequential(*layers).cuda()
losses = []
for step in range(60):
    loss = net(torch.randn(512, 256, device="cuda")).square().mean()
    losses.append(loss)
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PROGRAM)
    return "train.py"


def table(capsys, *words):
    code = main(["fit", "--gpu", "64MiB", "--cuda-context", "0B", *words])
    return code, capsys.readouterr().out


def test_every_cause_with_an_edit_has_a_name_of_its_own(capsys):
    names = causes_to_try()
    assert not names.keys() & named_changes().keys()
    assert [cause for cause in all_causes() if cause.has_edit] == list(names.values())
    with pytest.raises(SystemExit):
        main(["fit", "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert f"the edit of a cause alone: {', '.join(names)}" in shown


def test_causes_by_name(program, capsys):
    code, text = table(capsys, "--try", "kept_graphs,model_twice", program)
    assert code == 0
    rows = [line.split()[0] for line in text.splitlines()[3:6]]
    assert rows == ["none", "kept_graphs", "model_twice"]
    assert "model_twice           does not apply: the program has no such cause at its peak\n" in (
        text
    )
    assert "kept_graphs, train.py in place of line 7:\n    losses.append(loss.item())\n" in text


def test_without_names_the_causes_at_the_peak_are_tried_too(program, capsys):
    code, text = table(capsys, "--try", "--", program)
    assert code == 0
    rows = [line.split()[0] for line in text.splitlines()[3:] if line[:1].isalpha()]
    by_default = {change.name for change in named_changes().values() if change.is_by_default}
    tried = {row.partition("=")[0] for row in rows}
    assert {"kept_graphs", *by_default} <= tried
    assert not tried & {"model_twice", "compile", "memory_budget"}


def test_a_cause_that_is_misspelled_or_named_twice(program, capsys):
    for names, message in (
        ("kept_graph", "there is no remedy 'kept_graph': did you mean kept_graphs?"),
        ("no_grad,no_grad", "the remedy no_grad is named twice"),
    ):
        assert main(["fit", "--try", f"{names}", program]) == 2
        assert message.replace("'", "") in capsys.readouterr().err.replace("'", "")
