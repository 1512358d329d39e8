"""Forms of a memory report: files, order, data frames, HTML."""

from __future__ import annotations

import gc
import html.parser
import io
import shutil
import subprocess

import numpy
import pytest
import torch
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.errors import UsageError
from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.reporter.memory_snapshot import MemorySnapshot
from pytorch_memlab.simulation import simulate

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def gpu():
    gc.collect()
    gc.disable()
    with simulate("24GiB"):
        yield
    gc.enable()


def names_in(text: str) -> list[str]:
    lines = text.split("Storage on")[1].splitlines()[1:]
    return [line.split("  ")[0] for line in lines if not line.startswith("-") and ":" not in line]


def test_file_gets_what_would_be_printed(capsys, tmp_path):
    tensor = torch.ones(1000, device="cuda")
    reporter, stream = MemReporter(), io.StringIO()
    reporter.report(device=CUDA)
    printed = capsys.readouterr().out
    reporter.report(device=CUDA, file=stream)
    reporter.report(device=CUDA, file=tmp_path / "report.txt")
    reporter.report(device=CUDA, file=str(tmp_path / "details.txt"), details=True)

    assert "Tensor0" in printed
    assert stream.getvalue() == (tmp_path / "report.txt").read_text() == printed
    assert (tmp_path / "details.txt").read_text() == f"{reporter.snapshot().on(CUDA)}\n"
    assert capsys.readouterr().out == ""
    del tensor


def test_file_gets_what_a_subclass_prints():
    class Short(MemReporter):
        def print_stats(self, verbose=False, target_device=None):
            print(verbose, target_device, len(self.device_tensor_stat[CUDA]))

    tensors = [torch.ones(1, device="cuda") for _ in range(3)]
    stream = io.StringIO()
    Short().report(True, CUDA, file=stream, min_size=1024)

    assert stream.getvalue() == "True cuda:0 1\n"
    del tensors


@pytest.mark.parametrize(
    ("sort_by", "expected"),
    [
        (None, ["Tensor0", "Tensor1", "Tensor2"]),
        ("size", ["Tensor2", "Tensor0", "Tensor1"]),
        ("numel", ["Tensor1", "Tensor2", "Tensor0"]),
        ("name", ["Tensor0", "Tensor1", "Tensor2"]),
    ],
)
def test_order(capsys, sort_by, expected):
    first = torch.ones(300, device="cuda", dtype=torch.float64)
    second = torch.ones(1000, device="cuda", dtype=torch.uint8)
    third = torch.ones(900, device="cuda")
    MemReporter().report(device=CUDA, sort_by=sort_by)

    assert names_in(capsys.readouterr().out) == expected
    variables = {"Tensor0": "first", "Tensor1": "second", "Tensor2": "third"}
    arranged = MemReporter().snapshot().on(CUDA).arranged(sort_by)
    by_name = ["first", "second", "third"]
    wanted = by_name if sort_by == "name" else [variables[name] for name in expected]
    assert [row.name for row in arranged.rows] == wanted
    del first, second, third


def test_small_rows_are_put_together_and_sums_stay(capsys):
    large = torch.ones(1000, device="cuda")
    small = [torch.ones(10, device="cuda") for _ in range(7)]
    reporter = MemReporter()
    reporter.report(device=CUDA, min_size=1024)
    lines = capsys.readouterr().out.splitlines()

    assert lines[3:5] == [
        "Tensor0                                              (1000,)     4.00K",
        "7 smaller                                                        3.50K",
    ]
    assert lines[6] == "Total Tensors: 1070     Used Memory: 7.50K"
    arranged = reporter.snapshot().on(CUDA).arranged(min_size=1024)
    assert [(row.name, row.nbytes) for row in arranged.rows] == [
        ("large", 4000),
        ("7 smaller", 280),
    ]
    assert arranged.totals(CUDA) == reporter.snapshot().totals(CUDA)
    del large, small


def test_data_frame_has_raw_bytes():
    base = torch.ones(1000, device="cuda")
    part = base[1:]
    frame = MemReporter().to_dataframe()
    frame = frame[frame.device == "cuda:0"].set_index("name")

    assert frame.loc[
        "base", ["category", "size", "numel", "dtype", "bytes", "memory"]
    ].tolist() == [
        "inputs and other tensors",
        (1000,),
        1000,
        "float32",
        4000,
        4096,
    ]
    assert frame.loc["part", ["bytes", "memory", "shares"]].tolist() == [0, 0, "base"]
    assert str(frame.dtypes["bytes"]) == "int64"
    del part


@knows_saved_tensors
def test_data_frame_has_lines():
    leaf = torch.ones(1000, device="cuda", requires_grad=True)
    with MemReporter.record_lines():
        out = leaf.exp().sum()
    frame = MemReporter().to_dataframe()
    row = frame[(frame.saved_by == "ExpBackward0") & (frame.device == "cuda:0")].iloc[0]

    assert (row.file, row.line > 0) == (__file__, True)
    assert frame[frame.name == "leaf"].line.isna().all()
    del out


