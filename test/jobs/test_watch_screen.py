"""``watch``: the screen of a job that goes on, as a user at the keys sees it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from support.run_command import command

from pytorch_memlab.cli.main import main

textual = pytest.importorskip("textual", reason="the extra `watch` has textual")

from textual.widgets import DataTable, Static  # noqa: E402

from pytorch_memlab.cli.watch_screen import LineScreen, WatchApp  # noqa: E402

SCRIPT = """\
import os, torch
kept = [torch.ones(1 << 18, device="cuda")]
size = 3 if os.environ["RANK"] == "1" else 1
if size:
    kept.append(torch.ones(size << 20, device="cuda"))  # [bold]not markup[/]
for _ in range(6):
    kept.append(torch.ones(1 << 18, device="cuda"))
"""


@pytest.fixture
def job(write):
    """The folder of two ranks that differ."""
    script = write(SCRIPT)
    for rank in "01":
        environment = {
            "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "TORCHELASTIC_RUN_ID": "here", "PYTORCH_MEMLAB_JOB": "one",
        }  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            words = ("--gpu", "1GiB", "--num-gpus", "2", "--no-try", "-o", "job.memlab", script)
            assert command(*words).returncode == 0
    return "job.memlab"


def text_of(app, name):
    return str(app.query_one(name, Static).render())


def rows_of(app, name):
    table = app.query_one(name, DataTable)
    return [[str(cell) for cell in table.get_row_at(place)] for place in range(table.row_count)]


def seen(folder, *keys, size=(120, 40), ask=lambda: None):
    """The parts of the screen after keys."""
    app = WatchApp(str(folder), "job.memlab", 1000, ask)
    shown = {}

    async def use():
        async with app.run_test(size=size) as pilot:
            for key in keys:
                await pilot.press(key)
                await pilot.pause()
            shown["headline"] = text_of(app, "#headline") if not app.screen.is_modal else ""
            if app.screen.is_modal:
                shown["line"] = str(app.screen.query_one("#line", Static).render())
                assert isinstance(app.screen, LineScreen)
                return
            shown["categories"] = text_of(app, "#categories")
            shown["ranks"] = rows_of(app, "#ranks")
            shown["lines"] = rows_of(app, "#lines")
            shown["heads"] = [
                str(column.label) for column in app.query_one("#lines", DataTable).columns.values()
            ]

    asyncio.run(use())
    return shown


def test_the_rank_with_the_highest_peak_comes_first_to_the_eye(job):
    shown = seen(job)
    assert shown["headline"] == (
        "job.memlab: 2 ranks, rank 1: peak 19.0 MiB of 1.00 GiB, headroom 1004.0 MiB, grows by"
        " 1.0 MiB an iteration at script.py:6"
    )
    assert [row[:4] for row in shown["ranks"]] == [
        ["0", "11.0 MiB", "996.0 MiB", "exit status 0"],
        ["1", "19.0 MiB", "1004.0 MiB", "exit status 0"],
    ]
    assert shown["categories"] == "at the peak\n  19.0 MiB  inputs and other tensors"
    assert shown["heads"] == ["peak v", "kept", "delta", "hits", "seconds", "line", ""]
    peaks = [(row[0], row[3], row[5], row[6]) for row in shown["lines"]]
    code = 'kept.append(torch.ones(1 << 18, device="cuda"))'
    assert peaks[0] == ("19.0 MiB", "6", "script.py:7", code)
    marked = 'kept.append(torch.ones(size << 20, device="cuda"))  # [bold]not markup[/]'
    assert ("13.0 MiB", "1", "script.py:5", marked) in peaks


def test_s_sorts_by_the_next_column(job):
    shown = seen(job, "s")
    assert shown["heads"][:2] == ["peak", "kept v"]
    assert shown["lines"][0][5] == "script.py:5"  # 12 MiB at once
    hits = seen(job, "s", "s", "s")
    assert hits["heads"][3] == "hits v"
    counts = [int(row[3]) for row in hits["lines"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == 7
    assert seen(job, *"sssss")["heads"][0] == "peak v"


def test_enter_opens_a_line_with_its_neighbours(job):
    shown = seen(job, "enter")
    lines = shown["line"].splitlines()
    assert lines[0] == "script.py:7"
    assert lines[1].startswith("peak 19.0 MiB, kept 1.0 MiB, freed 0 B a hit, 6 hits, ")
    assert '>     7      kept.append(torch.ones(1 << 18, device="cuda"))' in lines
    assert "      6  for _ in range(6):" in lines
    assert any("[bold]not markup[/]" in line for line in lines)
    assert seen(job, "enter", "escape")["lines"]


def test_another_rank_is_chosen_and_h_goes_back(job):
    chosen = seen(job, "shift+tab", "up", "enter")
    assert chosen["headline"].startswith("job.memlab: 2 ranks, rank 0: peak 11.0 MiB of 1.00 GiB")
    assert chosen["lines"][0][0] == "11.0 MiB"
    back = seen(job, "shift+tab", "up", "enter", "h")
    assert "rank 1: peak 19.0 MiB" in back["headline"]


def test_a_folder_that_fills_up_later(job, tmp_path):
    empty = tmp_path / "later.memlab"
    empty.mkdir()
    app = WatchApp(str(empty), "later.memlab", 1000, lambda: None)
    shown = []

    async def use():
        async with app.run_test(size=(80, 24)):
            shown.append(text_of(app, "#headline"))
            (empty / "rank0.attempt0.json").write_text("{")  # cut off
            app.read_again()
            shown.append(rows_of(app, "#ranks"))
            for file in Path(job).glob("rank*.json"):
                (empty / file.name).write_bytes(file.read_bytes())
            app.read_again()
            shown.append([row[0] for row in rows_of(app, "#ranks")])

    asyncio.run(use())
    assert shown == ["later.memlab: no rank has written its file so far", [], ["0", "1"]]


def test_an_error_of_reading_is_shown_and_the_screen_stays(job):
    def ask():
        raise OSError("the process is gone")

    shown = seen(job, ask=ask)
    assert shown["headline"] == "the process is gone"


def test_the_screen_is_as_wide_as_a_terminal(job):
    shown = seen(job, size=(80, 24))
    assert shown["headline"].startswith("job.memlab: 2 ranks, rank 1: peak 19.0 MiB")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere.memlab", "nowhere.memlab is no folder of a job, and no number of a process"),
        ("999999999", "there is no process 999999999 of this user"),
    ],
)
def test_targets_that_are_none(target, message, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(["watch", target]) == 2
    assert capsys.readouterr().err == f"pytorch-memlab watch: error: {message}\n"


def test_without_a_terminal_the_answer_is_printed_by_show(job, capsys):
    assert main(["watch", job]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab watch: error: watch needs a terminal: pytorch-memlab show prints the"
        " folder of a job\n"
    )


def test_without_textual_the_error_says_how_to_get_it(job, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "pytorch_memlab.cli.watch_screen")
    for name in [one for one in sys.modules if one.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.setitem(sys.modules, "textual.app", None)
    assert main(["watch", job]) == 2
    assert f"the screen needs textual: {sys.executable} -m pip install textual" in (
        capsys.readouterr().err
    )
