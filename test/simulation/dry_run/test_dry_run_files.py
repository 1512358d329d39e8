"""A dry run leaves files alone that would hold values which it does not have."""

from __future__ import annotations

import builtins
import bz2
import errno
import glob
import gzip
import importlib
import io
import json
import os
import pickle
import shutil
import sys
import tempfile
import types
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.render import html
from pytorch_memlab.render.notes import texts
from pytorch_memlab.simulation.dry_run.files import overlay

on_disk, PlainFile = os.listdir, io.FileIO  # not those that a run replaces
OLD = b"the only copy of a month of training" * 1000


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A dry run in a new folder, in which ``old`` is there already."""
    monkeypatch.chdir(tmp_path)
    Path("old").write_bytes(OLD)
    with simulate("8TiB", compute=False) as machine:
        yield machine


def checkpoint():
    return {
        "weight": torch.empty(2**20, 2**20, device="cuda"),
        "mask": torch.tensor([True, False]),
        "step": 7,
    }


def is_checkpoint(machine, loaded, device="cuda"):
    weight = loaded["weight"]
    return (
        weight.shape == (2**20, 2**20)
        and weight.device.type == device
        and machine.values.lacks_values(weight)
        and loaded["mask"].tolist() == [True, False]
        and loaded["step"] == 7
    )


def save_to_path(path):
    torch.save(checkpoint(), path)


def save_to_legacy_path(path):
    torch.save(checkpoint(), path, _use_new_zipfile_serialization=False)


def save_to_file(path):
    with open(path, "wb") as file:
        torch.save(checkpoint(), file)


def save_to_unbuffered_file(path):
    with open(path, "wb", buffering=0) as file:
        torch.save(checkpoint(), file)


def save_to_legacy_file(path):
    with path.open("w+b") as file:
        torch.save(checkpoint(), file, _use_new_zipfile_serialization=False)


def save_after_real_data(path):
    with open(path, "wb") as file:
        torch.save(torch.arange(10_000), file)
        torch.save(checkpoint(), file)


def save_to_bytes(path):
    buffer = io.BytesIO()
    torch.save(checkpoint(), buffer)
    path.write_bytes(buffer.getvalue())


def save_to_temporary_file(path):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        torch.save(checkpoint(), file)
    os.replace(file.name, path)


def save_beside_and_rename(path):
    torch.save(checkpoint(), "beside")
    Path("beside").rename(path)


def save_beside_and_copy(path):
    torch.save(checkpoint(), "beside")
    shutil.copyfile("beside", path)
    os.remove("beside")


def pickle_to_file(path):
    with open(path, "wb") as file:
        pickle.dump(checkpoint(), file)


def pickle_compressed(path):
    with gzip.open(path, "wb") as file:
        pickle.dump(checkpoint(), file)


def pickle_compressed_otherwise(path):
    with bz2.open(path, "wb") as file:
        pickle.dump(checkpoint(), file)


def save_into_zip(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        buffer = io.BytesIO()
        torch.save(checkpoint(), buffer)
        archive.writestr("model.pt", buffer.getvalue())


class Encoded:
    """A file of a program's own format, in whose bytes nothing is recognised."""

    def __init__(self, file):
        self.file = file

    def write(self, data):
        self.file.write(zlib.compress(bytes(data)))
        return len(data)


def save_in_own_format(path):
    with open(path, "wb") as file:
        torch.save(checkpoint(), Encoded(file))


def load_own_format(path):
    return torch.load(io.BytesIO(zlib.decompress(path.read_bytes())))


def load_pickle(path):
    with open(path, "rb") as file:
        return pickle.load(file)


def load_compressed(path):
    with gzip.open(path, "rb") as file:
        return pickle.load(file)


def load_compressed_otherwise(path):
    with bz2.open(path, "rb") as file:
        return pickle.load(file)


