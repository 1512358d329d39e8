"""Stacks that are taken quickly and read later."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch

from pytorch_memlab._common.frames.call_stacks import CallStacks, TakenStack

READS_A_STACK = """
import sys
import torch
from pytorch_memlab._common.frames.call_stacks import CallStacks

stacks = CallStacks()
stacks.places(stacks.take())
print("torch._inductor" in sys.modules, "_inductor" in vars(torch))
print(torch._inductor.__name__)
"""


def test_reading_a_stack_imports_no_compiler() -> None:
    command = [sys.executable, "-c", READS_A_STACK]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False False\ntorch._inductor\n"


def test_a_compiler_that_is_there_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = object()
    monkeypatch.setitem(vars(torch), "_inductor", compiler)
    stacks = CallStacks()
    stacks.places(stacks.take())
    assert torch._inductor is compiler


def test_a_file_whose_name_is_not_utf8_costs_its_own_stack_only() -> None:
    stacks = CallStacks()
    taken = [stacks.take()]
    code = compile("taken.append(stacks.take())", os.fsdecode(b"m\xf6del.py"), "exec")
    exec(code, {"taken": taken, "stacks": stacks})
    assert [bool(stacks.places(one)) for one in taken] == [True, False]


def test_equal_stacks_have_one_number_and_others_another() -> None:
    stacks = CallStacks()
    taken = [stacks.take() for _ in range(3)]
    other = stacks.take()
    stacks.read()
    assert len({one.number for one in taken}) == 1
    assert other.number not in (0, taken[0].number)


def test_stacks_that_differ_in_one_line_have_numbers_of_their_own() -> None:
    stacks = CallStacks()
    lines = 40
    source = "def work(take):\n" + "    take()\n" * lines
    names: dict[str, Any] = {}
    exec(compile(source, "alike.py", "exec"), names)
    taken: list[TakenStack] = []

    def take() -> None:
        taken.append(stacks.take())

    for _ in range(2):
        names["work"](take)
    stacks.read()
    numbers = [one.number for one in taken]
    assert numbers[:lines] == numbers[lines:]
    assert len(set(numbers)) == lines
    found = [stacks.places_of(number)[1] for number in numbers[:lines]]
    assert found == [("alike.py", 2 + line, "work") for line in range(lines)]


def test_a_stack_that_is_dropped_at_once_waits_for_nobody() -> None:
    stacks = CallStacks()
    kept, dropped = stacks.take(), stacks.take()
    stacks.drop(dropped)
    assert stacks._unread == [kept]
    assert dropped.raw is None


def test_a_stack_that_somebody_else_keeps_is_not_dropped() -> None:
    stacks = CallStacks()
    taken = stacks.take()
    taken.is_kept = True
    stacks.drop(taken)
    assert stacks.places(taken)[0][2] == "test_a_stack_that_somebody_else_keeps_is_not_dropped"
