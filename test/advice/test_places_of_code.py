"""Lines of a program with a remedy: where code goes, and when no place is right."""

from __future__ import annotations

import textwrap

import pytest
from support.remedied_programs import edited, written

from pytorch_memlab.advice.lines_to_edit import (
    ModelVariable,
    RunningLine,
    after_assignment,
    after_imports,
    around_statements,
    with_keywords,
)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("SGD(p, 0.1)", "SGD(p, 0.1, fused=True)"),
        ("optim.SGD(p, fused=False)", "optim.SGD(p, fused=True)"),
        (
            "SGD(\n    p,  # all\n    lr=f(1),\n)",
            "SGD(\n    p,  # all\n    lr=f(1), fused=True,\n)",
        ),
        ("SGD(*rest, **options)", "SGD(*rest, **options, fused=True)"),
        ("SGD('ä', p)", "SGD('ä', p, fused=True)"),
        ("SGD()", "SGD(fused=True)"),
    ],
)
def test_a_call_with_another_keyword(tmp_path, call, expected):
    path = written(tmp_path, f"x = {call}\n")
    edit = with_keywords(RunningLine(str(path), 1, 1), "SGD", {"fused": "True"})
    assert edited(path, [edit]).read_text() == f"x = {expected}\n"


@pytest.mark.parametrize("call", ["SGD(p) or SGD(q)", "make(p)", "SGD(q for q in p)"])
def test_a_call_that_cannot_be_told_or_changed(tmp_path, call):
    path = written(tmp_path, f"x = {call}\n")
    assert with_keywords(RunningLine(str(path), 1, 1), "SGD", {"fused": "True"}) is None


PROGRAM = textwrap.dedent('''\
    """A program."""
    from __future__ import annotations
    import torch

    @decorated
    class Trainer:
        def __init__(self):
            self.net = Net()
            self.other = self.net
            if True:
                self.net = self.net.cuda()

        def step(self, net):
            loss = self.net(1)
            for scale in (1, 2):
                loss = loss * scale
            loss.backward()
''')


def test_code_goes_after_the_last_statement_that_makes_the_model(tmp_path):
    path = written(tmp_path, PROGRAM)
    line = RunningLine(str(path), 14, 13)
    edit = after_assignment(line, "self.net", ["change(self.net)"])
    assert edited(path, [edit]).read_text().splitlines()[9:12] == [
        "        if True:",
        "            self.net = self.net.cuda()",
        "            change(self.net)",
    ]
    assert after_assignment(line, "self.other", ["pass"]) is None, "another name of the model"
    assert after_assignment(line, "net", ["pass"]) is None, "an argument"


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        (
            "fit(Net(4), data)",
            ["model = Net(4)", "change(model)", "fit(model, data)"],
        ),
        (
            "return fit(\n        x,\n        nets.Net(\n            4,\n        ).cuda(),\n    )",
            [
                *("model = nets.Net(4)", "change(model)", "return fit(", "        x,"),
                *("        model.cuda(),", "    )"),
            ],
        ),
    ],
)
def test_a_model_that_is_made_in_a_call_gets_a_name(statement, expected, tmp_path):
    path = written(tmp_path, f"def f(net):\n    {statement}\n")
    variable = ModelVariable("model", RunningLine(str(path), 2, 1), "Net")
    edit = variable.with_code(["change(model)"])
    first, *rest = edited(path, [edit]).read_text().splitlines()
    indented = [line if line.startswith("    ") else f"    {line}" for line in expected]
    assert (first, rest) == ("def f(net):", indented)


@pytest.mark.parametrize(
    "statement",
    ["fit(lambda: Net())", "fit(Net(), Net())", "with fit(Net()):\n        pass", "fit(net)"],
)
def test_a_model_that_is_made_later_or_again_gets_none(statement, tmp_path):
    path = written(tmp_path, f"def f(net):\n    {statement}\n")
    variable = ModelVariable("model", RunningLine(str(path), 2, 1), "Net")
    assert variable.with_code(["change(model)"]) is None


def test_statements_up_to_another_one(tmp_path):
    path = written(tmp_path, PROGRAM)
    first, last = RunningLine(str(path), 14, 13), RunningLine(str(path), 17, 13)
    edit = around_statements(first, last, ["with cast:"])
    assert edited(path, [edit]).read_text().splitlines()[13:] == [
        "        with cast:",
        "            loss = self.net(1)",
        "            for scale in (1, 2):",
        "                loss = loss * scale",
        "        loss.backward()",
    ]
    assert around_statements(first, RunningLine(str(path), 16, 13), ["with cast:"]) is None
    assert around_statements(first, first, ["with cast:"]) is None


def test_code_before_the_first_statement_that_is_no_import(tmp_path):
    path = written(tmp_path, PROGRAM)
    edit = after_imports(str(path), ["begin()"])
    assert edited(path, [edit]).read_text().splitlines()[2:6] == [
        "import torch",
        "",
        "begin()",
        "@decorated",
    ]


def test_a_file_that_is_gone_or_no_python_has_no_place(tmp_path):
    path = written(tmp_path, "x = = 1\n")
    for file in (str(path), str(tmp_path / "gone.py")):
        assert after_imports(file, ["pass"]) is None
        assert after_assignment(RunningLine(file, 1, 1), "x", ["pass"]) is None
        assert with_keywords(RunningLine(file, 1, 1), "f", {"a": "1"}) is None
