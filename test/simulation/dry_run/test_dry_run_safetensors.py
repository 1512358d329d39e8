"""A dry run leaves files of safetensors alone that would hold values which it does not have."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from pytorch_memlab import simulate

safetensors = pytest.importorskip("safetensors")
safetensors_torch = pytest.importorskip("safetensors.torch")
safetensors_numpy = pytest.importorskip("safetensors.numpy")

on_disk, PlainFile = os.listdir, io.FileIO  # not those that a run replaces
OLD = b"the only copy of a month of training" * 1000


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A dry run in a new folder, in which ``old`` is there already."""
    monkeypatch.chdir(tmp_path)
    Path("old").write_bytes(OLD)
    with simulate("8TiB", compute=False) as machine:
        yield machine


def tensors():
    return {"weight": torch.empty(2**10, 2**10, device="cuda"), "ids": torch.arange(3)}


def assert_untouched():
    assert PlainFile("old").read() == OLD
    assert on_disk() == ["old"]


def test_files_of_tensors(machine):
    safetensors_torch.save_file(tensors(), "old", metadata={"format": "pt"})
    safetensors_torch.save_file(tensors(), "new")

    for path in ("old", "new"):
        loaded = safetensors_torch.load_file(path, device="cuda:0")
        assert loaded["weight"].is_cuda
        assert machine.values.lacks_values(loaded["weight"])
        assert loaded["ids"].tolist() == [0, 1, 2]
    assert_untouched()
    assert machine.kept_files.paths() == ("old", "new")


def test_a_file_is_opened_as_the_library_opens_it(machine):
    safetensors_torch.save_file(tensors(), "old", metadata={"format": "pt"})

    with safetensors.safe_open("old", framework="pt", device="cuda:0") as file:
        assert list(file.keys()) == ["ids", "weight"]
        assert file.metadata() == {"format": "pt"}
        assert file.get_tensor("weight").is_cuda
        part = file.get_slice("weight")
        assert (part.get_shape(), part.get_dtype()) == ([1024, 1024], "F32")
        assert part[:2].shape == (2, 1024)


def test_a_library_that_holds_the_reader_by_its_name_reads_a_kept_file(tmp_path, monkeypatch):
    library = ModuleType("library")
    library.safe_open = safetensors.safe_open
    monkeypatch.setitem(sys.modules, "library", library)
    path = tmp_path / "new"

    with simulate("8TiB", compute=False):
        safetensors_torch.save_file(tensors(), path)
        assert os.path.isfile(path)
        with library.safe_open(path, framework="pt") as file:
            assert file.get_slice("weight").get_shape() == [1024, 1024]

    assert library.safe_open is safetensors.safe_open
    assert not path.exists()


def test_modules_and_bytes(machine):
    module = torch.nn.Linear(1000, 1000, device="cuda")
    module.weight.data.normal_()
    safetensors_torch.save_model(module, "old")
    assert safetensors_torch.load_model(module, "old") == (set(), [])

    data = safetensors_torch.save(tensors())
    assert machine.values.lacks_values(safetensors_torch.load(data)["weight"])
    Path("old").write_bytes(data)
    assert machine.values.lacks_values(safetensors_torch.load_file("old")["weight"])
    assert_untouched()


def test_arrays(machine):
    safetensors_numpy.save_file({"weight": tensors()["weight"].cpu().numpy()}, "old")

    assert safetensors_numpy.load_file("old")["weight"].shape == (1024, 1024)
    assert_untouched()


def test_tensors_with_values_are_written(machine):
    safetensors_torch.save_file({"ids": torch.arange(3)}, "new")
    safetensors_torch.save_file({"ids": torch.arange(4)}, "old")

    assert safetensors_torch.load(PlainFile("new").read())["ids"].tolist() == [0, 1, 2]
    assert safetensors_torch.load_file("new")["ids"].tolist() == [0, 1, 2]
    assert safetensors_torch.load_file("old")["ids"].tolist() == [0, 1, 2, 3]
    assert PlainFile("old").read() == OLD
    assert machine.kept_files.paths() == ("old",)


def test_the_mistakes_of_the_library_are_told(machine):
    weight = torch.empty(100, 100, device="cuda")
    with pytest.raises(RuntimeError, match="share memory"):
        safetensors_torch.save_file({"one": weight, "other": weight}, "old")

    assert_untouched()
