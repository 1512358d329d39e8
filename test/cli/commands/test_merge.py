"""``pytorch-memlab merge``: the profiles of ranks or runs as one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.sample_reports import MIB

from pytorch_memlab import load
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import ProfileError
from pytorch_memlab.saved import profile_file

SCRIPT = """\
import os

import torch


def step(size):
    wide = torch.zeros(size, device="cuda")
    if size > 1 << 20:
        wide = torch.cat([wide, wide])
    return wide


for _ in range(2):
    kept = step((int(os.environ["RANK"]) + 1) << 20)
"""

STEP = """\
## step

hits delta max delta min peak max peak min line  code
   4     0.00B     0.00B   16.00M    4.00M    6  def step(size):
   4     8.00M     4.00M   24.00M    8.00M    7      wide = torch.zeros(size, device="cuda")
   4     0.00B     0.00B   24.00M    8.00M    8      if size > 1 << 20:
   2     8.00M     8.00M   40.00M   40.00M    9          wide = torch.cat([wide, wide])
   4     0.00B     0.00B   32.00M    8.00M   10      return wide
"""


@pytest.fixture
def ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """The profiles of two ranks."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        main(["run", "--gpu", "24GiB", "-o", "p{rank}.json", "train.py"])
    capsys.readouterr()
    return ["p0.json", "p1.json"]


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_two_ranks_as_one(ranks: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["merge", *ranks, "-o", "all.json"]) == 0
    assert capsys.readouterr() == ("", "merged profile of rank0, rank1 written to all.json\n")

    assert main(["show", "-f", "step", "-c", "hits,delta,peak", "all.json"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(STEP)
    notes = [line.partition(" (")[0] for line in out[len(STEP) :].splitlines()]
    day = notes[3].partition(" on ")[2], notes[4].partition(" on ")[2]
    assert notes == [
        "",
        "simulated GPU: Simulated GPU",
        "max, min and sums are over rank0 cuda:0, rank1 cuda:0",
        f"rank0: recorded of train.py on {day[0]}",
        f"rank1: recorded of train.py on {day[1]}",
        "rank0 cuda:0",
        "rank1 cuda:0",
    ]
    loaded = load("all.json")
    assert repr(loaded.display("step", ["hits", "delta", "peak"])) in out.replace(
        "\n\nrec", "\nrec"
    )


def test_every_line_of_every_rank_is_kept(ranks: list[str]) -> None:
    main(["merge", *ranks, "-o", "all.json"])
    merged = load("all.json").recorded()
    parts = [load(name).recorded() for name in ranks]
    assert [one.device.name for one in merged.devices] == ["rank0 cuda:0", "rank1 cuda:0"]
    assert [one.peak_active for one in merged.devices] == [
        part.devices[0].peak_active for part in parts
    ]
    for rank, part in enumerate(parts):
        of_rank = [one for one in merged.entries if one.device.name == f"rank{rank} cuda:0"]
        assert [(one.line, one.hits, one.delta, one.stats) for one in of_rank] == [
            (one.line, one.hits, one.delta, one.stats) for one in part.entries
        ]
    (call,) = [one for one in merged.calls if merged.functions[one.callee].qual_name == "step"]
    assert call.hits == 4
    assert set(call.added) == {"rank0 cuda:0", "rank1 cuda:0"}


def test_merged_profiles_are_ranked_and_compared(
    ranks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["merge", *ranks, "-o", "all.json"])
    capsys.readouterr()
    assert main(["top", "-n", "1", "all.json"]) == 0
    assert (
        "    8.0 MiB train.py:7  step  2 hits, kept 8.0 MiB  on rank1 cuda:0\n"
        in capsys.readouterr().out
    )
    assert main(["diff", "--fail-over", "0", "all.json", "all.json"]) == 0
    assert "rank1 cuda:0" in capsys.readouterr().out


def test_runs_of_one_rank_have_numbers_and_more_can_be_merged(
    ranks: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("again.json").write_bytes(Path("p0.json").read_bytes())
    Path("third.json").write_bytes(Path("p0.json").read_bytes())
    assert main(["merge", "p0.json", "again.json", "-o", "runs.json"]) == 0
    assert main(["merge", "runs.json", "third.json", "-o", "more.json"]) == 0
    assert capsys.readouterr().err == (
        "merged profile of run1, run2 written to runs.json\n"
        "merged profile of run1, run2, run3 written to more.json\n"
    )


def test_functions_of_equal_text_stay_apart(ranks: list[str]) -> None:
    for name in ranks:
        profile = load(name).recorded()
        twice = replace(
            profile,
            functions=profile.functions * 2,
            entries=(
                *profile.entries,
                *(replace(one, code_id=one.code_id + 2, hits=9) for one in profile.entries),
            ),
        )
        Path(name).write_text(profile_file.text_of(twice))
    main(["merge", *ranks, "-o", "all.json"])
    merged = load("all.json").recorded()
    assert len(merged.functions) == 4
    assert sum(one.hits == 9 for one in merged.entries) == len(merged.entries) // 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["p0.json", "-o", "all.json"], "give two files or more to merge"),
        (["p0.json", "p0.json", "-o", "all.json"], "a file is given twice"),
        (["p0.json", "p1.json", "-o", "all.html"], "a profile is a .json file, not all.html"),
        (["p0.json", "p1.json", "-o", "p0.json"], "p0.json is there already: --force "),
        (["p0.json", "p1.json", "-o", "no/all.json"], "cannot write no/all.json: no such folder"),
        (
            ["p0.json", "old.json", "-o", "all.json"],
            "old.json is JSON, but no profile of pytorch_memlab",
        ),
        (["p0.json", "no.json", "-o", "all.json"], "cannot read no.json: No such file"),
        (
            ["p0.json", "eval.json", "-o", "all.json"],
            "p0.json is of train.py and eval.json of eval.py: ranks or runs of one program are",
        ),
        (["p0.json", "ranks.json", "-o", "all.json"], "rank0 is twice in p0.json, ranks.json: "),
    ],
)
def test_what_cannot_be_merged_is_said_in_one_line(
    arguments: list[str],
    message: str,
    ranks: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["merge", *ranks, "-o", "ranks.json"])
    Path("old.json").write_text('{"format": 1, "tables": []}')
    profile = load("p1.json").recorded()
    other = replace(profile, runs=(replace(profile.runs[0], program="/x/eval.py"),))
    Path("eval.json").write_text(profile_file.text_of(other))
    capsys.readouterr()
    assert main(["merge", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pytorch-memlab merge: error: {message}")
    assert err.count("\n") == 1
    assert not Path("all.json").exists()


def test_a_full_disk_is_said_in_one_line(
    ranks: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["merge", *ranks, "-o", "all.json"]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab merge: error: cannot write all.json: No space left on device\n"
    )
    with pytest.raises(ProfileError):
        load("all.json")


def test_an_older_file_is_overwritten_by_force(ranks: list[str]) -> None:
    Path("all.json").write_text("of before")
    assert main(["merge", "--force", *ranks, "-o", "all.json"]) == 0
    assert len(load("all.json").recorded().runs) == 2
    assert load("all.json").recorded().devices[0].peak_active >= MIB
