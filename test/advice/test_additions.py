"""The statement that fills a container, and what it adds in place of a tensor with its graph."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest

from pytorch_memlab.advice.additions import adding_statement, keeping_less
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import (
    BlockInUse,
    OutOfMemory,
    ProgramFrame,
    ProgramLine,
    TensorGroup,
)
from pytorch_memlab.simulation.allocator.out_of_memory import FailedRequest


def facts(text: str, folder: Path, names: tuple[str, ...] = ()) -> OutOfMemory:
    path = folder / "lists.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    frame = ProgramFrame(ProgramLine(str(path), 1, "<module>", ""), frozenset(), frozenset(), {})
    blocks = tuple(BlockInUse(1, Category.OTHERS, None, name) for name in names)
    return OutOfMemory(FailedRequest.__new__(FailedRequest), "", True, (frame,), blocks=blocks)


def group(name: str) -> TensorGroup:
    return TensorGroup(name, 3, 1, 1)


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("losses.append(loss)", "losses.append(loss.item())"),
        ("self.losses.append(a * b)  # é", "self.losses.append((a * b).item())  # é"),
        ("losses[step] = model(x).mean()", "losses[step] = model(x).mean().item()"),
        ('losses["train"].append(loss)', 'losses["train"].append(loss.item())'),
        ("losses.setdefault(name, []).append(loss)", None),
        ("losses += [loss]", "losses += [loss.item()]"),
        ("losses = losses + [loss]", "losses = losses + [loss.item()]"),
        ("losses = [f(x) for x in y]", "losses = [f(x).item() for x in y]"),
        ("self.trainer.losses.appendleft(loss)", "self.trainer.losses.appendleft(loss.item())"),
        ("losses.append(a, b)\nothers.append(1)", "losses.append(a.item(), b)"),
    ],
)
def test_a_container_keeps_numbers(line, new, tmp_path):
    if new is None:
        new = line.replace("(loss)", "(loss.item())")
    change = keeping_less(facts(f"{line}\n", tmp_path), group("run().losses"), "item")
    assert change is not None
    assert change.edits[0].lines == (new,)


def test_only_the_parts_that_are_tensors_are_detached(tmp_path):
    names = ("outputs[0]['loss']", "outputs[0]['pred']", "outputs[1]['loss']")
    line = 'outputs.append({"loss": loss, "pred": pred, "step": step})\n'
    change = keeping_less(facts(line, tmp_path, names), group("outputs"), "detach")
    assert change is not None
    assert change.edits[0].lines == (
        'outputs.append({"loss": loss.detach(), "pred": pred.detach(), "step": step})',
    )


def test_the_only_statement_that_keeps_tensors_fills_a_container_of_another_name(tmp_path):
    text = "def log(store, value):\n    store.append(value)\n    names.append(len(store))\n"
    oom = facts(text, tmp_path)
    added = adding_statement(oom, group("history"))
    assert added is not None
    assert added.line == 2
    two = facts(f"{text}kept.append(value)\n", tmp_path)
    assert adding_statement(two, group("history")) is None


def test_a_list_under_a_key_is_told_from_another_one(tmp_path):
    text = 'results["loss"].append(loss)\nresults["epoch"].append(epoch)\n'
    oom = facts(text, tmp_path, ("results['loss'][0]", "results['loss'][1]"))
    added = adding_statement(oom, group("results"))
    assert added is not None
    assert added.line == 1


def test_the_list_of_a_meter_is_a_part_of_what_its_tensors_are_named_by(tmp_path):
    text = "class Meter:\n    def update(self, value):\n        self.values.append(value)\n"
    names = ("logger.meters['loss'].values[0]", "logger.meters['loss'].values[1]")
    change = keeping_less(facts(text, tmp_path, names), group("logger.meters"), "item")
    assert change is not None
    assert change.edits[0].lines == ("        self.values.append(value.item())",)