def load_second(path):
    with open(path, "rb") as file:
        assert torch.load(file).tolist() == list(range(10_000))
        return torch.load(file)


def load_from_zip(path):
    with zipfile.ZipFile(path) as archive:
        return torch.load(io.BytesIO(archive.read("model.pt")))


SAVED = [
    (save_to_path, torch.load),
    (save_to_legacy_path, torch.load),
    (save_to_file, torch.load),
    (save_to_unbuffered_file, torch.load),
    (save_to_legacy_file, torch.load),
    (save_to_bytes, torch.load),
    (save_to_temporary_file, torch.load),
    (save_beside_and_rename, torch.load),
    (save_beside_and_copy, torch.load),
    (save_into_zip, load_from_zip),
    (save_in_own_format, load_own_format),
    (pickle_to_file, load_pickle),
    (pickle_compressed, load_compressed),
    (pickle_compressed_otherwise, load_compressed_otherwise),
]
WAYS = pytest.mark.parametrize(("save", "load"), SAVED, ids=[save.__name__ for save, _ in SAVED])


@WAYS
def test_a_file_that_is_there_stays_and_its_path_gives_what_it_would_hold(machine, save, load):
    path = Path("old").absolute()

    save(path)

    assert is_checkpoint(machine, load(path))
    assert PlainFile(path).read() == OLD  # not through the ``open`` that the run has replaced
    assert on_disk() == ["old"]
    assert machine.kept_files.paths()[-1] == str(path)


@WAYS
def test_no_file_comes_up_where_none_was(machine, save, load):
    path = Path("new").absolute()

    save(path)

    assert is_checkpoint(machine, load(path))
    assert on_disk() == ["old"]


def test_the_first_file_is_named_on_standard_error_and_no_other(machine, capsys):
    save_to_path("old")
    save_to_path("new")

    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        "pytorch-memlab: dry run: old stays as it is; no file that is there is changed, and none is"
        " written with tensors that have no values (--allow-writes, or simulate(...,"
        " allow_writes=True), writes them)\n"
    )
    assert machine.kept_files.paths() == ("old", "new")


def test_a_new_file_that_loses_its_values_goes_and_is_named(machine, capsys):
    Path("new").write_bytes(b"values")
    assert (sorted(on_disk()), machine.kept_files.paths()) == (["new", "old"], ())

    save_to_path("new")

    assert is_checkpoint(machine, torch.load("new"))
    assert (on_disk(), machine.kept_files.paths()) == (["old"], ("new",))
    assert capsys.readouterr().err.startswith("pytorch-memlab: dry run: new stays as it is; ")


def test_what_is_loaded_lies_where_it_is_mapped_to_and_counts_there(machine):
    save_to_path("new")
    before = torch.cuda.memory_allocated()

    on_host = torch.load("new", map_location="cpu", mmap=True)
    assert is_checkpoint(machine, on_host, "cpu")
    assert torch.cuda.memory_allocated() == before
    on_gpu = torch.load("new", map_location="cuda:0")
    assert torch.cuda.memory_allocated() == before + 4 * 2**40 + 512
    assert is_checkpoint(machine, on_gpu)


def test_saving_again_from_what_was_loaded_keeps_the_file_too(machine):
    save_to_path("new")

    torch.save(torch.load("new"), "old")

    assert PlainFile("old").read() == OLD
    assert is_checkpoint(machine, torch.load("old"))


def test_views_of_one_storage_are_views_of_one_when_they_are_loaded(machine):
    whole = torch.empty(100, 100, device="cuda")
    torch.save([whole, whole[3:5]], "new")

    first, second = torch.load("new")

    assert second.shape == (2, 100)
    assert first.untyped_storage()._cdata == second.untyped_storage()._cdata


def test_a_copy_through_memory_works_as_ever(machine):
    buffer = io.BytesIO()
    torch.save(checkpoint(), buffer)
    buffer.seek(0)

    assert is_checkpoint(machine, torch.load(buffer))
    assert len(buffer.getvalue()) < 10_000
    assert machine.kept_files.paths() == ()


