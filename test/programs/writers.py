"""Ways to change files in a dry run: each runs over older files, in a process with an audit hook.

Usage: ``writers.py FOLDER RESULT``. For each way the result has what it changed on the disk, the
events of Python that would have changed something, and the error of the program itself.
"""

from __future__ import annotations

import array
import bz2
import codecs
import contextlib
import csv
import dbm.dumb
import fcntl
import fileinput
import gzip
import hashlib
import io
import json
import logging
import logging.handlers
import lzma
import mmap
import multiprocessing
import os
import pickle
import plistlib
import shelve
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import traceback
import wave
import zipfile
from pathlib import Path

import numpy as np
import torch

from pytorch_memlab import simulate

GOOD = b"a month of training" * 1000
WRITERS = {}
_stat, _lstat, _walk_names, _readlink = os.stat, os.lstat, os.listdir, os.readlink
_raw_open = open


def writer(function):
    WRITERS[function.__name__] = function
    return function


def made(path, kind=bytes):
    """The content of a file, as the program sees it."""
    with open(path, "rb" if kind is bytes else "r") as file:
        return file.read()


class Data:
    """Tensors without values, and what is made of them."""

    def __init__(self):
        self.tensor = torch.randn(300, 1000, device="cuda")
        self.cpu = self.tensor.cpu()
        self.array = self.cpu.numpy()
        self.scalar = (self.tensor * 2).sum()

    def same(self, loaded):
        weight = loaded["w"] if isinstance(loaded, dict) else loaded
        assert tuple(weight.shape) == (300, 1000), weight.shape


# torch


@writer
def torch_save(d):
    torch.save({"w": d.tensor}, "old")
    d.same(torch.load("old"))


@writer
def torch_save_path(d):
    torch.save({"w": d.tensor}, Path("old"))
    d.same(torch.load(Path("old"), map_location="cpu", mmap=True))


@writer
def torch_save_bytes_path(d):
    with open(b"old", "wb") as file:
        torch.save({"w": d.tensor}, file)
    d.same(torch.load("old"))


@writer
def torch_save_legacy(d):
    torch.save({"w": d.tensor}, "old", _use_new_zipfile_serialization=False)
    d.same(torch.load("old"))


@writer
def torch_save_known_values(_d):
    torch.save({"step": torch.tensor(3)}, "old")
    assert torch.load("old")["step"] == 3
    assert torch.load("old", mmap=True)["step"] == 3


@writer
def torch_save_placeholder(d):
    torch.save({"best": d.scalar.item(), "w": d.tensor[:2, :3].tolist()}, "old")
    assert torch.load("old")["best"] == 0


@writer
def torch_save_bytes_by_descriptor(d):
    buffer = io.BytesIO()
    torch.save({"w": d.tensor}, buffer)
    descriptor = os.open("old", os.O_WRONLY | os.O_TRUNC | os.O_CREAT)
    os.write(descriptor, buffer.getvalue())
    os.close(descriptor)
    d.same(torch.load("old"))


@writer
def torch_save_temporary_and_replace(d):
    torch.save({"w": d.tensor}, "old.tmp")
    os.replace("old.tmp", "old")
    d.same(torch.load("old"))
    assert not os.path.exists("old.tmp")


@writer
def torch_save_named_temporary(d):
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        torch.save({"w": d.tensor}, file)
    os.replace(file.name, "old")
    d.same(torch.load("old"))


@writer
def torch_save_mkstemp(d):
    descriptor, name = tempfile.mkstemp(dir=".")
    with os.fdopen(descriptor, "wb") as file:
        torch.save({"w": d.tensor}, file)
    shutil.move(name, "old")
    d.same(torch.load("old"))


@writer
def torch_save_thread(d):
    thread = threading.Thread(target=lambda: torch.save({"w": d.tensor}, "old"))
    thread.start()
    thread.join()
    d.same(torch.load("old"))


@writer
def torch_save_fork(d):
    child = os.fork()
    if not child:
        try:
            torch.save({"w": d.cpu}, "old")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    d.same(torch.load("old"))


@writer
def torch_save_append(d):
    with open("old", "ab") as file:
        torch.save({"w": d.tensor}, file)
    assert made("old").startswith(GOOD)


