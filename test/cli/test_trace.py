"""``run -o trace.pickle``: the memory history of a run in PyTorch's own format."""

from __future__ import annotations

import os
import pickle
import pickletools
import runpy
import sys
from pathlib import Path
from textwrap import dedent

import pytest
import torch
from support.flamegraph import draws_flame_graphs, prepare_drawer
from support.python_process import run_python
from torch.cuda import _memory_viz

from pytorch_memlab.cli.main import main
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.snapshot import read_snapshot

ROOT = Path(__file__).parents[2]
KIB, MIB = 2**10, 2**20

STEP = """\
import torch

kept = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
def step():
    return torch.ones(1024, device="cuda")
step()
"""

ERROR = """\
import torch

kept = torch.empty(40 << 20, dtype=torch.uint8, device="cuda")
more = torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
"""


@pytest.fixture
def _history_is_asked_for() -> None:
    """Blind too, no history is recorded beside that of the file."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text, name="script.py"):
    Path(name).write_text(dedent(text))
    return name


def read(name):
    with open(name, "rb") as file:
        return pickle.load(file)


def events(snapshot):
    """Action, size and the line of the script of each event."""
    found = []
    for event in snapshot["device_traces"][0]:
        lines = [f["line"] for f in event["frames"] if f["filename"].endswith("script.py")]
        found.append((event["action"], event["size"], lines[0] if lines else None))
    return found


def test_the_file_has_every_event_with_the_line_of_the_script(folder, capsys):
    main(["run", "-o", "trace.pickle", write(STEP)])

    assert events(read("trace.pickle")) == [
        ("segment_alloc", 20 * MIB, 3),
        ("alloc", 3 * MIB, 3),
        ("segment_alloc", 2 * MIB, 5),
        ("alloc", 4 * KIB, 5),
        ("free_requested", 4 * KIB, 6),
        ("free_completed", 4 * KIB, 6),
    ]
    said = capsys.readouterr()
    assert said.err.endswith("memory history written to trace.pickle: 6 events\n")
    assert "\n\n## step  script.py:" in said.out


def test_its_peak_holders_are_the_lines_of_the_script(folder):
    main(["run", "-o", "trace.pickle", write(STEP)])
    holders = peak_holders(read_snapshot("trace.pickle"))

    assert holders.peak.active == 3 * MIB + 4 * KIB
    assert [(each.line, each.size) for each in holders.by_line()] == [(3, 3 * MIB), (5, 4 * KIB)]


def test_a_dry_run_has_the_same_events(folder):
    main(["run", "-o", "trace.pickle", write(STEP)])
    main(["run", "-o", "dry.pickle", "--dry-run", "script.py"])

    assert events(read("dry.pickle")) == events(read("trace.pickle"))


@pytest.mark.knows_simulation("PyTorch's history has an event for each snapshot")
def test_a_failing_program_leaves_the_file_too(folder, capsys):
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--gpu", "64MiB", "-o", "trace.pickle", write(ERROR)])

    assert events(read("trace.pickle")) == [
        ("segment_alloc", 40 * MIB, 3),
        ("alloc", 40 * MIB, 3),
        ("oom", 30 * MIB, 4),
    ]
    (segment,) = read("trace.pickle")["segments"]
    assert segment["active_size"] == 40 * MIB
    assert "memory history written to trace.pickle: 3 events\n" in capsys.readouterr().err


def test_a_program_that_records_its_own_history_keeps_its_own(folder):
    program = """\
        import torch

        before = torch.ones(256, device="cuda")
        torch.cuda.memory._record_memory_history(max_entries=100000)
        during = torch.ones(512, device="cuda")
        torch.cuda.memory._dump_snapshot("own.pickle")
        torch.cuda.memory._record_memory_history(enabled=None)
        after = torch.ones(1024, device="cuda")
    """
    main(["run", write(program)])
    alone = events(read("own.pickle"))
    os.remove("own.pickle")
    main(["run", "-o", "trace.pickle", "script.py"])

    assert events(read("own.pickle")) == alone == [("alloc", 2 * KIB, 5)]
    assert events(read("trace.pickle")) == [
        ("segment_alloc", 2 * MIB, 3),
        ("alloc", KIB, 3),
        ("alloc", 2 * KIB, 5),
        ("snapshot", 3 * KIB, 6),
        ("alloc", 4 * KIB, 8),
    ]


def test_tables_and_history_go_to_two_files(folder, capsys):
    main(["run", "-o", "tables.txt", "-o", "trace.pkl", "-o", "page.html", write(STEP)])

    assert "\n\n## step  script.py:" in Path("tables.txt").read_text()
    assert "<html" in Path("page.html").read_text()
    assert len(events(read("trace.pkl"))) == 6
    assert capsys.readouterr().out == ""


def test_rank_and_process_are_filled_in(folder, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    main(["run", "-o", "trace.{rank}.{pid}.pickle", write(STEP)])

    assert os.path.exists(f"trace.3.{os.getpid()}.pickle")


def test_a_second_run_with_force_replaces_the_file(folder):
    for script in (STEP, STEP + "step()\n"):
        main(["run", "--force", "-o", "trace.pickle", write(script)])

    assert len(events(read("trace.pickle"))) == 9
    assert sorted(os.listdir()) == ["script.py", "trace.pickle"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_full_disk_is_said_and_the_tables_are_printed(folder, capsys):
    os.symlink("/dev/full", "trace.pickle")
    main(["run", "-o", "trace.pickle", write(STEP)])

    said = capsys.readouterr()
    assert said.err.endswith("\ncannot write trace.pickle: No space left on device\n")
    assert "\n\n## step  script.py:" in said.out


def test_a_folder_that_is_not_there_is_refused_before_the_program_runs(folder, capsys):
    assert main(["run", "-o", "nowhere/trace.pickle", write("print('ran')")]) == 2

    said = capsys.readouterr()
    assert said.out == ""
    assert said.err == (
        "pytorch-memlab run: error: cannot write nowhere/trace.pickle: no such folder, or no right"
        " to write there\n"
    )


def test_a_forked_child_writes_nothing(folder):
    program = STEP + "import os\nif os.fork():\n    os.wait()\nelse:\n    kept = None\n"
    done = run_python(
        ["-m", "pytorch_memlab", "run", "-o", "t.pickle", write(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    assert done.returncode == 0
    assert done.stderr.count("memory history written") == 1
    assert len(events(read("t.pickle"))) == 6


# PyTorch's own viewers

OPCODES = {
    *("PROTO", "FRAME", "MEMOIZE", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BINFLOAT"),
    *("BININT", "BININT1", "BININT2", "LONG1", "SHORT_BINUNICODE", "BINUNICODE"),
    *("EMPTY_DICT", "SETITEM", "SETITEMS", "DICT", "EMPTY_LIST", "APPEND", "APPENDS", "LIST"),
    *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"),
    *("BINGET", "LONG_BINGET", "BINPUT", "LONG_BINPUT"),
}
"""Those that the reader of pickles in torch/utils/viz/MemoryViz.js has a case for."""


@pytest.fixture
def traced(folder):
    main(["run", "-o", "trace.pickle", write(STEP)])
    return "trace.pickle"


def test_the_web_viewer_reads_every_opcode_of_the_file(traced):
    codes = pickletools.genops(Path(traced).read_bytes())
    found = [(code.name, argument) for code, argument, _ in codes]

    assert {name for name, _ in found} <= OPCODES
    assert [version for name, version in found if name == "PROTO"] == [4]


def viewer(monkeypatch, capsys, *arguments):
    """The output of ``python -m torch.cuda._memory_viz``."""
    monkeypatch.setattr(sys, "argv", ["_memory_viz", *arguments])
    capsys.readouterr()
    monkeypatch.delitem(sys.modules, "torch.cuda._memory_viz", raising=False)
    runpy.run_module("torch.cuda._memory_viz", run_name="__main__")
    return capsys.readouterr().out


def test_the_stand_alone_viewer_prints_the_file(traced, monkeypatch, capsys):
    stats = viewer(monkeypatch, capsys, "stats", traced)
    trace = viewer(monkeypatch, capsys, "trace", traced)

    assert "total_reserved: 22.0MiB\ntotal_allocated: 3.0MiB\n" in stats
    first, second = (each["address"] for each in read(traced)["segments"])
    assert trace.partition("TOTAL MEM")[0] == (
        "Device 0 ----------------\n"
        "6 entries\n"
        f"a = cudaMalloc({first}, 20.0MiB)\n"
        "b = a[0:3.0MiB]\n"
        f"c = cudaMalloc({second}, 2.0MiB)\n"
        "d = c[0:4.0KiB]\n"
        "del d # 4.0KiB\n"
        "# free completed for d 4.0KiB\n"
    )


@draws_flame_graphs
@pytest.mark.parametrize("what", ["segments", "memory"])
def test_the_stand_alone_viewer_makes_flame_graphs(traced, folder, monkeypatch, capsys, what):
    prepare_drawer(folder, monkeypatch)
    viewer(monkeypatch, capsys, what, traced, "-o", "flames.svg")

    assert f"script.py:3:<module> {3 * MIB}\n" in Path("flames.svg").read_text()


@pytest.mark.parametrize("what", ["trace_plot", "segment_plot"])
def test_the_stand_alone_viewer_makes_pages(traced, monkeypatch, capsys, what):
    viewer(monkeypatch, capsys, what, traced, "-o", "page.html")

    assert Path("page.html").read_text().count('"name": "snapshot.pickle"') == 1


def test_two_files_are_compared_by_their_segments(traced):
    main(["run", "-o", "after.pickle", write(STEP + "more = kept.repeat(10)\n")])
    before, after = read(traced)["segments"], read("after.pickle")["segments"]

    compared = _memory_viz.compare(before, after, lambda lines: lines)
    (line,) = [each for each in compared.splitlines() if "active_allocated" in each]
    assert line.startswith("only_after;stream_0;seg_")
    assert line.endswith(f"script.py:7:<module> {30 * MIB}")