@pytest.mark.parametrize("is_new", [True, False])
def test_data_with_values_is_written_as_it_is_without_a_dry_run(tmp_path, monkeypatch, is_new):
    monkeypatch.chdir(tmp_path)
    data = {"step": torch.tensor(3), "data": torch.arange(100_000), "rate": 0.5}
    options = {"_use_new_zipfile_serialization": is_new}
    torch.save(data, "same", **options)
    expected = Path("same").read_bytes()
    Path("same").unlink()

    with simulate("8TiB", compute=False) as machine:
        torch.save(data, "same", **options)
        assert Path("same").read_bytes() == expected
        with open("file", "wb") as file:
            file.write(OLD)
        assert machine.kept_files.paths() == ()

    assert Path("file").read_bytes() == OLD


def test_a_file_with_values_takes_the_place_of_one_that_was_kept(machine):
    save_to_path("old")
    torch.save(torch.arange(3), "old")

    assert torch.load("old").tolist() == [0, 1, 2]
    assert PlainFile("old").read() == OLD


def test_an_overwritten_file_holds_what_was_written_for_the_program_alone(machine):
    with open("old", "wb") as file:
        file.write(b"new")
        os.write(file.fileno(), b"er")

    assert Path("old").read_bytes() == b"ernew"
    assert PlainFile("old").read() == OLD
    assert machine.kept_files.paths() == ("old",)


def test_a_link_and_what_it_leads_to_are_one_file(machine):
    Path("link").symlink_to("old")

    save_to_path("link")

    assert PlainFile("old").read() == OLD
    assert is_checkpoint(machine, torch.load("old"))
    assert Path("link").is_symlink()


def test_a_folder_that_is_moved_takes_its_files_along(machine):
    Path("temporary").mkdir()
    save_to_path("temporary/model.pt")
    os.rename("temporary", "final")

    assert is_checkpoint(machine, torch.load("final/model.pt"))
    assert on_disk("final") == []


def test_a_kept_file_has_a_size_and_can_be_removed(machine):
    save_to_path("old")

    assert 0 < os.path.getsize("old") < 10_000
    os.remove("old")

    assert not os.path.exists("old")
    assert os.listdir() == []
    assert PlainFile("old").read() == OLD
    assert machine.kept_files.paths() == ("old (not removed)",)


@pytest.mark.parametrize("save", [save_to_path, save_to_file])
def test_a_program_that_looks_for_its_file_first_finds_it(machine, save):
    path = Path("new")
    assert not path.exists()

    save(path)

    assert os.path.exists(path)
    assert os.path.isfile("new")
    assert path.is_file()
    assert 0 < path.stat().st_size == os.path.getsize(path) == os.stat("new").st_size < 10_000
    path.chmod(0o600)
    shutil.copystat("old", "new")
    assert os.access("new", os.R_OK)
    assert os.stat("new", follow_symlinks=False).st_size == path.stat().st_size
    assert path.stat().st_mtime_ns == os.stat("old").st_mtime_ns
    os.rename(path, "newer")
    assert (path.exists(), os.path.isfile("newer")) == (False, True)
    save("newer")
    os.remove("newer")
    assert not os.path.exists("newer")
    assert on_disk() == ["old"]


def test_a_file_in_a_folder_is_copied_and_removed_with_it(machine):
    folder = Path("folder")
    (folder / "inner").mkdir(parents=True)
    save_to_path(folder / "inner" / "new")
    save_to_path(folder / "new")

    shutil.copytree(folder, "best")
    shutil.rmtree(folder)

    for path in (Path("best", "new"), Path("best", "inner", "new")):
        assert is_checkpoint(machine, torch.load(path))
    assert not (folder / "new").exists()
    folder.mkdir()
    assert not (folder / "new").exists()


