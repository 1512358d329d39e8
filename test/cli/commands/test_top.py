"""``pytorch-memlab top``: the lines that add most, and those with the highest peaks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.sample_reports import CUDA0, CUDA1, MIB, entry

from pytorch_memlab.cli.main import main
from pytorch_memlab.profiles.ranking import lines_that_add, lines_with_peaks
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedCall, RecordedProfile
from pytorch_memlab.records import FunctionInfo, LineEntry

SCRIPT = """\
import torch


class Net(torch.nn.Module):
    def forward(self, x):
        wide = torch.cat([x, x, x])
        return wide[: 1 << 18].clone()


def steps(net, count):
    kept = []
    for _ in range(count):
        kept.append(net(torch.zeros(1 << 18, device="cuda")))
    return kept


out = steps(Net(), 3)
"""

TOP = """\
lines that add most themselves in a hit, without the functions that they call:
    3.0 MiB script.py:6  Net.forward  3 hits, kept 3.0 MiB
            wide = torch.cat([x, x, x])
    1.0 MiB script.py:7  Net.forward  3 hits, kept 1.0 MiB
            return wide[: 1 << 18].clone()

lines with the highest peaks:
    7.0 MiB script.py:7  Net.forward  3 hits, kept 1.0 MiB
            return wide[: 1 << 18].clone()
    6.0 MiB script.py:6  Net.forward  3 hits, kept 3.0 MiB
            wide = torch.cat([x, x, x])
            and {} more

"""


@pytest.fixture
def file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """The profile of the script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    main(["run", "--gpu", "24GiB", "-o", "p.json", "script.py"])
    capsys.readouterr()
    return "p.json"


def test_the_callers_of_what_keeps_and_peaks_are_left_out(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "-n", "2", file]) == 0
    out = capsys.readouterr().out
    assert "kept.append" not in out
    assert out.startswith(TOP.format(3))
    assert "\nrecorded of script.py on " in out
    assert out.endswith(": peak 7.0 MiB active, 7.0 MiB allocated, 24.0 MiB reserved\n")


def test_ten_rows_are_shown_unless_asked_otherwise(
    file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["top", file])
    assert " more\n" not in capsys.readouterr().out


def test_a_program_that_takes_no_memory(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("x = 1\n")
    main(["run", "--gpu", "24GiB", "--force", "-o", "p.json", "script.py"])
    capsys.readouterr()
    assert main(["top", file]) == 0
    assert capsys.readouterr().out.startswith(
        "no line adds memory\n\nno line has a peak: no memory was in use\n\nrecorded of script.py"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "cannot read missing.json: No such file or directory"),
        (["old.json"], "old.json is JSON, but no profile of pytorch_memlab"),
    ],
)
def test_what_cannot_be_ranked_is_said_in_one_line(
    arguments: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.json").write_text('{"format": 1, "tables": []}')
    assert main(["top", *arguments]) == 2
    assert capsys.readouterr() == ("", f"pytorch-memlab top: error: {message}\n")


def profile(entries: tuple[LineEntry, ...], *calls: RecordedCall) -> RecordedProfile:
    functions = tuple(
        FunctionInfo(name, "f.py", first, ("a", "b", "c")) for name, first in [("f", 1), ("g", 11)]
    )
    devices = tuple(MeasuredDevice(one, 0, 0, 0, 0) for one in (CUDA0, CUDA1))
    return RecordedProfile((), devices, functions, entries, calls, ("hits",))


def test_each_line_ranks_on_the_device_where_it_is_largest() -> None:
    entries = (
        entry(0, 1, 5 * MIB, delta=7),
        entry(0, 1, 6 * MIB, delta=3, device=CUDA1),
        entry(0, 2, MIB, delta=5),
    )
    found = profile(entries)
    assert [(one.line, one.device, one.own) for one in lines_that_add(found)] == [
        (1, "cuda:0", 7),
        (2, "cuda:0", 5),
    ]
    assert [(one.line, one.device, one.peak) for one in lines_with_peaks(found)] == [
        (1, "cuda:1", 6 * MIB),
        (2, "cuda:0", MIB),
    ]


def test_a_line_that_calls_and_peaks_higher_itself_has_its_row() -> None:
    entries = (entry(0, 2, 9 * MIB, delta=10), entry(1, 12, 8 * MIB, delta=4))
    call = RecordedCall(1, 0, "f.py", "f", 2, 1, {"cuda:0": 4})
    found = profile(entries, call)
    assert [(one.line, one.own) for one in lines_that_add(found)] == [(2, 6), (12, 4)]
    assert [one.line for one in lines_with_peaks(found)] == [2, 12]
    equal = replace(found, entries=(entry(0, 2, 8 * MIB), entries[1]))
    assert [one.line for one in lines_with_peaks(equal)] == [12]


def test_a_function_that_calls_itself_keeps_the_row_of_its_highest_line() -> None:
    entries = (entry(0, 2, 8 * MIB, delta=6), entry(0, 3, 5 * MIB))
    call = RecordedCall(0, 0, "f.py", "f", 2, 3, {"cuda:0": 4})
    found = profile(entries, call)
    assert [one.line for one in lines_with_peaks(found)] == [2, 3]
    assert [(one.line, one.own) for one in lines_that_add(found)] == [(2, 2)]
