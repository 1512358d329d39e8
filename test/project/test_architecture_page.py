"""The page on the architecture: it draws the layers of `make lint`, and names every package."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
LINTER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
LAYERS = {one["id"]: one["layers"] for one in LINTER["contracts"] if one["type"] == "layers"}


def picture(first):
    """The lines of a picture that begins with a name, each as a set of names."""
    (found,) = re.findall(rf"^```\n(\s*{first}\b.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    return [{name.removesuffix(".py") for name in line.split()} for line in found.splitlines()]


@pytest.mark.parametrize(("contract", "first"), [("packages", "cli"), ("simulation", "simulator")])
def test_the_picture_has_the_layers_of_the_contract(contract, first):
    layers = [set(re.split(r" [|:] ", layer)) for layer in LAYERS[contract]]
    drawn = picture(first)
    flat = [name for layer in layers for name in sorted(layer) if name != "__main__"]
    assert sorted(name for line in drawn for name in line) == sorted(flat)
    place = {name: number for number, line in enumerate(drawn) for name in line}
    for upper, lower in pairwise(layers):
        for one in upper - {"__main__"}:
            assert all(place[one] <= place[other] for other in lower), (one, lower)


@pytest.mark.parametrize("folder", ["", "simulation"])
def test_every_package_has_a_row(folder):
    rows = "".join(re.findall(r"^\| (`.*?) \|", PAGE, re.MULTILINE))
    for path in (ROOT / "pytorch_memlab" / folder).iterdir():
        if (path / "__init__.py").exists():
            assert f"`{path.name}/`" in rows
        elif path.suffix == ".py" and not path.stem.startswith("__"):
            assert f"`{path.name}`" in rows or path.stem in ("columns", "memory_fields", "records")


def test_the_row_of_common_names_its_rooms():
    (row,) = re.findall(r"^\| `_common/` \| (.*?) \|$", PAGE, re.MULTILINE)
    folders = (ROOT / "pytorch_memlab" / "_common").iterdir()
    rooms = {folder.name for folder in folders if (folder / "__init__.py").exists()}
    assert set(re.findall(r"`(\w+)`", row)) == rooms


@pytest.mark.parametrize("page", ["architecture-profiler", "architecture-simulator"])
def test_every_path_of_a_walk_is_there(page):
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    paths = set(re.findall(r"`((?:\w+/)+(?:\w+\.\w+)?)`", text))
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists() or (ROOT / "pytorch_memlab" / path).exists(), path


@pytest.mark.parametrize("page", ["architecture-profiler", "architecture-simulator"])
def test_every_note_of_a_walk_is_there(page):
    text = " ".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8").split())
    notes = set(re.findall(r"Note \[([^]]+)\]", text))
    assert notes
    sources = "".join(path.read_text() for path in (ROOT / "pytorch_memlab").rglob("*.py"))
    for note in notes:
        assert f"\nNote [{note}]\n" in sources, note


def test_the_readme_of_the_simulation_has_its_layers():
    text = (ROOT / "pytorch_memlab" / "simulation" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \|", text, re.MULTILINE)
    named = [set(re.findall(r"`(\w+)(?:/|\.py)`", row)) for row in rows]
    place = {name: number for number, names in enumerate(named) for name in names}
    layers = [set(re.split(r" [|:] ", layer)) for layer in LAYERS["simulation"]]
    assert set(place) == set().union(*layers) - {"__main__"}
    for upper, lower in pairwise(layers):
        assert all(place[one] <= place[other] for one in upper for other in lower), (upper, lower)