def test_lists_of_a_folder_show_its_kept_files(machine):
    save_to_path("new.pt")
    save_to_path("old")

    assert os.listdir() == ["old", "new.pt"]
    assert sorted(path.name for path in Path().iterdir()) == ["new.pt", "old"]
    assert [*glob.glob("*.pt"), *map(str, Path().glob("*.pt"))] == ["new.pt"] * 2
    [(_, _, names)] = os.walk(".")
    assert sorted(names) == ["new.pt", "old"]
    with os.scandir() as entries:
        entry = next(one for one in entries if one.name == "new.pt")
    assert is_checkpoint(machine, torch.load(entry))
    assert (entry.is_file(), entry.is_dir(), entry.stat().st_size) == (
        True, False, os.path.getsize("new.pt")
    )  # fmt: skip
    os.remove(entry)
    assert os.listdir() == on_disk() == ["old"]


def test_a_file_that_was_found_is_gone_when_the_run_ends(tmp_path):
    path, stat = tmp_path / "new", os.stat
    with simulate("8TiB", compute=False):
        save_to_path(path)
        assert path.is_file()
        assert os.stat in os.supports_follow_symlinks
    assert not path.exists()
    assert os.stat is stat


def test_a_second_name_of_a_file_gives_what_it_would_hold(machine):
    save_to_path("new")

    os.link("new", "hard")
    os.symlink("new", "soft")

    for name in ("hard", "soft"):
        assert os.path.isfile(name)
        assert is_checkpoint(machine, torch.load(name))
    assert sorted(on_disk()) == ["old", "soft"]


@pytest.mark.parametrize("missing", ["missing", "folder/missing", "gone"])
def test_what_is_not_there_gets_no_second_name(machine, missing):
    Path("gone").write_text("x")
    os.remove("gone")
    with pytest.raises(FileNotFoundError) as raised:
        os.link(missing, "hard")

    assert (raised.value.filename, raised.value.filename2) == (missing, "hard")
    assert not os.path.lexists("hard")


@pytest.mark.parametrize("missing", ["missing", "folder/missing", "gone"])
def test_what_is_not_there_is_not_changed(machine, missing):
    Path("gone").write_text("x")
    os.remove("gone")
    with pytest.raises(FileNotFoundError) as raised:
        os.chmod(missing, 0o600)

    assert (raised.value.errno, raised.value.filename) == (errno.ENOENT, missing)


def test_a_module_that_holds_a_function_by_its_name_calls_that_of_the_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old").write_bytes(OLD)
    module = types.ModuleType("a_module_of_the_program")
    module.remove = remove = os.remove
    monkeypatch.setitem(sys.modules, module.__name__, module)
    with simulate("8TiB", compute=False):
        module.remove("old")
        assert not os.path.exists("old")

    assert Path("old").read_bytes() == OLD
    assert module.remove is remove


def test_a_link_is_copied_as_a_link(machine):
    os.symlink("old", "link")

    shutil.copy2("link", "other", follow_symlinks=False)

    assert os.readlink("other") == "old"


def test_a_file_opened_to_be_changed_or_added_to_stays(machine):
    for mode in ("r+b", "ab"):
        with open("old", mode) as file:
            torch.save(checkpoint(), file)

    assert PlainFile("old").read() == OLD
    assert machine.kept_files.paths() == ("old",)


def test_what_a_program_wrote_before_a_tensor_stays_before_it(machine):
    with open("new", "wb") as file:
        file.write(b"head")
        file.flush()
        torch.save(checkpoint(), file)
    with open("new", "rb") as file:
        assert file.read(6) == b"headPK"


def test_a_missing_folder_is_an_error_as_ever(machine):
    with pytest.raises(RuntimeError, match=r"Parent directory nowhere does not exist"):
        save_to_path("nowhere/new")
    with pytest.raises(FileNotFoundError):
        save_to_file("nowhere/new")