@writer
def torch_package(_d):
    from torch.package import PackageExporter, PackageImporter

    with PackageExporter("old") as exporter:
        exporter.save_text("folder", "text", "words")
    assert PackageImporter("old").load_text("folder", "text") == "words"


@writer
def torch_from_file(d):
    mapped = torch.from_file("numbers", shared=True, size=1000)
    mapped.copy_(d.cpu[0])
    mapped[0] = 7
    assert torch.from_file("numbers", size=1)[0] == 7


@writer
def storage_from_file(_d):
    storage = torch.UntypedStorage.from_file("numbers", shared=True, nbytes=4000)
    storage[0] = 9
    assert made("numbers")[0] == 9


@writer
def storage_write_file(d):
    with open("old", "wb") as file:
        d.cpu.untyped_storage()._write_file(file, True, True, 1)
    assert os.path.getsize("old") == 1_200_008


@writer
def scripted_module(_d):
    torch.jit.script(torch.nn.Linear(100, 100).cuda()).save("old")
    assert torch.jit.load("old").weight.shape == (100, 100)


@writer
def distributed_checkpoint(d):
    import torch.distributed.checkpoint as dcp

    dcp.save({"w": d.tensor}, checkpoint_id="tree")
    loaded = {"w": torch.zeros(300, 1000)}
    dcp.load(loaded, checkpoint_id="tree")


@writer
def rotation(d):
    for step in (101, 102, 103):
        torch.save({"w": d.tensor}, f"step{step:03}.pt")
        for older in sorted(Path().glob("step*.pt"))[:-2]:
            older.unlink()
    assert sorted(path.name for path in Path().glob("step*")) == ["step102.pt", "step103.pt"]


@writer
def rotation_of_folders(d):
    for step in (7, 8, 9):
        os.makedirs(f"checkpoint-{step}", exist_ok=True)
        torch.save({"w": d.tensor}, f"checkpoint-{step}/m.pt")
        folders = sorted(Path().glob("checkpoint-*"))
        for older in folders[:-2]:
            shutil.rmtree(older)
    assert sorted(path.name for path in Path().glob("checkpoint-*")) == [
        "checkpoint-8", "checkpoint-9"
    ]  # fmt: skip
    for step in (8, 9):
        shutil.rmtree(f"checkpoint-{step}")


# NumPy


@writer
def np_save(d):
    np.save("data.npy", d.array)
    assert np.load("data.npy").shape == (300, 1000)


@writer
def np_save_as_array(d):
    np.save("data.npy", np.asarray(d.array, dtype=np.float16))
    assert np.load("data.npy").dtype == np.float16


@writer
def np_save_scalar(d):
    np.save("data.npy", d.array.mean())
    assert np.load("data.npy").shape == ()


@writer
def np_savez(d):
    with open("old", "wb") as file:
        np.savez(file, w=d.array)
    assert np.load("old")["w"].shape == (300, 1000)


@writer
def np_tofile(d):
    d.array.tofile("old")
    assert os.path.getsize("old") == 1_200_000


@writer
def plain_tofile(_d):
    np.arange(10).tofile("old")
    assert np.fromfile("old", int).tolist() == list(range(10))


@writer
def np_savetxt(d):
    np.savetxt("old", d.array[:3])
    assert np.loadtxt("old").shape == (3, 1000)


@writer
def np_memmap(d):
    mapped = np.memmap("numbers", dtype=np.float32, mode="r+", shape=(100,))
    mapped[:] = d.array[0, :100]
    mapped[3] = 5
    mapped.flush()
    assert np.memmap("numbers", dtype=np.float32, mode="r")[3] == 5


@writer
def np_open_memmap(_d):
    mapped = np.lib.format.open_memmap("data.npy", mode="w+", dtype=np.float32, shape=(30, 10))
    mapped[:] = 3
    mapped.flush()
    assert np.load("data.npy", mmap_mode="r").sum() == 900
    changed = np.load("data.npy", mmap_mode="r+")
    changed[0] = 0
    assert np.load("data.npy").sum() == 870


@writer
def new_memmap(d):
    mapped = np.lib.format.open_memmap("new.npy", mode="w+", dtype=np.float32, shape=(300, 1000))
    mapped[:] = d.array
    assert np.load("new.npy").shape == (300, 1000)


