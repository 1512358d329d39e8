"""The report of a run from finished data: verdicts, bounds, real GPUs, and what is left out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.text import Text
from support.terminal import coloured

from pytorch_memlab.profiles.overview import COLUMNS, Choice, Overview, overview
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedCall, RecordedProfile, Run
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    DeviceInfo,
    FunctionInfo,
    FunctionTable,
    LineEntry,
    Report,
)
from pytorch_memlab.render.text import render, write

GPU = DeviceInfo("cuda:0", "NVIDIA A100-SXM4-80GB", simulated=False)
MIB = 2**20
RUN = Run("train.py", (), {}, "", 1.0, is_dry_run=False, exit_status=0)


def function(number: int, lines: int = 3) -> FunctionInfo:
    source = tuple(f"step_{number}_{line}()" for line in range(lines))
    return FunctionInfo(f"part{number}", "/home/me/model.py", 10 * number, source)


def entry(code: int, line: int, peak: int, kept: int = 0, temporary: int = 0, **stats: int) -> Any:
    stats = {"active_bytes.all.peak": peak, "temporary": temporary, **stats}
    return LineEntry(code, line, GPU, 1, 0.0, max(kept, 0), max(-kept, 0), stats)


def report_of(
    functions: list[FunctionInfo],
    entries: list[LineEntry],
    choice: Choice | None = None,
    device: MeasuredDevice | None = None,
    **fields: Any,
) -> Overview:
    """The table of lines on one GPU."""
    peak = max(one.stats["active_bytes.all.peak"] for one in entries)
    device = device or MeasuredDevice(GPU, 80 << 30, peak, peak, peak, 1 << 30)
    fields = {"runs": (RUN,), "calls": (), **fields}
    profile = RecordedProfile(
        devices=(device,), functions=tuple(functions), entries=tuple(entries), columns=(), **fields
    )
    tables = tuple(
        FunctionTable(
            one,
            GPU,
            {
                each.line: (
                    each.stats["active_bytes.all.peak"],
                    each.delta,
                    each.stats["temporary"],
                )
                for each in entries
                if each.code_id == number
            },
            {
                each.line: each.approximations
                for each in entries
                if each.code_id == number and each.approximations
            },
        )
        for number, one in enumerate(functions)
    )
    return overview(profile, Report(COLUMNS, tables, ("a note",)), choice or Choice())


def test_a_real_gpu_without_a_record_of_what_holds_its_memory() -> None:
    found = report_of(
        [function(1)], [entry(0, 11, 40 << 30, 30 << 30, 10 << 30), entry(0, 12, 30 << 30)]
    )

    assert render(found) == (
        "peak 40.00 GiB on cuda:0, 50% of 80.00 GiB (NVIDIA A100-SXM4-80GB)\n"
        "  at model.py:11 in part1: step_1_1()\n"
        "  peak 40.00 GiB reserved + 1.00 GiB context and other programs of 80.00 GiB:\n"
        "    fits, 39.00 GiB free\n"
        "\n"
        "## part1  model.py:10\n"
        "     peak      kept temporary line  code\n"
        "40.00 GiB 30.00 GiB 10.00 GiB   11  step_1_1()  <- peak\n"
        "\n"
        "1 line added nothing: --all shows them\n"
        "\n"
        "a note\n"
    )


def test_a_peak_that_does_not_count_everything_is_a_lower_bound_and_so_is_the_verdict() -> None:
    approximation = Approximation(
        ApproximationKind.UNCOUNTED, "convolution", 1, unknown="cuDNN workspaces"
    )
    marked = replace(entry(0, 12, 4 * MIB), approximations=(approximation,))
    text = render(report_of([function(1)], [entry(0, 11, 8 * MIB, 8 * MIB), marked]))

    assert text.startswith("peak at least 8.0 MiB on cuda:0, less than 0.1% of 80.00 GiB")
    assert (
        "\n  peak 8.0 MiB reserved + 1.00 GiB context and other programs of 80.00 GiB: fits\n"
        "    as far as memory is counted, 78.99 GiB free\n"
    ) in text
    assert "\n4.0 MiB       0         0   12? step_1_2()\n" in text  # its true size is not known
    assert "added nothing" not in text


def test_a_capacity_that_is_not_known_gives_no_share_and_no_verdict() -> None:
    device = MeasuredDevice(GPU, 0, 8 * MIB, 8 * MIB, 8 * MIB)
    text = render(report_of([function(1)], [entry(0, 11, 8 * MIB, MIB)], device=device))

    assert text.startswith(
        "peak 8.0 MiB on cuda:0 (NVIDIA A100-SXM4-80GB)\n  at model.py:11 in part1: step_1_1()\n\n"
    )


def test_the_peak_is_that_of_the_called_line_and_its_caller_is_not_charged() -> None:
    functions = [function(1), function(2)]
    entries = [entry(0, 11, 9 * MIB, 6 * MIB, 3 * MIB), entry(1, 21, 9 * MIB, 6 * MIB, 3 * MIB)]
    call = RecordedCall(1, 0, "/home/me/model.py", "part1", 11, 1, {"cuda:0": 6 * MIB})
    found = report_of(functions, entries, calls=(call,))

    assert [one.table.function.qual_name for one in found.functions] == ["part2", "part1"]
    assert [one.peak_line for one in found.functions] == [21, None]


def test_of_lines_with_one_peak_that_which_adds_to_it_is_marked() -> None:
    found = report_of([function(1)], [entry(0, 11, 8 * MIB), entry(0, 12, 8 * MIB, MIB)])

    assert found.functions[0].peak_line == 12


def test_ten_functions_and_ten_lines_of_each_are_shown() -> None:
    functions = [function(number, 13) for number in range(1, 13)]
    entries = [
        entry(code, one.first_line + line, MIB, (line + 1) * MIB)
        for code, one in enumerate(functions)
        for line in range(12)
    ]
    found = report_of(functions, entries)

    assert len(found.functions) == 10
    assert [len(one.lines or ()) for one in found.functions] == [10] * 10
    # The smallest are left out, but not the line of the peak.
    assert found.functions[0].lines == (10, *range(13, 22))
    assert "\n2 functions and 20 lines more: a larger --top shows them\n" in render(found)


@pytest.mark.parametrize("width", [80, 70])
def test_in_a_terminal_code_is_cut_and_the_mark_of_the_peak_stays(width: int) -> None:
    wide = FunctionInfo("part", "/m.py", 1, ("call(" + "argument, " * 20 + ")",))
    found = report_of([wide], [entry(0, 1, 8 * MIB, MIB)])
    lines = [Text.from_ansi(line).plain for line in coloured(write, found, width).splitlines()]

    (row,) = [line for line in lines if line.endswith("<- peak")]
    assert row.startswith("8.0 MiB 1.0 MiB         0    1  call(argument, ")
    assert row.endswith("…  <- peak")
    assert len(row) == width
    assert max(map(len, lines)) <= width
    assert "argument, " * 20 in render(found)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_terminal_wraps_the_headline_and_cuts_nothing_of_it(width: int) -> None:
    named = FunctionInfo("Transformer.forward", "/long/name_of_a_model.py", 1, ("y = call(x)",))
    found = report_of([named], [entry(0, 1, 8 * MIB, MIB)])

    def opening(columns: int) -> list[str]:
        lines = coloured(write, found, columns).splitlines()
        texts = [Text.from_ansi(line).plain.rstrip() for line in lines]
        return texts[: texts.index("")]

    narrow = opening(width)
    assert max(map(len, narrow)) <= width
    assert " ".join(" ".join(narrow).split()) == " ".join(" ".join(opening(200)).split())
    assert opening(200) == opening(80)
    if width == 40:
        assert narrow[:2] == [
            "peak 8.0 MiB on cuda:0, less than 0.1%",
            "  of 80.00 GiB (NVIDIA A100-SXM4-80GB)",
        ]
        rest = [Text.from_ansi(line).plain for line in coloured(write, found, 40).splitlines()]
        assert "\n## Transformer.forward\n  name_of_a_model.py:1\n" in "\n".join(rest)


def test_the_failing_line_keeps_its_code_and_remarks_go_below() -> None:
    code = "loss = criterion(model(images, labels), labels).mean()"
    found = report_of([FunctionInfo("part", "/m.py", 1, (code,))], [entry(0, 1, 8 * MIB, MIB)])
    (shown,) = found.functions
    table = replace(shown.table, failed={1: 512 * MIB})
    found = replace(found, functions=(replace(shown, table=table),))

    def rows(width: int) -> list[str]:
        lines = coloured(write, found, width).splitlines()
        texts = [Text.from_ansi(line).plain.rstrip() for line in lines]
        start = next(place for place, line in enumerate(texts) if "1! " in line)
        return texts[start : texts.index("", start)]

    numbers = "8.0 MiB 1.0 MiB         0    1! "
    assert rows(134) == [f"{numbers}{code}  # out of memory: asked for 512.0 MiB  <- peak"]
    assert rows(80) == [
        f"{numbers}loss = criterion(model(images, labels), labels)…",
        f"{' ' * 32}  # out of memory: asked for 512.0 MiB  <- peak",
    ]
    # A terminal without room for both remarks has them one below the other.
    assert [row.strip() for row in rows(44)[-2:]] == [
        "# out of memory: asked for 512.0 MiB",
        "<- peak",
    ]


def test_a_place_with_a_long_file_name_keeps_its_line_number() -> None:
    file = f"/site-packages/modeling_{'very_' * 20}large.py"
    named = FunctionInfo("Attention.forward", file, 1234, ("y = call(x)",))
    found = report_of(
        [named],
        [entry(0, 1234, 8 * MIB, MIB)],
        runs=(replace(RUN, exit_status=1),),
        failures={(0, 1234): 512 * MIB},
    )

    lines = render(found).splitlines()

    place = f"modeling_{'very_' * 6}ver…:1234 in Attention.forward"
    assert lines[1] == f"  at {place}: y =…"
    start = lines.index("out of memory at " + place.removesuffix("Attention.forward").rstrip())
    assert lines[start + 1] == "  Attention.forward, asked for 512.0 MiB"
