"""``pytorch-memlab peak -o`` and ``timeline -o``: files of snapshots, and faults in one line."""

from __future__ import annotations

import csv
import json
import os
import pickle
import sys

import pytest
import torch

from pytorch_memlab.cli.main import main
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.snapshot import read_snapshot
from pytorch_memlab.history.timeline import timeline_of
from pytorch_memlab.render import peak_html, timeline
from pytorch_memlab.render.output_format import PeakResults
from pytorch_memlab.render.outputs.speedscope_file import SpeedscopeFile
from pytorch_memlab.render.timeline import render
from pytorch_memlab.simulation import simulate

MIB = 2**20


@pytest.fixture(autouse=True)
def snapshot(tmp_path, monkeypatch):
    """5 MiB on the first GPU and 2 MiB on the second one."""
    monkeypatch.chdir(tmp_path)
    with simulate("24GiB", count=2):
        torch.cuda.memory._record_memory_history()
        kept = [
            torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:0"),
            torch.empty(2 * MIB, dtype=torch.uint8, device="cuda:1"),
        ]
        torch.cuda.memory._dump_snapshot("snapshot.pickle")
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept
    return tmp_path / "snapshot.pickle"


def peaks():
    history = read_snapshot("snapshot.pickle")
    return [peak_holders(history, device) for device in (0, 1)]


def timelines(capacity=None, by=None):
    history = read_snapshot("snapshot.pickle")
    return [timeline_of(history, device, capacity, by) for device in (0, 1)]


def test_a_timeline_is_written_in_every_format(tmp_path, capsys):
    outputs = ["-o", "a.html", "-o", "a.svg", "-o", "A.PNG"]
    assert main(["timeline", *outputs, "--gpu", "30MiB", "snapshot.pickle"]) == 0
    found = timelines(30 * MIB)
    title = "GPU memory over time: snapshot.pickle"
    assert (tmp_path / "a.html").read_text() == render(found, title)
    assert (tmp_path / "a.svg").read_bytes() == timeline.picture(".svg", found, title)
    assert (tmp_path / "A.PNG").read_bytes() == timeline.picture(".png", found, title)
    assert capsys.readouterr().err == (
        "timeline written to a.html\ntimeline written to a.svg\ntimeline written to A.PNG\n"
    )


def test_a_timeline_of_one_gpu_by_line(tmp_path):
    assert (
        main(["timeline", "-o", "a.html", "--device", "1", "--by", "line", "snapshot.pickle"]) == 0
    )
    title = "GPU memory over time: snapshot.pickle"
    assert (tmp_path / "a.html").read_text() == render(timelines(by="line")[1:], title)


def test_a_peak_is_written_in_every_format(tmp_path, capsys):
    names = ("a.html", "a.speedscope.json", "a.collapsed.txt", "a.csv", "a.txt")
    assert (
        main(["peak", *(part for name in names for part in ("-o", name)), "snapshot.pickle"]) == 0
    )
    printed, said = capsys.readouterr()
    assert (printed, said) == ("", "".join(f"peak written to {name}\n" for name in names))
    found = peaks()
    title = "What holds the GPU memory at its peak: snapshot.pickle"
    assert (tmp_path / "a.html").read_text() == peak_html.render(found, title)
    speedscope = SpeedscopeFile(".speedscope.json").render(PeakResults(found, ""))
    assert (tmp_path / "a.speedscope.json").read_text() == speedscope
    data = json.loads((tmp_path / "a.speedscope.json").read_text())
    assert [sum(profile["weights"]) for profile in data["profiles"]] == [5 * MIB, 2 * MIB]
    stacks = (tmp_path / "a.collapsed.txt").read_text().splitlines()
    assert [line.partition(";")[0] for line in stacks] == ["cuda:0", "cuda:1"]
    assert [int(line.rpartition(" ")[2]) for line in stacks] == [5 * MIB, 2 * MIB]
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert [(row["device"], int(row["size"])) for row in rows] == [("0", 5 * MIB), ("1", 2 * MIB)]
    assert main(["peak", "--all", "snapshot.pickle"]) == 0
    assert (tmp_path / "a.txt").read_text() == capsys.readouterr().out


def test_the_rows_of_a_file_are_those_asked_for(tmp_path):
    asked = ["peak", "--by", "category", "-o", "a.csv", "-o", "a.txt", "snapshot.pickle"]
    assert main(asked) == 0
    assert (tmp_path / "a.csv").read_text().startswith("device,name,size,blocks,backward\n0,")
    assert "100.0%" in (tmp_path / "a.txt").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["timeline", "-o", "a.gif"],
            "cannot tell the format of a.gif: end it in .html, .svg, .png",
        ),
        (
            ["peak", "-o", "a.json"],
            "cannot tell the format of a.json: end it in .html, .speedscope.json, .collapsed.txt, ",
        ),
        (
            ["timeline", "-o", "missing/a.svg"],
            "cannot write missing/a.svg: no such folder, or no right to write there",
        ),
        (
            ["peak", "-o", "missing/a.csv"],
            "cannot write missing/a.csv: no such folder, or no right to write there",
        ),
        (
            ["peak", "--by", "module", "-o", "a.html"],
            "--by and --top are for .csv and .txt, not for a.html",
        ),
        (
            ["peak", "--by", "stack", "-o", "a.csv"],
            "stacks are no rows of a.csv: end it in .collapsed.txt",
        ),
        (
            ["timeline", "-o", "a.html", "--device", "7"],
            "snapshot.pickle has no GPU 7: --device takes 0 or 1",
        ),
        (["timeline", "-o", "a.html", "--gpu", "h10"], "unknown GPU 'h10'"),
    ],
)
def test_what_cannot_be_carried_out_is_one_line(arguments, message, tmp_path, capsys):
    assert main([*arguments, "snapshot.pickle"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"pytorch-memlab {arguments[0]}: error: {message}")
    assert os.listdir(tmp_path) == ["snapshot.pickle"]


def test_a_picture_without_matplotlib_is_refused_before_the_file_is_read(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["timeline", "-o", "a.svg", "no such file"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install 'pytorch-memlab[plot]'" in line
    assert main(["timeline", "-o", "a.html", "snapshot.pickle"]) == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_is_one_line_and_other_files_are_written(tmp_path, capsys):
    (tmp_path / "full.html").symlink_to("/dev/full")
    for command in ("timeline", "peak"):
        assert main([command, "-o", "full.html", "-o", "b.html", "snapshot.pickle"]) == 2
        assert capsys.readouterr().err == (
            f"cannot write full.html: No space left on device\n{command} written to b.html\n"
        )


def test_a_file_that_is_no_snapshot_is_named(tmp_path, capsys):
    (tmp_path / "other").write_bytes(b"no pickle")
    assert main(["timeline", "-o", "a.html", "other"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "other is not a memory snapshot" in line


def test_a_snapshot_with_impossible_sizes_is_refused_in_one_line(tmp_path, capsys):
    event = {"action": "alloc", "size": 1 << 62, "stream": 0, "time_us": 0, "frames": []}
    events = [{**event, "addr": n << 62} for n in range(3)]
    found = {"segments": [], "device_traces": [events], "allocator_settings": {}}
    (tmp_path / "huge.pickle").write_bytes(pickle.dumps(found))
    assert main(["timeline", "-o", "a.html", "huge.pickle"]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab timeline: error: this is no history of a GPU: more than 8 EiB are in use\n"
    )
    assert not (tmp_path / "a.html").exists()