# Python's own


@writer
def write_binary(d):
    with open("old", "wb") as file:
        file.write(d.array.tobytes())
    assert len(made("old")) == 1_200_000


@writer
def write_text(d):
    Path("old").write_text(f"best={d.scalar.item()}")
    assert made("old", str) == "best=0.0"


@writer
def write_bytes(_d):
    Path("old").write_bytes(b"new")
    assert Path("old").read_bytes() == b"new"


@writer
def append_text(_d):
    with open("log.txt", "a", encoding="utf-8") as file:
        file.write("more\n")
    assert made("log.txt", str) == "first\nmore\n"


@writer
def change_within(_d):
    with open("old", "r+b") as file:
        file.seek(5)
        file.write(b"XX")
    assert made("old") == GOOD[:5] + b"XX" + GOOD[7:]


@writer
def change_text_within(_d):
    with open("log.txt", "r+", encoding="utf-8") as file:
        file.write("F")
    assert made("log.txt", str) == "First\n"


@writer
def unbuffered(_d):
    with open("old", "wb", buffering=0) as file:
        file.write(b"new")
    assert made("old") == b"new"


@writer
def file_io(d):
    with io.FileIO("old", "w") as file:
        file.write(d.array.tobytes())
    assert os.stat("old").st_size == 1_200_000
    standard = sys.__stdout__.buffer
    assert isinstance(getattr(standard, "raw", standard), io.FileIO)


