"""Snapshot files: read without executing anything, refused in one line that says what they are."""

from __future__ import annotations

import os
import pickle

import pytest
import torch

from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import SnapshotError
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.snapshot import history_of, read_snapshot
from pytorch_memlab.simulation import simulate

MIB = 2**20


class Hostile:
    """Makes a file when a pickle of it is loaded."""

    def __reduce__(self):
        return os.mkdir, ("hostile",)


@pytest.fixture
def dumped(tmp_path, monkeypatch):
    """A snapshot of 5 MiB and 2 MiB that two lines keep."""
    monkeypatch.chdir(tmp_path)
    with simulate("24GiB", count=2):
        torch.cuda.memory._record_memory_history()
        kept = [
            torch.empty(5 * MIB, dtype=torch.uint8, device="cuda"),
            torch.empty(2 * MIB, dtype=torch.uint8, device="cuda"),
        ]
        torch.cuda.memory._dump_snapshot("snapshot.pickle")
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept
    return tmp_path / "snapshot.pickle"


def test_a_file_gives_what_the_snapshot_gives(dumped):
    history = read_snapshot(dumped)
    with open(dumped, "rb") as file:
        assert history == history_of(pickle.load(file))
    assert peak_holders(history).peak.active == 7 * MIB


def problem_of(content, tmp_path):
    path = tmp_path / "file.pickle"
    path.write_bytes(content)
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(path)
    return str(caught.value).removeprefix(str(path))


def test_every_gpu_with_memory_is_in_a_snapshot_of_one_without_events():
    def segment(device, size):
        block = {"size": size, "requested_size": size, "state": "active_allocated"}
        rest = {"address": 2**40, "total_size": 2 * MIB, "segment_type": "large"}
        return {"device": device, **rest, "blocks": [block]}

    segments = [segment(2, 5 * MIB), segment(0, 7 * MIB)]
    history = history_of({"segments": segments, "device_traces": [[]]})
    assert [
        (device.device, [block.size for part in device.segments for block in part.blocks])
        for device in history.devices
    ] == [(0, [7 * MIB]), (1, []), (2, [5 * MIB])]


def test_what_is_no_snapshot_is_named(tmp_path, dumped):
    whole = dumped.read_bytes()
    assert problem_of(whole[:-100], tmp_path).startswith(
        (" is cut off", " is not a memory snapshot")
    )
    assert problem_of(whole[:-1], tmp_path) == " is cut off: its pickle has no end"
    listed = pickle.dumps([{"address": 1}])
    assert "which has no history" in problem_of(listed, tmp_path)
    assert "segments and device_traces are missing" in problem_of(pickle.dumps({}), tmp_path)
    wrong = pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc"}]]})
    assert "not as PyTorch writes it (KeyError: 'addr')" in problem_of(wrong, tmp_path)
    with pytest.raises(SnapshotError, match=r"cannot read .*none\.pickle: No such file"):
        read_snapshot(tmp_path / "none.pickle")
    with pytest.raises(SnapshotError, match="Is a directory"):
        read_snapshot(tmp_path)


def test_a_hostile_pickle_executes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    problem = problem_of(pickle.dumps({"segments": Hostile()}), tmp_path)
    assert f"its pickle wants {os.name}.mkdir" in problem
    assert "nothing of it was executed" in problem
    assert not (tmp_path / "hostile").exists()


def test_a_tensors_checkpoint_is_refused(tmp_path):
    torch.save({"weight": torch.ones(2)}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(SnapshotError, match="is not a"):
        read_snapshot(tmp_path / "old.pt")


def test_the_command_shows_the_lines_that_hold_the_peak(dumped, capsys):
    assert main(["peak", str(dumped)]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0] == "cuda:0: 7.0 MiB in use at the peak, 20.0 MiB reserved (event 3 of 3)"
    assert lines[2].startswith("     5.0 MiB   71.4%  test_snapshot.py:")
    assert lines[3].strip() == 'torch.empty(5 * MIB, dtype=torch.uint8, device="cuda"),'
    assert lines[4].startswith("     2.0 MiB   28.6%  test_snapshot.py:")
    assert len(lines) == 6
    assert max(map(len, lines)) <= 80


def test_the_command_adds_up_by_function_and_by_stack(dumped, capsys):
    main(["peak", "--by", "function", str(dumped)])
    assert capsys.readouterr().out.splitlines()[2].endswith("100.0%  test_snapshot.py  dumped")
    main(["peak", "--by", "stack", str(dumped)])
    sizes = [int(line.rpartition(" ")[2]) for line in capsys.readouterr().out.splitlines()]
    assert sizes == [5 * MIB, 2 * MIB]


def test_the_command_sums_what_it_does_not_show(dumped, capsys):
    main(["peak", "--top", "1", str(dumped)])
    assert capsys.readouterr().out.splitlines()[-1] == "     2.0 MiB   28.6%  1 more"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--device", "5"], "snapshot.pickle has no GPU 5: --device takes 0"),
    ],
)
def test_a_wrong_option_is_one_line(dumped, capsys, options, problem):
    assert main(["peak", *options, "snapshot.pickle"]) == 2
    assert capsys.readouterr().err == f"pytorch-memlab peak: error: {problem}\n"
