"""The hub: which cells are open, nested ones included, and who hears of them."""

from __future__ import annotations

import pytest

from pytorch_memlab.errors import UsageError
from pytorch_memlab.notebook.cell_events import cell_events
from pytorch_memlab.notebook.shell import current_shell


class Listener:
    """Writes down what it hears."""

    def __init__(self) -> None:
        self.heard = []

    def cell_began(self, cell, /):
        self.heard.append(("began", cell.number, cell.source))

    def cell_ended(self, cell, result, /):
        self.heard.append(("ended", cell.number, cell.source, result.success))


@pytest.fixture
def listener(shell):
    listener = Listener()
    shell.user_ns.update(hub=cell_events(shell), listener=listener)
    yield listener
    cell_events(shell).remove(listener)


def test_every_cell_begins_and_ends_with_its_number(run, listener):
    run("x = 1")
    run("hub.add(listener); hub.add(listener)")
    run("y = 2")
    run("1 / 0")
    run("def")
    run("await __import__('asyncio').sleep(0)")
    assert listener.heard == [
        ("began", 2, ""),  # listening began in the middle of it
        ("ended", 2, "", True),
        ("began", 3, "y = 2"),
        ("ended", 3, "y = 2", True),
        ("began", 4, "1 / 0"),
        ("ended", 4, "1 / 0", False),
        ("began", 5, "def"),
        ("ended", 5, "def", False),
        ("began", 6, "await __import__('asyncio').sleep(0)"),
        ("ended", 6, "await __import__('asyncio').sleep(0)", True),
    ]


def test_a_cell_within_a_cell_has_its_own_entry(run, listener):
    run("hub.add(listener)")
    listener.heard.clear()
    run("%%capture out\nz = 3")
    assert [entry[:3] for entry in listener.heard] == [
        ("began", 2, "%%capture out\nz = 3"),
        ("began", 2, "z = 3\n"),
        ("ended", 2, "z = 3\n"),
        ("ended", 2, "%%capture out\nz = 3"),
    ]


def test_from_outside_a_cell_listening_begins_with_the_next_one(shell, run, listener):
    cell_events(shell).add(listener)
    assert listener.heard == []
    run("x = 1")
    assert [entry[0] for entry in listener.heard] == ["began", "ended"]


def test_who_stops_in_the_middle_of_a_cell_hears_nothing_of_its_end(shell, run, listener):
    before = {name: list(found) for name, found in shell.events.callbacks.items()}
    run("hub.add(listener)")
    run("hub.remove(listener); hub.remove(listener)")
    run("x = 1")
    assert [entry[0] for entry in listener.heard] == ["began", "ended", "began"]
    assert shell.events.callbacks == before


def test_a_listener_that_fails_costs_one_line_and_no_cell(shell, run, listener, capsys):
    class Failing(Listener):
        def cell_ended(self, cell, result, /):
            raise ZeroDivisionError("over nothing")

    failing = Failing()
    cell_events(shell).add(failing)
    cell_events(shell).add(listener)
    assert run("x = 41 + 1").success
    assert shell.user_ns["x"] == 42
    assert len(listener.heard) == 2
    assert capsys.readouterr().err == (
        "pytorch_memlab: the report of this cell failed: ZeroDivisionError: over nothing\n"
    )
    cell_events(shell).remove(failing)


def test_without_ipython_it_says_what_is_needed():
    with pytest.raises(UsageError, match="needs IPython: run it in a notebook"):
        current_shell()