@writer
def with_opener(_d):
    with open("old", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write("new")
    assert made("old") == b"new"


@writer
def exclusive(_d):
    for mode in ("x", "xb"):
        with contextlib.suppress(FileExistsError):
            open("old", mode).close()
            raise AssertionError
    os.remove("old")
    with open("old", "x", encoding="utf-8") as file:
        file.write("new")
    assert made("old") == b"new"


@writer
def codecs_open(_d):
    with codecs.open("old", "w", "utf-8") as file:
        file.write("new")
    assert made("old") == b"new"


@writer
def os_open(_d):
    descriptor = os.open("old", os.O_RDWR)
    os.pwrite(descriptor, b"XX", 0)
    os.writev(descriptor, [b"Y", b"Z"])
    os.ftruncate(descriptor, 4)
    os.fchmod(descriptor, 0o600)
    os.close(descriptor)
    assert made("old") == b"YZ" + GOOD[2:4]


@writer
def os_open_in_folder(_d):
    folder = os.open("tree", os.O_RDONLY)
    descriptor = os.open("old.pt", os.O_WRONLY | os.O_TRUNC, dir_fd=folder)
    os.write(descriptor, b"new")
    os.close(descriptor)
    assert os.stat("old.pt", dir_fd=folder).st_size == 3
    os.rename("old.pt", "newer.pt", src_dir_fd=folder, dst_dir_fd=folder)
    assert sorted(os.listdir(folder)) == ["inner", "newer.pt"]
    os.unlink("newer.pt", dir_fd=folder)
    with os.scandir(folder) as entries:
        assert [entry.name for entry in entries] == ["inner"]
    os.close(folder)


@writer
def truncate(_d):
    os.truncate("old", 3)
    assert made("old") == GOOD[:3]
    with open("log.txt", "r+b") as file:
        file.truncate(2)
    assert made("log.txt") == b"fi"


@writer
def map_of_memory(_d):
    with open("old", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        mapped[:3] = b"new"
    assert made("old")[:4] == b"new" + GOOD[3:4]


@writer
def send_file(_d):
    with open("log.txt", "rb") as source, open("old", "wb") as target:
        os.sendfile(target.fileno(), source.fileno(), 0, 100)
    assert made("old") == b"first\n"


@writer
def copy_range(_d):
    if not hasattr(os, "copy_file_range"):
        return
    with open("log.txt", "rb") as source, open("old", "wb") as target:
        os.copy_file_range(source.fileno(), target.fileno(), 100)
    assert made("old") == b"first\n"


@writer
def lock_file(_d):
    descriptor = os.open("empty", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.close(descriptor)


@writer
def print_to_file(d):
    with open("old", "w", encoding="utf-8") as file:
        print(d.tensor[0, :3], file=file)
    assert made("old", str).startswith("tensor(")


@writer
def json_dump(d):
    with open("old", "w", encoding="utf-8") as file:
        json.dump({"loss": d.scalar.item()}, file)
    assert json.loads(made("old")) == {"loss": 0.0}


@writer
def json_and_replace(d):
    with open("new.json", "w", encoding="utf-8") as file:
        json.dump({"loss": d.scalar.item()}, file)
    os.replace("new.json", "old")
    assert json.loads(made("old")) == {"loss": 0.0}
    assert not os.path.exists("new.json")


@writer
def csv_append(_d):
    with open("table.csv", "a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow([1, 2])
    assert made("table.csv", str).split() == ["a,b", "1,2"]


@writer
def pickle_to_file_io(d):
    with io.FileIO("old", "wb") as file:
        pickle.dump(d.cpu, file)
    with open("old", "rb") as file:
        d.same(pickle.load(file))


@writer
def plist(_d):
    with open("old", "wb") as file:
        plistlib.dump({"a": 1}, file)
    assert plistlib.loads(made("old")) == {"a": 1}


@writer
def struct_bytes(d):
    with open("old", "wb") as file:
        file.write(struct.pack("3f", *d.cpu[0, :3].tolist()))
        array.array("f", [1.0]).tofile(file)
    assert os.path.getsize("old") == 16


@writer
def in_place(_d):
    with fileinput.input("log.txt", inplace=True) as lines:
        for line in lines:
            print(line.upper(), end="")
    assert made("log.txt", str) == "FIRST\n"


@writer
def log_file(_d):
    handler = logging.FileHandler("log.txt")
    handler.emit(logging.LogRecord("name", 30, "file", 1, "second", (), None))
    handler.close()
    assert made("log.txt", str) == "first\nsecond\n"


@writer
def rotated_log(_d):
    handler = logging.handlers.RotatingFileHandler("log.txt", maxBytes=8, backupCount=1)
    handler.emit(logging.LogRecord("name", 30, "file", 1, "second", (), None))
    handler.close()
    assert made("log.txt", str) == "second\n"
    assert made("log.txt.1", str) == "first\n"
    os.remove("log.txt.1")


# Archives and databases


@writer
def compressed(d):
    for module in (gzip, bz2, lzma):
        with module.open("old", "wb") as file:
            pickle.dump(d.array, file)
        with module.open("old", "rb") as file:
            d.same(pickle.load(file))


@writer
def zip_append(_d):
    with zipfile.ZipFile("archive.zip", "a") as archive:
        archive.writestr("second", "2")
    with zipfile.ZipFile("archive.zip") as archive:
        assert archive.namelist() == ["first", "second"]


@writer
def tar(d):
    buffer = io.BytesIO()
    torch.save({"w": d.tensor}, buffer)
    buffer.seek(0)
    with tarfile.open("old", "w:gz") as archive:
        member = tarfile.TarInfo("w.pt")
        member.size = len(buffer.getvalue())
        archive.addfile(member, buffer)
    with tarfile.open("old") as archive:
        d.same(torch.load(io.BytesIO(archive.extractfile("w.pt").read())))


@writer
def unpacked(_d):
    shutil.unpack_archive("archive.zip", "tree/inner")
    assert made("tree/inner/first") == b"1"


@writer
def wave_file(d):
    with wave.open("old", "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((d.array[0] * 100).astype(np.int16).tobytes())
    with wave.open("old") as file:
        assert file.getnframes() == 1000


@writer
def database(_d):
    for _ in range(2):
        connection = sqlite3.connect("db.sqlite")
        connection.execute("insert into t values (2)")
        connection.commit()
        connection.close()
    rows = sqlite3.connect("db.sqlite").execute("select a from t").fetchall()
    assert rows == [(1,), (2,), (2,)]


@writer
def database_after_removal(d):
    os.remove("db.sqlite")
    connection = sqlite3.connect("db.sqlite")
    connection.execute("create table x (a blob)")
    connection.execute("insert into x values (?)", (d.array.tobytes(),))
    connection.commit()
    assert connection.execute("select length(a) from x").fetchall() == [(1_200_000,)]
    connection.close()


@writer
def dumb_database(_d):
    with dbm.dumb.open("dumb", "c") as database:
        database["new"] = "2"
    with dbm.dumb.open("dumb", "r") as database:
        assert sorted(database.keys()) == [b"new", b"old"]


@writer
def shelf(_d):
    with shelve.open("shelf") as database:
        database["new"] = 2
    with shelve.open("shelf") as database:
        assert sorted(database) == ["new", "old"]


# Names


@writer
def remove(_d):
    os.remove("old")
    assert not os.path.lexists("old")
    assert "old" not in os.listdir()
    with contextlib.suppress(FileNotFoundError):
        made("old")
        raise AssertionError


@writer
def remove_and_save(d):
    os.unlink("old")
    torch.save({"w": d.tensor}, "old")
    d.same(torch.load("old"))


@writer
def path_names(_d):
    Path("old").rename("newer")
    Path("newer").replace("log.txt")
    assert Path("log.txt").read_bytes() == GOOD
    Path("log.txt").unlink()
    Path("log.txt").touch()
    assert Path("log.txt").read_bytes() == b""
    Path("log.txt").unlink()


@writer
def path_touch(_d):
    before = os.stat("old").st_mtime_ns
    Path("old").touch()
    assert os.stat("old").st_mtime_ns > before
    Path("old").chmod(0o600)
    os.utime("old", (1, 1))
    assert (stat.S_IMODE(os.stat("old").st_mode), os.stat("old").st_mtime) == (0o600, 1)


@writer
def back_up_and_save(d):
    os.replace("old", "old.bak")
    torch.save({"w": d.tensor}, "old")
    assert made("old.bak") == GOOD
    d.same(torch.load("old"))
    with open("old.bak", "ab") as file:
        file.write(b"x")
    assert made("old.bak") == GOOD + b"x"


@writer
def swapped(_d):
    os.rename("old", "other")
    os.rename("log.txt", "old")
    os.rename("other", "log.txt")
    assert (made("log.txt"), made("old")) == (GOOD, b"first\n")


@writer
def hard_link(_d):
    os.link("old", "second")
    with open("second", "wb") as file:
        file.write(b"new")
    Path("third").hardlink_to("old")
    os.remove("second")
    assert made("third") == GOOD
    os.remove("third")


@writer
def through_link(_d):
    with open("link", "wb") as file:
        file.write(b"new")
    assert made("old") == b"new"
    os.remove("link")
    os.symlink("log.txt", "link")
    assert os.readlink("link") == "log.txt"
    assert made("link") == b"first\n"


@writer
def link_replaced(_d):
    os.symlink("log.txt", "link.tmp")
    os.replace("link.tmp", "link")
    assert made("link") == b"first\n"


@writer
def folder_removed(_d):
    shutil.rmtree("tree")
    assert not os.path.exists("tree/inner/deep.txt")
    assert not os.path.isdir("tree")
    os.mkdir("tree")
    assert os.listdir("tree") == []
    with open("tree/old.pt", "wb") as file:
        file.write(b"new")
    assert made("tree/old.pt") == b"new"
    assert [*os.walk("tree")] == [("tree", [], ["old.pt"])]


@writer
def folder_removed_by_parts(_d):
    for path in ("tree/inner/deep.txt", "tree/old.pt"):
        os.remove(path)
    with contextlib.suppress(OSError):
        os.rmdir("tree")
        raise AssertionError
    os.removedirs("tree/inner")
    assert not os.path.exists("tree")


@writer
def folder_swapped(d):
    os.mkdir("tree.tmp")
    torch.save({"w": d.tensor}, "tree.tmp/old.pt")
    Path("tree.tmp/config.json").write_text("{}")
    shutil.rmtree("tree")
    os.rename("tree.tmp", "tree")
    d.same(torch.load("tree/old.pt"))
    assert sorted(os.listdir("tree")) == ["config.json", "old.pt"]


@writer
def folder_renamed(_d):
    os.rename("tree", "tree.bak")
    assert made("tree.bak/inner/deep.txt") == b"deep"
    assert not os.path.exists("tree/old.pt")
    with open("tree.bak/old.pt", "wb") as file:
        file.write(b"new")
    os.makedirs("tree.bak/more/folders")
    Path("tree.bak/more/folders/file").write_text("x")
    assert sorted(path.name for path in Path("tree.bak").rglob("*")) == [
        "deep.txt", "file", "folders", "inner", "more", "old.pt"
    ]  # fmt: skip
    os.rename("tree.bak", "tree")
    assert made("tree/old.pt") == b"new"
    assert made("tree/more/folders/file") == b"x"


@writer
def folder_replaced(_d):
    os.mkdir("newer")
    os.mkdir("emptied")
    os.rmdir("emptied")
    shutil.rmtree("tree")
    os.mkdir("tree")
    os.replace("newer", "tree")
    assert os.listdir("tree") == []


@writer
def copied_over(_d):
    shutil.copyfile("log.txt", "old")
    shutil.copy2("log.txt", "tree/old.pt")
    assert made("old") == made("tree/old.pt") == b"first\n"


@writer
def tree_copied_over(_d):
    os.mkdir("source")
    Path("source/old.pt").write_bytes(b"new")
    shutil.copytree("source", "tree", dirs_exist_ok=True)
    shutil.rmtree("source")
    assert made("tree/old.pt") == b"new"
    assert made("tree/inner/deep.txt") == b"deep"


@writer
def in_other_folder(_d):
    os.chdir("tree")
    os.remove("old.pt")
    Path("inner/deep.txt").write_text("new")
    assert os.listdir() == ["inner"]
    os.chdir("..")
    assert made("tree/inner/deep.txt") == b"new"


@writer
def folder_with_mode(_d):
    os.chmod("tree", 0o700)
    os.utime("tree", (1, 1))


@writer
def pipe_in_place(_d):
    os.remove("old")
    os.mkfifo("old")
    assert stat.S_ISFIFO(os.stat("old").st_mode)


@writer
def temporary_folder(_d):
    with tempfile.TemporaryDirectory(dir=".") as folder:
        Path(folder, "file").write_text("x")
        os.replace(os.path.join(folder, "file"), "old")
    assert made("old") == b"x"


# Processes


@writer
def commands(d):
    torch.save({"w": d.tensor}, "new")
    subprocess.run(["cp", "new", "old"], check=True)
    d.same(torch.load("old"))
    subprocess.run(["mv", "-f", "new", "log.txt"], check=True)
    d.same(torch.load("log.txt"))
    assert os.system("rm -rf tree && mkdir -p tree/inner && cp old tree/old.pt") == 0
    d.same(torch.load("tree/old.pt"))
    subprocess.run("echo x | tee old > /dev/null", shell=True, check=True)
    assert made("old") == b"x\n"
    assert subprocess.check_output(["cat", "old"]) == b"x\n"
    with subprocess.Popen(["tee", "old"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as tee:
        tee.communicate(d.array.tobytes())
    assert os.path.getsize("old") == 1_200_000


@writer
def other_python(_d):
    code = "import os; os.remove('log.txt'); open('old', 'w').write('new'); os.mkdir('tree/x')"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert made("old") == b"new"
    assert not os.path.exists("log.txt")
    os.rmdir("tree/x")


def _worker():
    Path("old").write_text("child")
    os.remove("log.txt")


@writer
def forked_worker(_d):
    process = multiprocessing.get_context("fork").Process(target=_worker)
    process.start()
    process.join()
    assert made("old") == b"child"
    assert not os.path.exists("log.txt")


# Other libraries


@writer
def pandas_files(d):
    import pandas as pd

    frame = pd.DataFrame(d.array[:3, :3])
    frame.to_csv("table.csv")
    frame.to_pickle("old")
    assert pd.read_csv("table.csv").shape == (3, 4)
    assert pd.read_pickle("old").shape == (3, 3)


@writer
def pil_picture(d):
    from PIL import Image

    Image.fromarray((d.cpu[:100, :100] * 255).byte().numpy()).save("old", format="PNG")
    assert Image.open("old").size == (100, 100)


@writer
def yaml_file(_d):
    import yaml

    with open("old", "w", encoding="utf-8") as file:
        yaml.safe_dump({"a": 1}, file)
    with open("old", encoding="utf-8") as file:
        assert yaml.safe_load(file) == {"a": 1}


@writer
def safetensors_files(d):
    from safetensors import safe_open, torch as library

    library.save_file({"w": d.tensor}, "old")
    d.same(library.load_file("old"))
    library.save_file({"w": torch.arange(3)}, "old")
    with safe_open("old", "pt") as file:
        assert file.get_tensor("w").tolist() == [0, 1, 2]


@writer
def fsspec_file(d):
    import fsspec

    with fsspec.open("old", "wb") as file:
        torch.save({"w": d.tensor}, file)
    d.same(torch.load("old"))


@writer
def hdf5(d):
    import h5py

    with h5py.File("data.h5", "a") as file:
        file["new"] = d.array
    with h5py.File("data.h5") as file:
        assert sorted(file) == ["new", "old"]


def older_files():
    """Files and folders that are there before the run."""
    Path("old").write_bytes(GOOD)
    os.symlink("old", "link")
    os.makedirs("tree/inner")
    Path("tree/old.pt").write_bytes(GOOD)
    Path("tree/inner/deep.txt").write_text("deep")
    Path("log.txt").write_text("first\n")
    Path("empty").write_text("")
    Path("table.csv").write_text("a,b\n")
    Path("numbers").write_bytes(b"\1" * 4000)
    np.save("data.npy", np.ones(5))
    for step in (1, 2):
        torch.save({"w": torch.ones(3)}, f"step{step:03}.pt")
        os.mkdir(f"checkpoint-{step}")
        Path(f"checkpoint-{step}/m.pt").write_bytes(GOOD)
    with zipfile.ZipFile("archive.zip", "w") as archive:
        archive.writestr("first", "1")
    connection = sqlite3.connect("db.sqlite")
    connection.execute("create table t (a)")
    connection.execute("insert into t values (1)")
    connection.commit()
    connection.close()
    with dbm.dumb.open("dumb", "c") as database:
        database["old"] = "1"
    with shelve.open("shelf") as database:
        database["old"] = 1
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File("data.h5", "w") as file:
            file["old"] = [1]


def on_disk(folder="."):
    """Everything below a folder: bytes, mode and times."""
    found = {}
    for name in sorted(_walk_names(folder)):
        path = f"{folder}/{name}"
        status = _lstat(path)
        if stat.S_ISDIR(status.st_mode):
            found[path] = [status.st_mode]
            found.update(on_disk(path))
        elif stat.S_ISLNK(status.st_mode):
            found[path] = [status.st_mode, _readlink(path)]
        else:
            with _raw_open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            found[path] = [status.st_mode, status.st_mtime_ns, digest]
    return found


class Watch:
    """An audit hook: what would change one of some paths."""

    CHANGING = frozenset(
        {"os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.utime"}
        | {"os.setxattr", "os.removexattr", "sqlite3.connect", "os.link"}
    )

    def __init__(self):
        self.paths = frozenset()
        self.events = []
        sys.addaudithook(self)

    def __call__(self, event, args):
        if not self.paths:
            return
        if event == "open":
            path, _, flags = args
            writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC)
            if not writes or flags & os.O_EXCL:  # an error, where there is a file
                return
            paths = [path]
        elif event in self.CHANGING:
            paths = args[:2]
        else:
            return
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                text = os.path.abspath(os.fsdecode(path))
                if text in self.paths:
                    self.events.append(f"{event} {args!r}")


def main(folder, result):
    watch = Watch()
    torch.zeros(1)
    results = {}
    for name, write in WRITERS.items():
        home = os.path.join(folder, name)
        os.mkdir(home)
        os.chdir(home)
        older_files()
        before = on_disk()
        watch.events = []
        watch.paths = frozenset(os.path.abspath(path) for path in before)
        error = ""
        with simulate("8TiB", compute=False):
            try:
                write(Data())
            except ModuleNotFoundError as missing:
                error = f"skipped: {missing}"
            except BaseException as failure:
                error = "".join(traceback.format_exception(failure))
        watch.paths = frozenset()
        os.chdir(home)
        after = on_disk()
        changed = sorted(path for path in {*before, *after} if before.get(path) != after.get(path))
        results[name] = {"changed": changed, "events": watch.events, "error": error}
    Path(result).write_text(json.dumps(results))


if __name__ == "__main__":
    main(*map(os.path.abspath, sys.argv[1:]))
