"""Whole text tables."""

from support.sample_reports import (
    CONVOLUTION,
    CUDA0,
    CUDA1,
    INNER,
    KIB,
    MARKED_TEXT,
    MEAN,
    OUTER,
    QR,
    SAMPLE_TEXT,
    entry,
    marked_report,
    sample_report,
)

from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import Approximation, ApproximationKind, FunctionInfo, LineEntry, Report
from pytorch_memlab.render import text


def test_sample_tables() -> None:
    assert text.render(sample_report()) == SAMPLE_TEXT


def test_notes_come_below_the_tables() -> None:
    assert text.render(sample_report("simulated GPU: L4", "second")) == (
        SAMPLE_TEXT + "\nsimulated GPU: L4\nsecond\n"
    )


def test_lines_of_which_a_simulation_did_not_know_all_are_marked() -> None:
    assert text.render(marked_report()) == MARKED_TEXT
    assert text.render(marked_report("simulated GPU: L4")) == (
        MARKED_TEXT + "\nsimulated GPU: L4\n"
    )


def test_a_mark_needs_no_source_and_no_certain_column() -> None:
    function = FunctionInfo("f", "<stdin>", 1, None)
    report = LineRecords([entry(1, 2, 0, approximations=(QR,)), entry(1, 1, 0)], {1: function})
    assert (
        text.render(report.display(columns="hits").report)
        == """\
## f

hits line  code
   1    1
   1    2?

line 2: not modelled: linalg_qr (2 calls, 1.0 KiB of outputs in all)
"""
    )


def test_a_line_names_three_ops_of_a_kind_the_largest_first() -> None:
    ops = [
        Approximation(ApproximationKind.UNMODELLED, f"op{size}", 1, size)
        for size in (1, 5, 3, 2, 4)
    ]
    report = LineRecords([entry(1, 8, 0, approximations=tuple(ops))], {1: OUTER}).display().report
    assert text.render(report).splitlines()[-1] == (
        "line 8: not modelled: op5 (1 call, 5 B of outputs), op4 (1 call, 4 B of outputs), "
        "op3 (1 call, 3 B of outputs) and 2 more"
    )


def test_reads_of_one_call_in_several_places_are_one_in_the_line() -> None:
    reads = [
        Approximation(
            ApproximationKind.AT_MOST, "nonzero", count, 0, "every element True", f"a.py:{count}"
        )
        for count in (1, 2)
    ]
    report = LineRecords([entry(1, 8, 0, approximations=tuple(reads))], {1: OUTER}).display().report
    assert text.render(report).splitlines()[-1] == (
        "line 8: sizes assumed, at most: nonzero (3 times, every element True)"
    )


def test_memory_of_unknown_size_is_not_counted_and_makes_a_lower_bound() -> None:
    records = LineRecords([entry(1, 8, 0, approximations=(MEAN, CONVOLUTION))], {1: OUTER})
    lines = text.render(records.display(columns="hits").report).splitlines()
    assert [line.split()[:2] for line in lines if "8?" in line] == [["1", "8?"]]
    assert lines[-2:] == [
        "line 8: not counted: cuDNN workspaces of convolution (3 calls, at most 4.0 KiB each)",
        "line 8: estimated: mean (1 call, 3.0 MiB of kernel memory)",
    ]


def test_ten_lines_have_notes_estimates_last() -> None:
    function = FunctionInfo("f", "f.py", 1, ("",) * 14)
    entries = [
        entry(1, line, 0, approximations=(MEAN if line < 12 else QR,)) for line in range(1, 14)
    ]
    report = LineRecords(entries, {1: function}).display(columns="hits").report
    shown = text.render(report)
    table = shown.splitlines()[3:17]
    assert table == [
        *(f"   1 {line:4}{'~' if line < 12 else '?'}" for line in range(1, 14)),
        "       14",
    ]
    notes = shown.split("\n\n")[-1].splitlines()
    assert [note.partition(":")[0] for note in notes] == [
        *(f"line {line}" for line in (1, 2, 3, 4, 5, 6, 7, 8, 12, 13)),
        "and 3 more lines marked above",
    ]


