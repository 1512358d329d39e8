"""``run --history-max`` keeps the last events, and says so wherever the history is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytorch_memlab.cli.main import main
from pytorch_memlab.line_profiler.saved_profile import load

PROGRAM = """\
import torch
first = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
del first
kept = torch.zeros(20 << 20, dtype=torch.uint8, device="cuda")
for step in range(50):
    more = torch.zeros(30 << 20, dtype=torch.uint8, device="cuda")
    del more
"""
EVENTS = 2 * 50 + 3 + 1  # of blocks, and of the one segment
RUN = ("run", "--dry-run", "--gpu", "24GiB", "--no-try")


@pytest.fixture(autouse=True)
def _program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)


def note(kept: int) -> str:
    return (
        f"cuda:0: the history has the last {kept} of {EVENTS} events, as it is limited: its"
        " timeline and replays begin there, and all other figures are of the whole run"
    )


def told(text: str) -> list[str]:
    return re.findall(r"[^\n<>\"]*the history has the last[^\n<>\"]*", text)


@pytest.mark.knows_simulation("a history of PyTorch does not say how many events it dropped")
def test_the_note_is_in_the_report_the_page_and_the_file(
    capsys: pytest.CaptureFixture[str],
) -> None:
    outputs = [word for name in ("p.json", "p.html", "p.txt") for word in ("-o", name)]
    # A second run in the same folder.
    for limit in (10, 20):
        assert (
            main([*RUN, "--history", "--history-max", f"{limit}", "--force", *outputs, "train.py"])
            == 0
        )
        for name in ("p.json", "p.html", "p.txt"):
            assert told(Path(name).read_text()) == [note(limit)]
        profile = load("p.json")
        device = profile.history().devices[0]
        assert (len(device.events), device.dropped) == (limit, EVENTS - limit)
        # The peak of the whole run was before.
        assert profile.peak_holders().peak.active == 64 << 20
    capsys.readouterr()
    assert main(["show", "p.json"]) == 0
    assert told(capsys.readouterr().out) == [note(20)]
    assert "at train.py:2 in <module>" in Path("p.txt").read_text()
    assert main(["timeline", "-o", "t.html", "p.json"]) == 0
    drawn = "cuda:0: 50.0 MiB in use at the peak, 64.0 MiB reserved"
    drawn += f" (event 1 of the last 20 of {EVENTS})"
    assert drawn in Path("t.html").read_text()
    assert main(["timeline", "-o", "t.svg", "p.json"]) == 0
    assert f"events of the allocator: the last 20 of {EVENTS}" in Path("t.svg").read_text()
    capsys.readouterr()
    assert main(["replay", "p.json"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"cuda:0: the last 20 of {EVENTS} events"
    assert "replayed: all 10 allocations and 0 changes of segments are as recorded" in rest


@pytest.mark.knows_simulation("a history of PyTorch does not say how many events it dropped")
@pytest.mark.parametrize("limit", [[], ["--history-max", f"{EVENTS}"]])
def test_nothing_is_said_where_all_events_are_kept(
    limit: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*RUN, "--history", *limit, "-o", "p.json", "-o", "p.txt", "train.py"]) == 0
    assert told(Path("p.txt").read_text()) == []
    assert len(load("p.json").history().devices[0].events) == EVENTS
    capsys.readouterr()
    main(["replay", "p.json"])
    assert capsys.readouterr().out.startswith(f"cuda:0: {EVENTS} events\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--history", "--history-max", "0"],
            "--history-max is a number of events from 1 on, not 0",
        ),
        (
            ["--history", "--history-max=-5"],
            "--history-max is a number of events from 1 on, not -5",
        ),
        (
            ["--history", "--history-max", "1e4"],
            "--history-max is a number of events from 1 on, not 1e4",
        ),
        (["--history-max", "10"], "--history-max limits --history: give --history too"),
    ],
)
def test_a_limit_that_is_none_is_refused(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main([*RUN, *options, "-o", "p.json", "train.py"])
    except SystemExit as ending:
        code = ending.code
    assert code == 2
    assert capsys.readouterr().err == f"pytorch-memlab run: error: {message}\n"
    assert not Path("p.json").exists()
