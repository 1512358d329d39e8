"""Saved profiles of format 1."""

import json

import pytest
from support import format_1
from support.sample_reports import (
    CONVOLUTION,
    CUDA0,
    CUDA1,
    OUTER,
    SAMPLE_ENTRIES,
    entry,
    marked_report,
    sample_report,
)

from pytorch_memlab.errors import UsageError
from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import FunctionInfo, FunctionTable, Report
from pytorch_memlab.render import saved_profile, text


def test_layout() -> None:
    report = sample_report("simulated GPU: L4")
    report = Report(report.columns, report.tables[1:], report.notes)
    assert json.loads(format_1.render(report)) == {
        "format": 1,
        "columns": ["active_bytes.all.peak", "reserved_bytes.all.peak"],
        "tables": [
            {
                "function": {
                    "qual_name": "inner",
                    "filename": "sample.py",
                    "first_line": 4,
                    "source": ["def inner():", "    torch.nn.Linear(100, 100).cuda()"],
                },
                "device": {
                    "name": "cuda:0",
                    "description": "NVIDIA H100 80GB HBM3",
                    "simulated": True,
                },
                "rows": {"4": [81920, 2097152], "5": [122880, 2097152]},
            }
        ],
        "notes": ["simulated GPU: L4"],
    }


def test_saved_profile_loads_as_it_was() -> None:
    infos = {
        1: FunctionInfo("f", "f.py", 7, ('x = "ü\\u2028</script>"', "")),
        2: FunctionInfo("g", "<stdin>", 4, None),
    }
    entries = [*SAMPLE_ENTRIES, entry(1, 8, 2**60 + 1, device=CUDA1, time=0.1 + 0.2, delta=-512)]
    columns = ["active_bytes.all.peak", "time", "delta", "segment.all.peak"]
    report = LineRecords(entries, infos, ["a", "b"]).display(None, columns).report
    loaded = saved_profile.load_tables(format_1.render(report))
    assert loaded == report
    assert loaded.tables[1].rows[8] == (2**60 + 1, 0.30000000000000004, -512, None)


def test_what_a_simulation_did_not_know_is_saved_with_its_line() -> None:
    report = marked_report("simulated GPU: L4")
    saved = json.loads(format_1.render(report))
    assert [table["gaps"] for table in saved["tables"]] == [
        {
            "8": [named("estimated", "mean", 1, 3 << 20)],
            "10": [
                named("estimated", "mean", 1, 3 << 20),
                named("unmodelled", "linalg_qr", 2, 1024),
                named("assumed", "Tensor.item", 2, 0, "0", "sample.py:5"),
            ],
        },
        {"5": [named("assumed", "Tensor.item", 2, 0, "0", "sample.py:5")]},
    ]
    for table in saved["tables"]:
        del table["gaps"]
    assert saved == json.loads(format_1.render(sample_report("simulated GPU: L4")))
    assert saved_profile.load_tables(format_1.render(report)) == report


def named(
    kind: str,
    name: str,
    calls: int,
    nbytes: int,
    assumption: str = "",
    place: str = "",
    unknown: str = "",
    at_most: int | None = None,
) -> dict[str, object]:
    return {
        "kind": kind,
        "name": name,
        "calls": calls,
        "nbytes": nbytes,
        "assumption": assumption,
        "place": place,
        "unknown": unknown,
        "at_most": at_most,
        "gives_way": at_most is not None,
    }


def test_memory_of_unknown_size_is_saved_and_loaded() -> None:
    report = (
        LineRecords([entry(1, 8, 0, approximations=(CONVOLUTION,))], {1: OUTER}).display().report
    )
    [table] = json.loads(format_1.render(report))["tables"]
    assert table["gaps"] == {
        "8": [named("uncounted", "convolution", 3, 0, unknown="cuDNN workspaces", at_most=4096)]
    }
    assert saved_profile.load_tables(format_1.render(report)) == report


def test_a_profile_saved_before_memory_of_unknown_size_was_told_loads() -> None:
    report = marked_report()
    saved = json.loads(format_1.render(report))
    for table in saved["tables"]:
        for approximations in table["gaps"].values():
            for approximation in approximations:
                del approximation["unknown"], approximation["at_most"], approximation["gives_way"]
    assert saved_profile.load_tables(json.dumps(saved)) == report


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"kind": "assumed"', '"kind": "guessed"'),
        ('"calls": 2', '"calls": "2"'),
        ('"place": "sample.py:5"', '"line": "sample.py:5"'),
        ('"gaps": {', '"gaps": 3, "rest": {'),
    ],
)
def test_damaged_gaps_are_refused(old: str, new: str) -> None:
    saved = format_1.render(marked_report())
    assert old in saved
    with pytest.raises(UsageError, match=r"^damaged saved profile: [^\n]*$"):
        saved_profile.load_tables(saved.replace(old, new, 1))


def test_report_without_tables_loads() -> None:
    report = Report(("hits",), (), ("f did not run",))
    assert saved_profile.load_tables(format_1.render(report)) == report


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"a": 1}', '"format"'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"^not a profile saved by pytorch_memlab as JSON$"):
        saved_profile.load_tables(text)


def test_other_format_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^saved profile of format 2; known is format 1$"):
        saved_profile.load_tables('{"format": 2}')


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"columns"', '"column"'),
        ('"first_line": 7', '"first_line": "7"'),
        ('"simulated": true', '"simulated": 1'),
        ('"qual_name": "outer"', '"qual_name": null'),
        ('"source": [', '"source": "x", "rest": ['),
        ('"7": [', '"seven": ['),
        ('"7": [', '"7": ["0",'),
        ('"7": [', '"7": [1,'),
        ('"notes": []', '"notes": "n"'),
    ],
)
def test_damaged_profile_is_refused(old: str, new: str) -> None:
    saved = format_1.render(sample_report())
    assert old in saved
    with pytest.raises(UsageError, match=r"^damaged saved profile: [^\n]*$"):
        saved_profile.load_tables(saved.replace(old, new, 1))


def test_folded_lines_stay_folded() -> None:
    source = ("def f():", "    return 1", "f()")
    function = FunctionInfo("<module>", "script.py", 1, source, folded=((2, 2), (5, 10**15)))
    report = Report(("hits",), (FunctionTable(function, CUDA0, {1: (1,), 3: (1,)}),), ())

    assert saved_profile.load_tables(format_1.render(report)) == report
    assert "return 1" not in text.render(report)
    assert text.render(report).splitlines()[3:] == ["   1    1  def f():", "   1    3  f()"]


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e999", "1" + "0" * 400, "-9223372036854775808"]
)
def test_numbers_that_no_counter_has_are_refused(number: str) -> None:
    saved = format_1.render(sample_report())
    begin = saved.index('"7": [') + len('"7": [')
    damaged = saved[:begin] + number + saved[saved.index(",", begin) :]
    with pytest.raises(UsageError, match=r"^(damaged saved profile: |not a profile saved )[^\n]*$"):
        saved_profile.load_tables(damaged)


def test_text_of_endless_depth_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^not a profile saved by pytorch_memlab as JSON$"):
        saved_profile.load_tables("[" * 100_000)