class Texts(html.parser.HTMLParser):
    """Texts of a page, and its tags."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tags: set[str] = set()
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())


HOSTILE = "<script>alert(1)</script>&\"'"


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_html_says_what_the_text_says_and_escapes_names():
    batch = {HOSTILE: torch.ones(1000, device="cuda")}
    part = batch[HOSTILE][1:]
    reporter = MemReporter()
    page = Texts(reporter._repr_html_())

    assert page.tags == {"div", "h3", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert f"batch[{HOSTILE!r}]" in page.texts
    assert f"view of batch[{HOSTILE!r}]" in page.texts
    for text in ("cuda:0: Simulated GPU (24.00 GiB), simulated", "= allocated", "3.91K"):
        assert text in page.texts
    del part


def test_html_of_changes_and_leaks():
    reporter = MemReporter()
    before = reporter.snapshot()
    batch = {HOSTILE: torch.ones(1000, device="cuda")}
    page = Texts(reporter.diff(before, reporter.snapshot())._repr_html_())

    assert page.tags == {"div", "p", "table", "thead", "tbody", "tr", "th", "td"}
    assert page.texts[0] == "1 came, in all +3.9 KiB"
    assert page.texts[1:7] == ["name", "change", "device", "before", "after", "difference"]
    assert page.texts[7:] == [f"batch[{HOSTILE!r}]", "came", "cuda:0", "0.00B", "3.91K", "+3.91K"]
    empty = Texts(reporter.diff(before, before)._repr_html_())
    assert empty.texts == ["no change"]
    leaks = Texts(reporter.leaks(3)._repr_html_())
    assert leaks.texts == ["0 iterations done: 3 are needed to tell a leak"]
    del batch


def test_a_browser_shows_the_html(tmp_path):
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no headless Chromium here")
    batch = {HOSTILE: torch.ones(1000, device="cuda")}
    (tmp_path / "page.html").write_text(f"<meta charset=utf-8>{MemReporter()._repr_html_()}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    done = subprocess.run(
        [*command, f"file://{tmp_path}/page.html"], capture_output=True, text=True, check=True
    )

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in done.stdout
    assert "<script" not in done.stdout
    del batch


def closed_file() -> io.StringIO:
    file = io.StringIO()
    file.close()
    return file


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, "file must be a path or a file opened for text, not a int"),
        (lambda: b"x.txt", "file must be a path or a file opened for text, not a bytes"),
        (io.BytesIO, "file must be a path or a file opened for text, not a BytesIO"),
        (closed_file, "file is closed: give an open one, or a path"),
    ],
)
@pytest.mark.parametrize("details", [False, True])
def test_files_that_cannot_be_printed_to(make, message, details):
    with pytest.raises(UsageError, match=f"^{message}$"):
        MemReporter().report(file=make(), details=details)


def test_arrangements_of_other_types():
    with pytest.raises(UsageError, match=r"^sort_by must be one of size, name, numel, not \['si"):
        MemReporter().report(sort_by=["size"])
    tensors = [torch.ones(8, device="cuda"), torch.ones(8, device="cuda")]

    rows = MemReporter().snapshot().on(CUDA).arranged(None, numpy.int64(64)).rows
    assert [row.name for row in rows] == ["2 smaller"]
    del tensors


def test_data_frames_without_rows_have_the_same_types():
    tensor = torch.ones(8, device="cuda")
    reporter = MemReporter()
    snapshot = reporter.snapshot()
    nothing = MemorySnapshot(())
    full, empty = snapshot.to_dataframe(), nothing.to_dataframe()
    came = reporter.diff(nothing, snapshot).to_dataframe()
    none = reporter.diff(snapshot, snapshot).to_dataframe()

    assert len(empty) == len(none) == 0 < len(came)
    assert empty.dtypes.to_dict() == full.dtypes.to_dict()
    assert none.dtypes.to_dict() == came.dtypes.to_dict()
    del tensor


def test_an_optimizer_whose_groups_cannot_be_read_does_not_end_the_report():
    class Closed(torch.optim.SGD):
        is_closed = False

        @property
        def param_groups(self):
            if self.is_closed:
                raise KeyError("closed")
            return self._groups

        @param_groups.setter
        def param_groups(self, groups):
            self._groups = groups

    weight = torch.nn.Parameter(torch.ones(300))
    optimizer = Closed([weight], lr=0.1)
    optimizer.is_closed = True
    stream = io.StringIO()
    MemReporter().report(file=stream, details=True)
    assert "300" in stream.getvalue() or "1.50K" in stream.getvalue()
    del weight