def test_an_error_amid_saving_leaves_the_file_as_it_was(machine):
    with pytest.raises((pickle.PicklingError, AttributeError)):
        torch.save([checkpoint(), lambda: 0], "old")

    assert PlainFile("old").read() == OLD


def test_writes_that_are_allowed_are_done(tmp_path):
    path = tmp_path / "model.pt"
    with simulate("a100", compute=False, allow_writes=True):
        torch.save(torch.empty(1000, 1000, device="cuda"), path)

    assert torch.load(path, map_location="cpu").shape == (1000, 1000)


def test_with_arithmetic_files_are_written(tmp_path):
    path = tmp_path / "model.pt"
    with simulate("a100"):
        torch.save(torch.full((100, 100), 3.0, device="cuda"), path)

    assert torch.load(path, map_location="cpu").sum() == 30_000


def test_all_is_given_back_and_no_copy_stays(tmp_path, monkeypatch):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    owners = (builtins, io, os, os.path, shutil, np, torch, torch.serialization, torch.jit)
    before = [dict(vars(owner)) for owner in owners]

    with simulate("8TiB", compute=False):
        save_to_path(tmp_path / "new")
        assert len(on_disk(folder)) == 1
        unclosed = open(tmp_path / "late", "wb")  # noqa: SIM115
        torch.save(checkpoint(), unclosed)
    unclosed.close()

    assert on_disk(folder) == []
    assert on_disk(tmp_path) == ["temporary"]
    assert [dict(vars(owner)) for owner in owners] == before


def test_a_forked_process_leaves_the_copies_of_its_parent(machine):
    save_to_path("new")
    child = os.fork()
    if child == 0:
        save_to_path("new")
        machine.kept_files.close()
        os._exit(0)
    os.waitpid(child, 0)

    assert is_checkpoint(machine, torch.load("new"))


# NumPy


def zeros_of(machine):
    return torch.empty(1000, 1000, device="cuda").cpu().numpy()


def save_array(path, array):
    with open(path, "wb") as file:
        np.save(file, array)


def save_zipped(path, array):
    with open(path, "wb") as file:
        np.savez(file, array=array)


def write_bytes_of_array(path, array):
    with open(path, "wb") as file:
        file.write(b"header")
        file.write(array.tobytes())


def write_array(path, array):
    with open(path, "wb") as file:
        file.write(b"header")
        file.write(array)


@pytest.mark.parametrize(
    "write",
    [
        save_array,
        save_zipped,
        write_bytes_of_array,
        write_array,
        lambda path, array: array.tofile(path),
        lambda path, array: array.dump(path),
        lambda path, array: np.savetxt(path, array[:2]),
        lambda path, array: save_array(path, array * 2 + 1),
        lambda path, array: save_array(path, np.concatenate([np.ones((1, 1000)), array])),
        lambda path, array: save_array(path, np.array([array[0], array[1]])),
        lambda path, array: save_array(path, np.asarray(array)[3:]),
        lambda path, array: save_array(path, array.astype("float16").T),
        lambda path, array: save_array(path, np.asarray(torch.from_numpy(array).numpy())),
    ],
)
def test_arrays_of_tensors_without_values_are_not_written(machine, write):
    write("old", zeros_of(machine))

    assert PlainFile("old").read() == OLD
    assert machine.kept_files.paths() == ("old",)


def test_a_new_map_is_kept_and_named(machine, capsys):
    mapped = np.memmap("new", dtype=np.uint8, mode="w+", shape=(3,))
    mapped[1] = 7
    mapped.flush()

    assert Path("new").read_bytes() == b"\0\7\0"
    assert (on_disk(), machine.kept_files.paths()) == (["old"], ("new",))
    assert capsys.readouterr().err.startswith("pytorch-memlab: dry run: new stays as it is; ")


