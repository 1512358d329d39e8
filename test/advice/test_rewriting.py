"""Other text in place of parts of a file."""

from __future__ import annotations

import ast
import linecache
from pathlib import Path

import pytest

from pytorch_memlab.advice.forward_in_half import _around_forward
from pytorch_memlab.advice.loss_in_parts import loss_in_parts
from pytorch_memlab.advice.rewriting import Rewriting, changed_source, nodes_of, set_keywords


def of_text(text: str, folder: Path) -> Rewriting:
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    return Rewriting(str(path))


def test_columns_count_bytes_and_a_file_without_a_last_line_end_has_one(tmp_path):
    file = of_text("é = f('é', x)", tmp_path)
    [call] = nodes_of(file.tree, ast.Call)
    file.insert_after(call.args[1], ".cpu()")
    assert file.text() == "é = f('é', x.cpu())\n"


def test_two_changes_of_one_part_change_nothing(tmp_path):
    file = of_text("y = f(g(x))\n", tmp_path)
    outer, inner = nodes_of(file.tree, ast.Call)
    file.replace(outer, "a")
    file.replace(inner, "b")
    assert changed_source(file) is None


def test_form_feeds_and_separators_end_no_line(tmp_path):
    file = of_text('import torch\n\x0c\nNAME = "a\x1cb"\ny = f(NAME)\n', tmp_path)
    file.replace(next(nodes_of(file.tree, ast.Call)), 'g("\x0b", NAME)')

    change = changed_source(file)

    assert [(edit.first, edit.last, edit.lines) for edit in change.edits] == [
        (4, 4, ('y = g("\x0b", NAME)',))
    ]
    assert change.diff().endswith('-y = f(NAME)\n+y = g("\x0b", NAME)\n')


def test_what_is_no_program_afterwards_is_no_change(tmp_path):
    file = of_text("y = f(x)\n", tmp_path)
    file.replace(next(nodes_of(file.tree, ast.Call)), "f(")
    assert changed_source(file) is None


def test_an_import_follows_the_docstring_and_those_of_the_future(tmp_path):
    file = of_text('"""Doc."""\nfrom __future__ import annotations\n\nx = 1\n', tmp_path)
    file.ensure_import("torch")
    assert file.text() == (
        '"""Doc."""\nfrom __future__ import annotations\n\nimport torch\nx = 1\n'
    )
    file = of_text("import torch\n", tmp_path)
    file.ensure_import("torch")
    assert not file.is_changed


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("Adam(p)", "Adam(p, fused=True)"),
        ("Adam(p, fused=False)", "Adam(p, fused=True)"),
        ("Adam()", "Adam(fused=True)"),
        ("Adam(p for p in ps)", "Adam((p for p in ps), fused=True)"),
        ("Adam(p, foreach=True)", "Adam(p, foreach=None, fused=True)"),
        # As the program writes them: each in its line, with a comma behind the last or without.
        ("Adam(\n    p,\n    lr=1,\n)", "Adam(\n    p,\n    lr=1,\n    fused=True,\n)"),
        ("Adam(\n  p,\n  lr=1  # low\n)", "Adam(\n  p,\n  lr=1,  # low\n  fused=True\n)"),
        ("Adam(\n    p, lr=1,\n)", "Adam(\n    p, lr=1, fused=True,\n)"),
        ("Adam(\n    p,\n    lr=1)", "Adam(\n    p,\n    lr=1, fused=True)"),
        (
            f"Adam(\n    p, {'lr':_<50}=1, eps=1, b={{'a': 1}},\n)",
            f"Adam(\n    p, {'lr':_<50}=1, eps=1, b={{'a': 1}},\n    fused=True,\n)",
        ),
    ],
)
def test_a_call_gets_other_keywords(line, new, tmp_path):
    file = of_text(f"{line}\n", tmp_path)
    set_keywords(file, next(nodes_of(file.tree, ast.Call)), fused="True", foreach=None)
    assert file.text() == f"{new}\n"


def test_the_forward_pass_of_a_step_gets_autocast(tmp_path):
    text = """
import torch
for x, y in loader:
    x = x.cuda()
    out = net(x)
    loss = criterion(out, y)
    opt.zero_grad()
    loss.backward()
"""
    file = of_text(text, tmp_path)
    assert _around_forward(file)
    assert file.text() == text.replace(
        "    out = net(x)\n    loss = criterion(out, y)\n",
        '    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        "        out = net(x)\n        loss = criterion(out, y)\n",
    )


def test_a_forward_pass_and_its_backward_pass_in_one_statement_are_parted(tmp_path):
    file = of_text("import torch\nnet(x).mean().backward()\n", tmp_path)
    assert _around_forward(file)
    assert file.text() == (
        'import torch\nwith torch.autocast("cuda", dtype=torch.bfloat16):\n'
        "    loss = net(x).mean()\nloss.backward()\n"
    )


def test_logits_that_are_returned_are_kept_and_others_are_not(tmp_path):
    text = """
import torch
import torch.utils.checkpoint
class Net:
    def forward(self, x, y):
        h = self.body(x)
        logits = self.head(h)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        return RESULT
"""
    new = """        def part_of_loss(h, y):
            logits = self.head(h)
            return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum")
        loss = torch.stack([torch.utils.checkpoint.checkpoint(part_of_loss, *part, \
use_reentrant=False) for part in zip(h.chunk(4), y.chunk(4))]).sum() / (y.flatten() != -100).sum()
"""
    for result, expected in (
        ("loss", new),
        ("logits, loss", f"        logits = self.head(h)\n{new}"),
    ):
        file = of_text(text.replace("RESULT", result), tmp_path)
        assert loss_in_parts(file, 4) is not None
        begin, end = "        h = self.body(x)\n", f"        return {result}\n"
        assert file.text().partition(begin)[2].partition(end)[0] == expected
