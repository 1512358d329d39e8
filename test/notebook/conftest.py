"""A fresh IPython shell for every test, with nothing of another test left in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def shell() -> Iterator[Any]:
    """A terminal's shell without a terminal; the hub must be empty when the test has ended."""
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    from pytorch_memlab.notebook.cell_events import cell_events

    # No file of the user's history, nor the thread that writes it.
    shell = InteractiveShell.instance(config=Config(HistoryManager={"enabled": False}))
    shell.run_line_magic("colors", "nocolor")
    yield shell
    left = list(cell_events(shell).listeners)
    InteractiveShell.clear_instance()
    assert left == []


@pytest.fixture
def run(shell: Any) -> Any:
    """Run a cell as a user does."""
    return lambda source: shell.run_cell(source, store_history=True)
