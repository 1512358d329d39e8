"""The contracts on imports, in a copy of the package with an import that breaks each of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("importlinter", reason="comes with the linters of the extra `dev`")

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("lint-imports")

BROKEN = {
    # Imports for types alone count, and imports in functions.
    "scopes/__init__.py": "if TYPE_CHECKING:\n    from ..render import html",
    "simulation/hardware/gpu.py": "def late():\n    from ..machine import active",
    "notebook/magics.py": "from ..simulation.machine import active",
    "devices/cpu.py": "from ..simulation.allocator import segments",
    "tensors/memory.py": "from . import saved",
    "tensors/saved.py": "from . import memory",
}


def test_each_contract_refuses_an_import_that_breaks_it(tmp_path):
    shutil.copytree(
        ROOT / "pytorch_memlab",
        tmp_path / "pytorch_memlab",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, line in BROKEN.items():
        with (tmp_path / "pytorch_memlab" / name).open("a") as file:
            file.write(f"\n{line}\n")

    done = subprocess.run(
        [COMMAND, "--no-cache", "--no-logo"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "NO_COLOR": "1", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )

    found = done.stdout
    assert re.findall(r"^Contracts: .*", found, re.MULTILINE) == ["Contracts: 0 kept, 5 broken."]
    for arrow in (
        "pytorch_memlab.scopes -> pytorch_memlab.render.html",
        "pytorch_memlab.simulation.hardware.gpu -> pytorch_memlab.simulation.machine.active",
        "pytorch_memlab.notebook.magics -> pytorch_memlab.simulation.machine.active",
        "pytorch_memlab.devices.cpu -> pytorch_memlab.simulation.allocator.segments",
        "No cycles are allowed in pytorch_memlab.tensors.",
    ):
        assert arrow in re.sub(r"->\s+", "-> ", found), found