def test_arrays_can_be_read_back(machine):
    array = zeros_of(machine)
    np.save("new.npy", array)
    np.savez("new.npz", array=array, real=np.arange(3))
    array.tofile("new.bin")
    np.savetxt("new.txt", array[:2, :3])

    assert np.load("new.npy").shape == (1000, 1000)
    assert np.load("new.npz")["array"].shape == (1000, 1000)
    assert np.load("new.npz")["real"].tolist() == [0, 1, 2]
    assert np.fromfile("new.bin", np.float32).size == 1_000_000
    assert np.loadtxt("new.txt").tolist() == [[0, 0, 0], [0, 0, 0]]
    assert on_disk() == ["old"]
    np.save("old", np.load("new.npy"))
    assert PlainFile("old").read() == OLD


def test_other_arrays_are_written(machine):
    np.save("ids.npy", torch.arange(5).numpy())
    np.arange(3).tofile("old")

    assert np.load(io.BytesIO(PlainFile("ids.npy").read())).tolist() == [0, 1, 2, 3, 4]
    assert Path("old").read_bytes() == np.arange(3).tobytes()
    assert PlainFile("old").read() == OLD


def test_arrays_without_values_are_arrays(machine):
    array = zeros_of(machine)

    assert type(array.sum()) is np.float32
    assert type(array[0, 0]) is np.float32
    assert f"{array.mean():.2f}" == "0.00"
    assert pickle.loads(pickle.dumps(array)).shape == array.shape


# TorchScript and checkpoints of many files


def test_scripted_modules_are_not_written(machine):
    module = torch.jit.script(torch.nn.Linear(100, 100).cuda())
    module.weight.data.normal_()
    torch.jit.save(module, "old")
    module.save("new")
    with open("newer", "wb") as file:
        torch.jit.save(module, file)

    for path in ("old", "new", "newer"):
        loaded = torch.jit.load(path)
        assert machine.values.lacks_values(loaded.weight)
        assert loaded(torch.ones(3, 100)).shape == (3, 100)
    assert PlainFile("old").read() == OLD
    assert on_disk() == ["old"]


def test_a_distributed_checkpoint_stays_as_a_whole(tmp_path, monkeypatch):
    from torch.distributed import checkpoint as dcp

    monkeypatch.chdir(tmp_path)
    old = {"weight": torch.ones(100, 100), "step": torch.tensor(1)}
    dcp.save(old, checkpoint_id="folder")
    files = {path: path.read_bytes() for path in Path("folder").iterdir()}

    with simulate("a100", compute=False) as machine:
        new = {"weight": torch.empty(100, 100, device="cuda"), "step": torch.tensor(2)}
        dcp.save(new, checkpoint_id="folder")
        loaded = {"weight": torch.ones(100, 100, device="cuda"), "step": torch.tensor(0)}
        dcp.load(loaded, checkpoint_id="folder")
        assert loaded["step"] == 2
        assert machine.values.lacks_values(loaded["weight"])
        dcp.async_save(new, checkpoint_id="other").result()
        assert machine.kept_files.paths() == ("folder", "other")
        Path("other/config.bin").write_bytes(OLD)
        Path("beside").write_bytes(OLD)
        os.replace("beside", "other/report.html")

    assert {path: path.read_bytes() for path in Path("folder").iterdir()} == files
    assert sorted(on_disk("other")) == ["config.bin", "report.html"]
    dcp.load(old, checkpoint_id="folder")
    assert old["step"] == 1


# Reports

RESUME = """\
import os, torch


def train():
    model = torch.nn.Linear(1000, 1000)
    model.load_state_dict(torch.load("model.pt")["model"])
    model.cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(8, 1000, device="cuda")).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "model.pt")
    return torch.load("model.pt")


loaded = train()
print(sorted(loaded), len(loaded["optimizer"]["state"]), loaded["model"]["weight"].device)
"""
NOTE = "left as it was by the dry run (1 path): model.pt"


