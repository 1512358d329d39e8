"""Names that people type who come from the live versions of the projects before this one."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pandas as pd
import pytest
import torch

import pytorch_memlab
from pytorch_memlab import GPUMemory, GPUMemTrace, IPyExperimentsGPU, LineProfiler, simulate

MB = 2**20


def test_memory_of_a_gpu_in_mbs():
    names = ("", "_total", "_free", "_free_no_cache", "_used", "_used_no_cache")
    functions = [getattr(pytorch_memlab, f"gpu_mem_get{name}_mbs") for name in names]
    with simulate("64MiB", 2):
        held = torch.empty(22 * MB, dtype=torch.uint8, device="cuda")
        freed = torch.empty(20 * MB, dtype=torch.uint8, device="cuda")
        del freed
        assert [get() for get in functions[:3]] == [GPUMemory(64, 22, 42), 64, 22]
        assert functions[4]() == 42
        assert [get(1) for get in functions] == [GPUMemory(64, 64, 0), 64, 64, 64, 0, 0]
        assert [get() for get in functions[3:]] == [42, 22, 22]
        del held


def test_an_experiment_answers_for_the_memory_now(run, shell, capsys):
    shell.user_ns.update(IPyExperimentsGPU=IPyExperimentsGPU, torch=torch, MB=MB)
    with simulate("64MiB"):
        run("before = 1")
        run("exp = IPyExperimentsGPU()")
        run("x = torch.empty(20 * MB, dtype=torch.uint8, device='cuda'); exp.start()")
        exp = shell.user_ns["exp"]
        assert exp.get_var_names() == ["x"]
        assert exp.gpu_ram() == (64 * MB, 44 * MB, 20 * MB)
        assert (exp.gpu_ram_total(), exp.gpu_ram_avail(), exp.gpu_ram_used()) == exp.gpu_ram()
        total, avail, used = exp.cpu_ram()
        assert total == exp.cpu_ram_total() > exp.cpu_ram_avail() > 0
        assert total > avail > 0 < used <= exp.cpu_ram_used() + 2**30
        capsys.readouterr()
        exp.print_state()
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == "*** Current state:"
        assert lines[2:] == ["GPU RAM Free 44.0 MB | Used 20.0 MB | Util 31.2% | Total 64.0 MB"]
        run("exp.finish()")


def test_a_trace_takes_its_options_by_position(capsys):
    GPUMemTrace(False, "outer", True).report(subctx="inner")
    assert capsys.readouterr().out == "△used: 0MB, △peaked: 0MB: outer: inner\n"


def test_a_table_with_narrower_types_has_equal_values(capsys):
    table = pd.DataFrame(
        {
            "integers": np.arange(1000),
            "halves": np.arange(1000) / 2,
            "thirds": np.arange(1000) / 3,
            "texts": ["a", "b"] * 500,
            "lists": [[1]] * 1000,
            "truths": [True, False] * 500,
        }
    )
    narrow = pytorch_memlab.reduce_mem_usage(table)
    kinds = ["int16", "float32", "float64", "category", "object", "bool"]
    assert [str(kind) for kind in narrow.dtypes] == kinds
    assert all((narrow[name].astype(table[name].dtype) == table[name]).all() for name in table)
    assert re.fullmatch(r"0 MB of a table became 0 MB\n", capsys.readouterr().out)


def work():
    return torch.zeros(4, device="cuda")


def test_registering_the_callback_again_changes_nothing():
    with simulate("64MiB"), LineProfiler(work) as profiler:
        work()
        profiler.register_callback()
        work()
    assert len(profiler._raw_line_records) == 2
    [table] = profiler.display(columns="hits").report.tables
    assert list(table.rows.values()) == [(2,), (2,)]
    profiler.register_callback()
    assert not profiler.enabled


@pytest.fixture
def _untold(shell, monkeypatch):
    profile_module = importlib.import_module("pytorch_memlab.line_profiler.profile")
    monkeypatch.setattr(profile_module, "_has_told_of_display", False)
    yield
    pytorch_memlab.clear_global_line_profiler()


@pytest.mark.usefixtures("_untold")
@pytest.mark.parametrize(
    ("imports", "is_told"),
    [
        ("from pytorch_memlab import *", True),
        ("from pytorch_memlab import profile, display", False),
        ("import pytorch_memlab; from pytorch_memlab import profile as p", False),
    ],
)
def test_after_import_all_profile_says_once_how_to_display(run, shell, capsys, imports, is_told):
    run(imports)
    name = "p" if "as p" in imports else "profile"
    for cell in ("1", "2"):
        run(f"@{name}\ndef work{cell}(): pass")
    line = "from pytorch_memlab import display: then display() shows what @profile records\n"
    assert capsys.readouterr().out == line * is_told


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_everything_with_a_table_prints_it():
    with simulate("64MiB"), LineProfiler(work) as profiler:
        kept = work()
        reporter = pytorch_memlab.MemReporter()
        printed = str(reporter)
    assert str(kept.device) == "cpu"
    assert printed.splitlines()[1].startswith("cuda:0: Simulated GPU (64.00 MiB), s")
    assert str(profiler) == str(profiler.records()) == repr(profiler.display())
    holders = profiler.peak_holders()
    line = work.__code__.co_firstlineno + 1
    assert str(holders).splitlines()[2] == (
        f"       512 B  100.0%  test_names_of_the_originals.py:{line}  work"
    )
    assert repr(holders).startswith("<PeakHolders of ")
    assert "\n" not in repr(holders)
