"""``peak`` and ``replay`` refuse files and options that they cannot use, in one line each."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import zipfile

import pytest

from pytorch_memlab.cli.main import main
from pytorch_memlab.history import snapshot

DUMP = "a snapshot is what torch.cuda.memory._dump_snapshot() writes"
ENTRY = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0}
SNAPSHOT = {"segments": [], "device_traces": [[], [ENTRY]]}
RECORD = "torch.cuda.memory._record_memory_history()"


def zipped():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("data.pkl", b"")
    return buffer.getvalue()


WHOLE = pickle.dumps(SNAPSHOT)
FILES = {
    "empty": (b"", f"FILE is empty: {DUMP}"),
    "cut off": (WHOLE[:-1], "FILE is cut off: its pickle has no end"),
    "compressed, cut off": (gzip.compress(WHOLE)[:-9], "FILE is cut off: its pickle has no end"),
    "text": (b"import torch\n", "FILE is not a memory snapshot: it is no pickle of protocol 2 or"),
    "old": (pickle.dumps({}, 0), "FILE is not a memory snapshot: it is no pickle of protocol 2 or"),
    "JSON": (b'{"a": 1}', f"FILE is not a memory snapshot: it is JSON, and {DUMP}"),
    "profile": (
        json.dumps({"format": "pytorch_memlab.profile", "version": 1}).encode(),
        "FILE is a damaged profile: it has no 'runs'",
    ),
    "page": (b"<!doctype html>", f"FILE is not a memory snapshot: it is a web page, and {DUMP}"),
    "zip": (zipped(), "FILE is not a memory snapshot: it is a zip file, such as torch.save() writ"),
    "other": (pickle.dumps([1, 2]), "FILE: this is what torch.cuda.memory_snapshot() returns"),
    "number": (pickle.dumps(7), "FILE: this is not a snapshot of torch.cuda.memory._snapshot()"),
    "code": (
        b"\x80\x02cos\nsystem\n.",
        "FILE is not a memory snapshot: its pickle wants os.system",
    ),
    "nothing": (pickle.dumps({"segments": []}), f"FILE has no events: record them with {RECORD}"),
}


def problem(capsys, *arguments):
    """The one line that a command says, without what every error begins with."""
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix(f"pytorch-memlab {arguments[0]}: error: ").rstrip("\n")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["peak", "replay"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_snapshot(here, capsys, command, name):
    content, expected = FILES[name]
    (here / "FILE").write_bytes(content)
    assert problem(capsys, command, "FILE").startswith(expected)


@pytest.mark.parametrize("command", ["peak", "replay"])
def test_a_file_that_cannot_be_read(here, capsys, command, monkeypatch):
    assert problem(capsys, command, "FILE") == "cannot read FILE: No such file or directory"
    (here / "folder").mkdir()
    assert problem(capsys, command, "folder") == "cannot read folder: Is a directory"

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(snapshot, "open", refuse, raising=False)
    assert problem(capsys, command, "FILE") == "cannot read FILE: Permission denied"


@pytest.mark.parametrize("command", ["peak", "replay"])
@pytest.mark.parametrize("device", ["2", "-1"])
def test_a_gpu_that_the_file_lacks(here, capsys, command, device):
    (here / "FILE").write_bytes(WHOLE)
    text = problem(capsys, command, "--device", device, "FILE")
    assert text == f"FILE has no GPU {device}: --device takes 1"


def test_a_gpu_without_events_cannot_be_replayed(here, capsys):
    (here / "FILE").write_bytes(WHOLE)
    assert problem(capsys, "replay", "--device", "0", "FILE") == (
        "FILE has no events to replay: record them with "
        "torch.cuda.memory._record_memory_history(enabled='all')"
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            ["--set", "expandable_segment:True"],
            "unknown allocator setting 'expandable_segment'; did you mean expandable_segments?",
        ),
        (
            ["--set", "expandable_segments:yes"],
            "expandable_segments must be True or False, not 'yes'",
        ),
        (["--set", "max_split_size_mb:1"], "max_split_size_mb must be 20 or more, not 1"),
        (
            ["--set", "expandable_segments"],
            "expandable_segments needs a value, as in 'expandable_segments:True'",
        ),
        (
            ["--set", "max_split_size_mb:64", "--set", "max_split_size_mb:128"],
            "--set max_split_size_mb is given twice: all --set options apply together, so give",
        ),
        (["--gpu", "rtx9999"], "unknown GPU 'rtx9999'"),
        (["--gpu", "24"], "a GPU has 2 MiB to 128 TiB of memory, not '24' (did you mean 24GiB?)"),
        (["--gpu", "none.toml"], "cannot read the GPU's file none.toml: No such file or directory"),
    ],
)
def test_an_option_that_means_nothing(here, capsys, options, expected):
    (here / "FILE").write_bytes(WHOLE)
    assert problem(capsys, "replay", *options, "FILE").startswith(expected)