@pytest.mark.parametrize("output", [None, "out.txt", "out.html", "out.json"])
def test_a_script_that_resumes_keeps_its_checkpoint(tmp_path, monkeypatch, capsys, output):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": torch.nn.Linear(1000, 1000).state_dict()}, "model.pt")
    before = Path("model.pt").read_bytes()
    Path("resume.py").write_text(RESUME)

    arguments = ["-o", output] if output else []
    assert main(["run", "--dry-run", "--gpu", "a100", *arguments, "resume.py"]) == 0

    told = capsys.readouterr()
    assert Path("model.pt").read_bytes() == before
    assert told.out.startswith("['model', 'optimizer'] 2 cuda:0\n")
    assert told.err.count("model.pt stays as it is") == 1
    report = told.out if output is None else Path(output).read_text()
    assert NOTE in report
    if output == "out.json":
        assert NOTE in json.loads(report)["notes"]


def test_a_script_may_be_allowed_to_write(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.save({"model": torch.nn.Linear(1000, 1000).state_dict()}, "model.pt")
    Path("resume.py").write_text(RESUME)

    assert main(["run", "--dry-run", "--allow-writes", "--gpu", "a100", "resume.py"]) == 0

    told = capsys.readouterr()
    assert "left as it was" not in told.out
    assert "stays as it is" not in told.err
    assert sorted(torch.load("model.pt", map_location="cpu")) == ["model", "optimizer"]


def test_allowed_writes_are_those_of_a_dry_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("print('ran')")

    assert main(["run", "--allow-writes", "script.py"]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab run: error: --allow-writes is for --dry-run: any other run writes its"
        " files\n"
    )


def test_the_profiler_names_them_also_when_the_run_has_ended(tmp_path):
    def work():
        torch.save(torch.empty(1000, 1000, device="cuda"), tmp_path / "new")

    with simulate("a100", compute=False), LineProfiler(work) as profiler:
        work()

    note = f"left as it was by the dry run (1 path): {tmp_path / 'new'}"
    report = profiler.display().report
    assert note in texts(report.notes)
    assert note in str(profiler.display())
    assert note in html.render(report)
    profiler.save(tmp_path / "profile.json")
    assert note in json.loads((tmp_path / "profile.json").read_text())["notes"]


def test_arrays_of_other_objects_are_made_in_a_dry_run():
    with simulate("24GiB", compute=False):
        array = np.array([np.dtype("int64"), np.float32(1)], dtype=object)
    assert array.tolist() == [np.dtype("int64"), np.float32(1)]


# What is left as it was


def test_a_module_of_an_earlier_dry_run_is_watched_in_a_later_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("old").write_bytes(OLD)
    Path("imported_in_a_run.py").write_text("from os import remove\nfrom io import open\n")
    monkeypatch.syspath_prepend(tmp_path)
    with simulate("8TiB", compute=False):
        import imported_in_a_run as module  # type: ignore[import-not-found]
    for _ in range(2):
        with simulate("8TiB", compute=False):
            module.remove("old")
            assert not os.path.exists("old")
            with module.open("old", "w") as file:
                file.write("new")
        assert Path("old").read_bytes() == OLD

    module.remove("old")
    assert not os.path.exists("old")


def test_stale_bytecode_stays(machine, monkeypatch):
    monkeypatch.syspath_prepend(os.getcwd())
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    Path("fresh_module.py").write_text("x = 1\n")
    import fresh_module  # type: ignore[import-not-found]

    cached = Path(fresh_module.__cached__)
    before = PlainFile(cached).read()
    Path("fresh_module.py").write_text("x = 22\n")
    importlib.reload(fresh_module)
    assert fresh_module.x == 22
    assert PlainFile(cached).read() == before


def test_a_file_without_room_for_a_copy_is_an_error_that_says_what_to_do(machine, monkeypatch):
    monkeypatch.setattr(overlay, "_MOST_OF_DISK", 0)

    with pytest.raises(OSError, match=r"no room for it \(TMPDIR names another folder"):
        open("old", "r+b")  # noqa: SIM115
    with open("old", "wb") as file:
        file.write(b"new")
    assert PlainFile("old").read() == OLD


def test_a_new_folder_that_lacks_a_file_goes_when_the_run_ends(tmp_path, monkeypatch):
    # A program would resume from it, as it looks like the newest checkpoint.
    monkeypatch.chdir(tmp_path)
    Path("old").mkdir()
    with simulate("8TiB", compute=False):
        for folder in ("old", "checkpoint.tmp", "logs"):
            os.makedirs(folder, exist_ok=True)
            Path(folder, "step.json").write_text("7")
        torch.save(checkpoint(), "checkpoint.tmp/weights.pt")
        os.rename("checkpoint.tmp", "checkpoint-7")
        torch.save(checkpoint(), "old/weights.pt")
        torch.save(checkpoint(), "weights.pt")
        assert sorted(os.listdir("checkpoint-7")) == ["step.json", "weights.pt"]
    assert sorted(on_disk(tmp_path)) == ["logs", "old"]
    assert (on_disk("old"), on_disk("logs")) == (["step.json"], ["step.json"])


def test_reports_are_written_over_older_ones(machine):
    def work():
        torch.ones(3, device="cuda")

    with LineProfiler(work) as profiler:
        work()
    profiler.save("old", force=True)

    assert json.loads(PlainFile("old").read())["notes"] is not None
    assert machine.kept_files.paths() == ()


def test_nested_dry_runs_share_what_they_keep(machine):
    with simulate("a100", compute=False) as inner:
        torch.save(torch.empty(1000, 1000, device="cuda"), "old")
        assert torch.load("old").shape == (1000, 1000)
        assert inner.kept_files is machine.kept_files

    assert torch.load("old", map_location="cpu").shape == (1000, 1000)
    assert PlainFile("old").read() == OLD


def test_threads_see_the_changes_of_each_other(machine):
    def change(name):
        for number in range(20):
            Path(name).write_text(str(number))
            os.rename(name, f"{name}.moved")
            os.rename(f"{name}.moved", name)
            assert name in os.listdir()

    for number in range(8):
        PlainFile(f"file{number}", "w").write(b"older")
    names = [f"file{number}" for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(change, names))

    assert [Path(name).read_text() for name in names] == ["19"] * 8
    assert [PlainFile(name).read() for name in names] == [b"older"] * 8


def test_a_folder_with_one_changed_file_is_listed_as_python_does_it(machine):
    Path("folder").mkdir()
    Path("second").write_text("x")
    with open("old", "w") as file:
        file.write("new")

    with os.scandir() as entries:
        listed = {entry.name: (entry.is_file(), entry.is_dir(), entry.path) for entry in entries}
    assert listed == {
        "folder": (False, True, "./folder"),
        "old": (True, False, "./old"),
        "second": (True, False, "./second"),
    }
    with os.scandir(b".") as entries:
        assert sorted(entry.name for entry in entries) == [b"folder", b"old", b"second"]


def test_errors_name_the_path_that_the_program_gave(machine):
    os.rename("old", "newer")
    for action in (
        lambda: open("old").close(),
        lambda: os.stat("old"),
        lambda: os.remove("old"),
        lambda: os.rename("old", "x"),
        lambda: os.listdir("old"),
        lambda: os.rmdir("old"),
    ):
        with pytest.raises(FileNotFoundError) as error:
            action()
        assert error.value.filename == "old"
    with pytest.raises(NotADirectoryError) as error:
        os.listdir("newer")
    assert error.value.filename == "newer"
    with pytest.raises(IsADirectoryError):
        os.remove(".")
    with pytest.raises(FileExistsError):
        os.mkdir("newer")
    with pytest.raises(NotADirectoryError):
        os.mkdir("newer/x")
