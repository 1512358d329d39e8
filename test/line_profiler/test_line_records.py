"""From recorded lines to reports and frames."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.sample_reports import (
    CONVOLUTION,
    CUDA0,
    CUDA1,
    INNER,
    ITEM,
    KIB,
    MEAN,
    MIB,
    OUTER,
    QR,
    SAMPLE_ENTRIES,
    SAMPLE_TEXT,
    entry,
    sample_records,
)

from pytorch_memlab.errors import UnknownColumnError, UsageError
from pytorch_memlab.line_profiler.line_records import LineRecords
from pytorch_memlab.records import FunctionInfo, LineEntry, NoteKind, Remark, Report
from pytorch_memlab.render.notes import texts


def test_display_is_the_text_of_the_sample() -> None:
    assert repr(sample_records().display()) + "\n" == SAMPLE_TEXT


def test_report_holds_raw_values_in_the_order_asked() -> None:
    report = sample_records("a note").display(None, ["delta", "active_bytes.all.peak"]).report
    assert report.columns == ("delta", "active_bytes.all.peak")
    assert [table.function for table in report.tables] == [OUTER, INNER]
    assert report.tables[0].rows == {
        7: (0, 0),
        8: (40 * KIB, 40 * KIB),
        9: (40 * KIB, 80 * KIB),
        10: (0, 120 * KIB),
    }
    assert texts(report.notes) == ("a note",)


def test_display_is_a_snapshot() -> None:
    entries = list(SAMPLE_ENTRIES[:1])
    display = LineRecords(entries, {1: OUTER}).display(columns="hits")
    entries.append(SAMPLE_ENTRIES[1])
    assert dict(display.report.tables[0].rows) == {7: (1,)}


def test_device_on_which_nothing_was_allocated_has_zeros() -> None:
    unused = LineEntry(1, 7, CUDA0, 2, 0.5, 0, 0, {})
    report = LineRecords([unused], {1: OUTER}).display().report
    assert report.tables[0].rows == {7: (0, 0)}


def test_statistic_that_a_device_lacks_is_none() -> None:
    report = sample_records().display(columns=["requested_bytes.all.peak"]).report
    assert report.tables[1].rows == {4: (None,), 5: (None,)}


def test_devices_come_in_the_order_of_their_numbers() -> None:
    devices = [CUDA1.__class__(f"cuda:{index}", "L4", simulated=False) for index in (10, 2, 0)]
    entries = [entry(1, 8, 512, device=device) for device in devices]
    report = LineRecords(entries, {1: OUTER}).display().report
    assert [table.device.name for table in report.tables] == ["cuda:0", "cuda:2", "cuda:10"]


def test_a_device_that_keeps_memory_for_later_has_no_table() -> None:
    cached = [entry(1, line, 0, device=CUDA1) for line in (7, 8)]
    records = LineRecords([*SAMPLE_ENTRIES, *cached], {1: OUTER, 2: INNER}, ("end",))
    report = records.display().report
    assert [table.device.name for table in report.tables] == ["cuda:0", "cuda:0"]
    assert texts(report.notes) == ("end", "no memory was in use on cuda:1: no table")
    # It says nothing of devices of other functions.
    assert texts(records.display("inner").report.notes) == ("end",)

    freed = entry(1, 8, 0, device=CUDA1, delta=-512)
    names = [
        (table.function.qual_name, table.device.name)
        for table in LineRecords([*SAMPLE_ENTRIES, *cached, freed], {1: OUTER, 2: INNER})
        .display()
        .report.tables
    ]
    assert names == [("outer", "cuda:0"), ("outer", "cuda:1"), ("inner", "cuda:0")]


def test_without_memory_in_use_the_first_device_has_a_table() -> None:
    entries = [entry(1, 8, 0, device=device) for device in (CUDA1, CUDA0)]
    report = LineRecords(entries, {1: OUTER}).display().report
    assert [table.device.name for table in report.tables] == ["cuda:0"]


@pytest.mark.parametrize("func", ["inner", ["inner"], ("inner", "inner"), {"inner"}])
def test_function_is_chosen_by_qualified_name(func: object) -> None:
    report = sample_records().display(func).report
    assert [table.function.qual_name for table in report.tables] == ["inner"]


def test_list_of_names_keeps_the_order_of_registration() -> None:
    report = sample_records().display(["inner", "outer"]).report
    assert [table.function.qual_name for table in report.tables] == ["outer", "inner"]


class Net:
    """A class whose methods are registered."""

    def forward(self) -> None:
        """Run."""

    def backward(self) -> None:
        """Run back."""


def test_function_is_chosen_by_what_was_registered() -> None:
    infos = {
        id(method.__code__): FunctionInfo(method.__qualname__, __file__, 1, None)
        for method in (Net.forward, Net.backward)
    }
    entries = [entry(code_id, 1, 0) for code_id in infos]
    records = LineRecords(entries, infos)

    def chosen(func: object) -> list[str]:
        return [table.function.qual_name for table in records.display(func).report.tables]

    assert chosen(Net.forward) == ["Net.forward"]
    assert chosen(Net().backward) == ["Net.backward"]
    assert chosen(Net) == ["Net.forward", "Net.backward"]
    assert chosen(["Net.backward", Net.forward]) == ["Net.forward", "Net.backward"]
    with pytest.raises(
        UsageError,
        match=r"^test_function_is_chosen_by_what_was_registered.<locals>.chosen is not registered "
        r"with this profiler; registered: Net.forward, Net.backward$",
    ):
        records.display(chosen)


def test_unregistered_name_lists_the_registered_ones() -> None:
    with pytest.raises(
        UsageError,
        match=r"^innner is not registered with this profiler; registered: outer, inner$",
    ):
        sample_records().display("innner")


def test_long_list_of_registered_functions_is_cut() -> None:
    infos = {number: FunctionInfo(f"f{number}", "f.py", 1, None) for number in range(13)}
    with pytest.raises(UsageError, match=r"registered: f0, f1, .*, f8, f9 and 3 more$"):
        LineRecords([], infos).display("g")


def test_unknown_column_is_an_error() -> None:
    with pytest.raises(UnknownColumnError):
        sample_records().display(columns="active_bytes")


def test_registered_function_that_never_ran_says_so() -> None:
    records = LineRecords(SAMPLE_ENTRIES[:4], {1: OUTER, 2: INNER}, ["simulated GPU: L4"])
    assert records.display("inner").report == Report(
        ("active_bytes.all.peak", "reserved_bytes.all.peak"),
        (),
        (Remark(NoteKind.DID_NOT_RUN, ("inner",)), "simulated GPU: L4"),
    )
    assert (
        texts(records.display(["inner", "outer"]).report.notes)[0]
        == "inner did not run while profiled"
    )
    assert texts(records.display().report.notes) == ("simulated GPU: L4",)


def test_no_data_says_why() -> None:
    nothing_ran = LineRecords([], {1: OUTER, 2: INNER}).display()
    assert repr(nothing_ran) == "No data collected: outer, inner did not run while profiled"
    nothing_registered = LineRecords([], {}, ["simulated GPU: L4"]).display()
    assert repr(nothing_registered) == (
        "No data collected: no function was registered, see LineProfiler(function) and @profile\n"
        "simulated GPU: L4"
    )


def test_tidy_frame_has_a_row_for_each_device_function_and_line() -> None:
    entries = [*SAMPLE_ENTRIES, entry(1, 8, 512, device=CUDA1, hits=3, time=0.5, delta=-512)]
    frame = LineRecords(entries, {1: OUTER, 2: INNER}).to_dataframe()
    assert list(frame.columns) == [
        *("device", "function", "file", "line", "code", "hits", "time", "kept", "freed", "delta"),
        *("active_bytes.all.peak", "reserved_bytes.all.peak"),
    ]
    assert frame["line"].tolist() == [7, 8, 9, 10, 4, 5, 8]
    assert frame.iloc[1].tolist() == [
        *("cuda:0", "outer", "sample.py", 8, "    linear = torch.nn.Linear(100, 100).cuda()"),
        *(1, 0.001, 40 * KIB, 0, 40 * KIB, 40 * KIB, 2 * MIB),
    ]
    assert frame.iloc[6].tolist()[5:] == [3, 0.5, 0, 512, -512, 512, 2 * MIB]
    assert str(frame["active_bytes.all.peak"].dtype) == "int64"


def test_tidy_frame_is_in_the_order_of_devices_functions_and_lines() -> None:
    places = [(CUDA1, 1, 7), (CUDA0, 2, 5), (CUDA0, 1, 8), (CUDA0, 1, 7)]
    entries = [LineEntry(code, line, device, 1, 0.5, 0, 0, {}) for device, code, line in places]
    frame = LineRecords(entries, {1: OUTER, 2: INNER}).to_dataframe()
    assert [*zip(frame["device"], frame["function"], frame["line"], strict=True)] == [
        (CUDA0.name, OUTER.qual_name, 7),
        (CUDA0.name, OUTER.qual_name, 8),
        (CUDA0.name, INNER.qual_name, 5),
        (CUDA1.name, OUTER.qual_name, 7),
    ]


def test_tidy_frame_keeps_ints_beside_gaps() -> None:
    entries = [entry(1, 8, 2**60 + 1), LineEntry(1, 9, CUDA0, 1, 0.0, 0, 0, {"active.all.peak": 1})]
    frame = LineRecords(entries, {1: OUTER}).to_dataframe()
    assert frame["active_bytes.all.peak"].iloc[0] == 2**60 + 1
    assert frame["active_bytes.all.peak"].isna().tolist() == [False, True]


def test_tidy_frame_has_what_a_simulation_did_not_know() -> None:
    approximations = (QR, QR, CONVOLUTION, MEAN, ITEM)
    frame = LineRecords(
        [entry(1, 8, 0, approximations=approximations), entry(1, 9, 0)], {1: OUTER}
    ).to_dataframe()
    assert list(frame.columns[-4:]) == ["unmodelled", "uncounted", "estimated", "assumed"]
    assert frame.iloc[:, -4:].to_numpy().tolist() == [[2 * KIB, 3, 3 * MIB, 2], [0, 0, 0, 0]]


def test_tidy_frame_of_nothing_has_its_columns() -> None:
    frame = LineRecords([], {1: OUTER}).to_dataframe()
    assert frame.empty
    assert list(frame.columns) == [
        *("device", "function", "file", "line", "code", "hits", "time", "kept", "freed", "delta")
    ]


def test_line_records_frame_as_torch_geometric_reads_it() -> None:
    columns = ["reserved_bytes.all.peak", "active_bytes.all.peak"]
    frame = sample_records().display(None, columns)._line_records
    maxima = frame.values.max(axis=0).tolist()
    assert maxima == [2 * MIB, 120 * KIB]
    assert all(isinstance(value, int) for value in maxima)


def test_line_records_frame_as_pycg_reads_it() -> None:
    frame: Any = sample_records().display()._line_records
    assert list(frame.index.levels[0]) == ["inner", "outer"]
    active = frame.loc["outer"].active_bytes
    assert active.iloc[0].item() == 0
    assert active.max().item() == 120 * KIB
    assert frame.columns.tolist() == [
        ("active_bytes", "all", "peak"),
        ("reserved_bytes", "all", "peak"),
    ]


def test_line_records_frame_joins_devices_by_their_maximum() -> None:
    entries = [entry(1, 8, 512), entry(1, 8, 1024, 0, device=CUDA1)]
    frame = LineRecords(entries, {1: OUTER}).display()._line_records
    assert frame.values.tolist() == [[1024, 2 * MIB]]
    assert frame.index.tolist() == [("outer", 8)]


def test_line_records_frame_of_nothing_is_empty() -> None:
    frame: Any = LineRecords([], {1: OUTER}).display(columns="hits")._line_records
    assert frame.shape == (0, 1)
    assert list(frame.index.levels[0]) == []


def test_text_needs_no_pandas() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from sample_reports import sample_records\n"
        "str(sample_records().display()); sys.exit(bool({'pandas', 'rich'} & {*sys.modules}))"
    )
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", program, str(root / "test" / "support")]
    done = subprocess.run(command, check=False, cwd=root)
    assert done.returncode == 0


def test_display_after_a_million_events_is_fast() -> None:
    source = tuple(f"    x{line} = torch.zeros(512).cuda()" for line in range(50))
    infos = {code: FunctionInfo(f"f{code}", "f.py", 1, source) for code in range(20)}
    entries = [entry(code, line, 512, hits=1000) for code in infos for line in range(1, 51)]
    assert sum(each.hits for each in entries) == 10**6
    begin = time.thread_time()
    shown = repr(LineRecords(entries, infos).display())
    assert time.thread_time() - begin < 0.1
    assert shown.count("512.00B") == 1000
