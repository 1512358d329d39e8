"""``MemReporter`` in IPython: tensors have the names that the user gave them."""

from __future__ import annotations

import re
import sys

import pytest
import torch

from pytorch_memlab import MemReporter

META = torch.device("meta")


@pytest.fixture
def names(shell):
    shell.user_ns.update(torch=torch, MemReporter=MemReporter, META=META)
    return shell.user_ns


def listed(snapshot) -> dict[str, int]:
    """Rows with a name; tensors of shells that earlier tests left have numbers."""
    rows = snapshot.on(META).rows
    return {row.name: row.numel for row in rows if not re.match(r"\w*Tensor\d+\b", row.name)}


def test_variables_of_cells_have_their_names(run, names):
    run("keep = torch.empty(3, device='meta'); batch = {'x': torch.empty(4, device='meta')}")
    run("snapshot = MemReporter().snapshot()")
    assert listed(names["snapshot"]) == {"keep": 3, "batch['x']": 4}


def test_variables_of_cells_have_their_names_in_a_function_of_a_module_too(
    run, names, tmp_path, monkeypatch
):
    (tmp_path / "tools_of_a_user.py").write_text(
        "from pytorch_memlab import MemReporter\ndef look():\n    return MemReporter().snapshot()\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    run("keep = torch.empty(3, device='meta')")
    run("import tools_of_a_user; snapshot = tools_of_a_user.look()")
    sys.modules.pop("tools_of_a_user")
    assert listed(names["snapshot"]) == {"keep": 3}


def test_variables_of_a_script_have_their_names(run, names, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\nfrom pytorch_memlab import MemReporter\n"
        "keep = torch.empty(3, device='meta')\nsnapshot = MemReporter().snapshot()\n"
    )
    run(f"%run {script}")
    assert listed(names["snapshot"]) == {"keep": 3}


def test_a_leak_has_the_name_of_the_list_that_grows(run, names):
    run("seen = []; others = [torch.empty(1)]\nreporter = MemReporter()")
    run("loop = reporter.leaks(range(4))\nfor i in loop:\n    seen.append(torch.empty(256))")
    assert [each.name for each in names["loop"].growing] == ["seen[*]"]
    assert "run_code" not in str(names["loop"])