def test_columns_of_every_kind() -> None:
    entries = [
        entry(1, 7, 0, hits=1, time=0.0000123),
        entry(1, 8, 0, hits=12345, time=1.5, delta=-40 * KIB),
        LineEntry(1, 10, CUDA0, 3, 0.0125, 2 * 1024**3, 0, {"segment.all.peak": 2}),
    ]
    columns = ["hits", "delta", "time", "segment.all.peak", "active_bytes.all.peak"]
    report = LineRecords(entries, {1: OUTER}).display(columns=columns).report
    assert (
        text.render(report)
        == """\
## outer

 hits   delta       time segment active_bytes line  code
                             all          all
                            peak         peak
    1   0.00B    0.012ms                0.00B    7  def outer():
12345 -40.00K 1500.000ms                0.00B    8      linear = torch.nn.Linear(100, 100).cuda()
                                                 9      linear2 = torch.nn.Linear(100, 100).cuda()
    3   2.00G   12.500ms       2                10      inner()
"""
    )


def test_every_source_line_is_shown_and_none_has_trailing_blanks() -> None:
    source = ("@profile", "def f():  ", "", "    # a comment", "    x = 1", "")
    function = FunctionInfo("f", "f.py", 9998, source)
    report = LineRecords([entry(1, 10002, 512)], {1: function}).display().report
    assert (
        text.render(report)
        == """\
## f

active_bytes reserved_bytes  line  code
         all            all
        peak           peak
                             9998  @profile
                             9999  def f():
                            10000
                            10001      # a comment
     512.00B          2.00M 10002      x = 1
                            10003
"""
    )


def test_function_without_source_shows_its_lines() -> None:
    function = FunctionInfo("f", "<stdin>", 1, None)
    entries = [entry(1, 2, 512), entry(1, 1, 0)]
    report = LineRecords(entries, {1: function}).display(columns="active_bytes.all.peak").report
    assert (
        text.render(report)
        == """\
## f

active_bytes line  code
         all
        peak
       0.00B    1
     512.00B    2
"""
    )


def test_line_beyond_the_source_is_shown() -> None:
    function = FunctionInfo("f", "f.py", 1, ("def f():",))
    report = LineRecords([entry(1, 3, 512)], {1: function}).display(columns="hits").report
    assert (
        text.render(report)
        == """\
## f

hits line  code
        1  def f():
   1    3
"""
    )


def test_several_devices_are_named() -> None:
    entries = [entry(2, 4, 1024), entry(2, 4, 512, device=CUDA1)]
    report = LineRecords(entries, {2: INNER}).display(columns="active_bytes.all.peak").report
    assert (
        text.render(report)
        == """\
## inner (cuda:0)

active_bytes line  code
         all
        peak
       1.00K    4  def inner():
                5      torch.nn.Linear(100, 100).cuda()


## inner (cuda:1)

active_bytes line  code
         all
        peak
     512.00B    4  def inner():
                5      torch.nn.Linear(100, 100).cuda()
"""
    )


def test_functions_of_one_name_stay_apart() -> None:
    infos = {
        1: FunctionInfo("Net.forward", "a.py", 3, None),
        2: FunctionInfo("Net.forward", "b.py", 3, None),
        3: FunctionInfo("step", "b.py", 9, None),
    }
    entries = [entry(code_id, infos[code_id].first_line, 512) for code_id in infos]
    report = LineRecords(entries, infos).display().report
    heads = [line for line in text.render(report).splitlines() if line.startswith("##")]
    assert heads == ["## Net.forward (a.py:3)", "## Net.forward (b.py:3)", "## step"]

    entries.append(entry(1, 3, 512, device=CUDA1))
    report = LineRecords(entries, infos).display().report
    heads = [line for line in text.render(report).splitlines() if line.startswith("##")]
    assert heads == [
        "## Net.forward (a.py:3, cuda:0)",
        "## Net.forward (a.py:3, cuda:1)",
        "## Net.forward (b.py:3, cuda:0)",
        "## step (cuda:0)",
    ]


def test_no_tables_is_never_without_a_reason() -> None:
    assert text.render(Report(("hits",), (), ("f did not run", "simulated GPU: L4"))) == (
        "No data collected: f did not run\nsimulated GPU: L4\n"
    )
    assert text.render(Report(("hits",), (), ())) == "No data collected: nothing was recorded\n"
