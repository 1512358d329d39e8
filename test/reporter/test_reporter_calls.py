"""Calls of the memory reporter that programs make."""

from __future__ import annotations

import io
import sys
import textwrap

import pytest
import torch
from support.small_reports import report_of, stats_of

from pytorch_memlab.errors import UsageError
from pytorch_memlab.mem_reporter import LEN, MemReporter
from pytorch_memlab.simulation import simulate
from pytorch_memlab.utils import readable_size


def test_subclasses_print_their_own_way(gpu, capsys):
    class Sorted(MemReporter):
        def print_stats(self, verbose=False, target_device=None):
            for device, rows in self.device_tensor_stat.items():
                if device == target_device:
                    for name, _, _, memory in sorted(rows, key=lambda row: -row[3]):
                        print(name.split("(")[0], readable_size(memory), "-" * LEN, verbose)

    tensors = [torch.ones(1024, device="cuda"), torch.ones(2048, device="cuda")]
    Sorted().report(True, torch.device("cuda:0"))

    separator = "-" * 79
    assert capsys.readouterr().out == (
        f"Tensor1 8.00K {separator} True\nTensor0 4.00K {separator} True\n"
    )
    del tensors


def test_output_goes_to_the_stdout_of_the_moment(gpu, monkeypatch):
    reporter = MemReporter()
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    reporter.report()

    assert out.getvalue().startswith("Element type")


def test_all_devices_in_order_and_one_alone():
    with simulate("24GiB", count=2):
        tensors = [torch.ones(size, device=f"cuda:{index}") for index, size in ((1, 9), (0, 8))]
        host = torch.ones(7)
        reporter = MemReporter()
        text = report_of(reporter, None)
        second = report_of(reporter, torch.device("cuda:1"))
        both = report_of(reporter, "cuda")
    headings = [line for line in text.splitlines() if line.startswith("Storage on")]

    assert headings[:3] == ["Storage on cuda:0", "Storage on cuda:1", "Storage on cpu"]
    assert "Storage on cuda:0" not in second
    assert "(9,)" in second
    assert both.count("Storage on") == 2
    del tensors, host


def test_a_device_without_tensors_says_so(gpu):
    hidden = torch.ones(1024, device="cuda").untyped_storage()

    assert report_of(MemReporter(), "cuda:0") == textwrap.dedent("""\
        Element type                                            Size  Used MEM
        -------------------------------------------------------------------------------
        Storage on cuda:0
        -------------------------------------------------------------------------------
        Total Tensors: 0        Used Memory: 0.00B
        The allocated memory on cuda:0: 4.00K
        Memory differs due to the matrix alignment
        -------------------------------------------------------------------------------
        """)
    del hidden


def test_devices_that_do_not_exist(gpu, tmp_path):
    tensor = torch.ones(4, device="cuda")
    reporter = MemReporter()
    written = tmp_path / "report.txt"
    written.write_text("what was there")

    for device in ("cuda:7", 7, torch.device("cuda", 7)):
        for details in (False, True):
            with pytest.raises(UsageError, match=r"^no device 'cuda:7' here: there is cuda:0"):
                reporter.report(device=device, details=details, file=written)
    for device in ("gpu", -1, True, 1.5, ["cuda"], ""):
        with pytest.raises(
            UsageError, match=r"give an index, or a name such as 'cuda:0' or 'cpu'$"
        ):
            reporter.report(device=device)
    with pytest.raises(UsageError, match=r"^no device 'cuda:1' here"):
        reporter.snapshot().on(1)
    assert written.read_text() == "what was there"
    assert "Storage on meta" in report_of(reporter, "meta")
    del tensor


def test_print_stats_takes_what_report_takes(gpu, capsys):
    tensor = torch.ones(4, device="cuda")
    reporter = MemReporter()
    stats_of(reporter)
    reporter.print_stats(target_device="cuda")
    text = capsys.readouterr().out
    reporter.print_stats(target_device=0)

    assert "Tensor0" in text
    assert capsys.readouterr().out == text
    del tensor


def test_a_long_name_keeps_its_distance_from_the_size(gpu):
    model = torch.nn.Module()
    model.register_parameter("x" * 70, torch.nn.Parameter(torch.ones(2, 3, device="cuda")))

    assert f"{'x' * 70} (2, 3)   512.00B\n" in report_of(MemReporter(model))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MemReporter("model"), "model must be a torch Module, not a str"),
        (lambda: MemReporter().add_optimizer(3), "optimizer must be a torch Optimizer, not a int"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        call()
