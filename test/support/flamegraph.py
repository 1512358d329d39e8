"""PyTorch's own flame graphs, drawn by a program that PyTorch downloads where there is none."""

from __future__ import annotations

from inspect import getsource
from pathlib import Path

import pytest
from torch.cuda import _memory_viz

draws_flame_graphs = pytest.mark.skipif(
    ".cache" not in getsource(_memory_viz.format_flamegraph),
    reason="torch 2.6 draws with a program in /tmp, which is no test's own",
)


def prepare_drawer(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a program there that writes down what it is to draw."""
    drawer = home / ".cache" / "flamegraph.pl"
    drawer.parent.mkdir()
    drawer.write_text("#!/bin/sh\ncat\n")
    drawer.chmod(0o755)
    monkeypatch.setenv("HOME", str(home))
