"""Blind, recordings are asked for the history by default: on a GPU there are no holders without."""

import pytest

from pytorch_memlab import LineProfiler
from pytorch_memlab.history.recorder import Recording


@pytest.fixture(autouse=True)
def _history_is_asked_for(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.config.getoption("--blind"):
        for kind in (LineProfiler, Recording):
            monkeypatch.setitem(kind.__init__.__kwdefaults__, "history", True)
