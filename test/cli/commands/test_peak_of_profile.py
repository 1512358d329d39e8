"""``pytorch-memlab peak`` of a saved profile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.blind import blind

from pytorch_memlab import load
from pytorch_memlab.cli.main import main
from pytorch_memlab.cli.run.files import RunFiles
from pytorch_memlab.errors import HistoryError

SCRIPT = """\
import torch


def make():
    return torch.zeros(1 << 20, device="cuda")


kept = make()
torch.cat([kept, kept])
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A folder to work in, with a script."""
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text(SCRIPT)
    return "script.py"


@pytest.mark.parametrize("by", ["line", "function", "module", "stack"])
def test_it_is_that_of_the_snapshot_of_the_same_run(
    by: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", "-o", "p.pickle", script])
    capsys.readouterr()
    assert main(["peak", "--by", by, "p.pickle"]) == 0
    of_snapshot = capsys.readouterr().out.splitlines()
    assert main(["peak", "--by", by, "p.json"]) == 0
    of_profile = capsys.readouterr().out.splitlines()
    begin = 0 if by == "stack" else 1  # which counts events
    assert of_profile[begin:] == of_snapshot[begin:]
    assert len(of_profile) > begin


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_a_profile_has_the_categories(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", script])
    capsys.readouterr()
    main(["peak", "--by", "category", "p.json"])
    assert [line.split("  ")[-1] for line in capsys.readouterr().out.splitlines()[2:]] == [
        "temporaries",
        "inputs and other tensors",
    ]


def test_the_peak_adds_up_to_that_of_the_lines(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", script])
    recorded = load("p.json").recorded()
    (device,) = recorded.devices
    holders = recorded.peaks["cuda:0"]
    assert sum(one.size for one in holders.by_line()) == device.peak_active == 12 << 20


def test_differences_of_holders_follow_moved_lines(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "a.json", script])
    Path(script).write_text("import torch\n\n\n" + SCRIPT.replace("1 << 20", "1 << 21"))
    main(["run", "--gpu", "24GiB", "-o", "b.json", script])
    capsys.readouterr()
    main(["diff", "a.json", "b.json"])
    out = capsys.readouterr().out
    assert (
        "held at the peak of cuda:0, by line:\n"
        "   +8.0 MiB 8.0 MiB -> 16.0 MiB      script.py:12\n"
        "   +4.0 MiB 4.0 MiB -> 8.0 MiB       script.py:8\n"
    ) in out


def test_without_a_history_a_gpu_has_no_holders(
    script: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(RunFiles, "need_allocations", False)
    with blind():
        main(["run", "--gpu", "24GiB", "-o", "p.json", script])
    capsys.readouterr()
    why = "does not tell what held the peak: on a GPU run --history and LineProfiler(..., "

    assert main(["peak", "p.json"]) == 2
    assert capsys.readouterr().err == (
        f"pytorch-memlab peak: error: p.json {why}history=True) record it\n"
    )
    with pytest.raises(HistoryError, match=re.escape(f"the profile {why}")):
        load("p.json").peak_holders()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p.json", "--device", "3"], "p.json has no peak of GPU 3: no memory was recorded in use"),
        (["empty.json"], "empty.json has no peak: no memory was recorded in use"),
        (["other.json"], "other.json is not a memory snapshot: it is JSON, and "),
        (["cut.json"], "cut.json is cut off or damaged: its JSON ends or breaks at character "),
        (["missing.json"], "cannot read missing.json: No such file or directory"),
    ],
)
def test_what_has_no_peak_is_said_in_one_line(
    arguments: list[str], message: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", script])
    Path("none.py").write_text("x = 1\n")
    main(["run", "--gpu", "24GiB", "-o", "empty.json", "none.py"])
    Path("other.json").write_text('{"a": 1}')
    Path("cut.json").write_text(Path("p.json").read_text()[:500])
    capsys.readouterr()
    assert main(["peak", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pytorch-memlab peak: error: {message}")
    assert err.count("\n") == 1


def test_history_is_kept_in_a_profile_alone(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--gpu", "24GiB", "--history", script]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab run: error: --history is for the profile: give -o FILE.json too\n"
    )
    main(["run", "--gpu", "24GiB", "--history", "-o", "p.json", script])
    assert len(load("p.json").history().devices[0].events) > 3


def test_a_history_of_nothing_is_left_out(script: str) -> None:
    Path("none.py").write_text("x = 1\n")
    assert main(["run", "--history", "--gpu", "24GiB", "-o", "p.json", "none.py"]) == 0
    assert load("p.json").recorded().functions[0].qual_name == "<module>"


def test_the_report_of_categories_is_saved_and_shown(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "--report", script])
    printed = capsys.readouterr().out
    main(["run", "--gpu", "24GiB", "--report", "-o", "p.json", script])
    capsys.readouterr()
    (section,) = load("p.json").recorded().sections
    main(["show", "p.json"])
    assert section.title in printed
    assert capsys.readouterr().out.startswith(printed)


def test_a_history_in_a_profile_is_replayed_and_drawn(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "plain.json", script])
    main(["run", "--gpu", "24GiB", "--history", "-o", "p.json", "-o", "p.pickle", script])
    capsys.readouterr()
    assert main(["replay", "p.pickle", "--set", "expandable_segments:True"]) == 0
    of_snapshot = capsys.readouterr().out.splitlines()
    assert main(["replay", "p.json", "--set", "expandable_segments:True"]) == 0
    # PyTorch's format has one more event for each free.
    assert capsys.readouterr().out.splitlines()[1:] == of_snapshot[1:]
    assert main(["timeline", "-o", "p.html", "p.json"]) == 0
    assert "script.py:9" in Path("p.html").read_text()
    capsys.readouterr()
    for command in (["replay"], ["timeline", "-o", "q.html"]):
        assert main([*command, "plain.json"]) == 2
        assert capsys.readouterr().err == (
            f"pytorch-memlab {command[0]}: error: the profile has no history: record it with run "
            "--history\n"
        )
