"""``exp.cl``: its reports, its data, its seeds, and when it ends."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch

from pytorch_memlab import IPyExperiments, IPyExperimentsCPU, IPyExperimentsPytorch, simulate
from pytorch_memlab.errors import UsageError
from pytorch_memlab.notebook import cell_logger
from pytorch_memlab.notebook.cell_logger import CellLoggerData

MB = 2**20


@pytest.fixture
def names(shell):
    shell.user_ns.update(
        IPyExperiments=IPyExperiments,
        IPyExperimentsCPU=IPyExperimentsCPU,
        IPyExperimentsPytorch=IPyExperimentsPytorch,
        torch=torch,
        np=np,
        random=random,
        MB=MB,
    )
    yield shell.user_ns
    if "exp" in shell.user_ns:
        shell.user_ns["exp"].finish()


def test_it_is_silent_unless_it_is_asked(run, names, capsys):
    run("exp = IPyExperimentsCPU()")
    run("x = 1")
    run("exp.cl.start()")
    run("exp.cl.start()")
    run("exp.cl.stop(); exp.cl.stop()")
    run("x = 2")
    printed = capsys.readouterr().out
    # Two cells, and the last one as far as it was when it was stopped.
    assert printed.count("･ RAM:") == printed.count("･ CPU:") == 3
    assert "GPU" not in printed


def test_numbers_are_bytes_and_the_peak_is_what_was_not_kept(run, names, capsys):
    with simulate("24GiB"):
        run("exp = IPyExperimentsPytorch(cl_enable=True)")
        assert capsys.readouterr().out.count("･ GPU:") == 1
        run("old = torch.empty(32 * MB, dtype=torch.uint8, device='cuda')")
        run("old = None; blip = torch.empty(20 * MB, dtype=torch.uint8, device='cuda'); del blip")
        data = names["exp"].cl.data
        assert isinstance(data, CellLoggerData)
        assert data.gpu[:2] == (-32 * MB, 0)
        run("kept = torch.empty(8 * MB, dtype=torch.uint8, device='cuda').add(1)")
        assert names["exp"].cl.data.gpu[:2] == (8 * MB, 8 * MB)
        assert names["exp"].cl.data.time.time_delta > 0
        assert re.search(r"\n･ GPU: +8 +8 +\d+ MB \|\n$", capsys.readouterr().out)
        names["exp"].finish()


@pytest.mark.knows_simulation("that the GPU is simulated is said")
def test_on_the_cpu_there_is_no_gpu(run, names, capsys):
    with simulate("24GiB"):
        run("exp = IPyExperimentsCPU(cl_enable=True, cl_compact=True)")
        run("kept = (bytearray(64 * MB), torch.ones(1, device='cuda'))")
        assert names["exp"].cl.data.gpu == (0, 0, 0)
        assert 63 * MB < names["exp"].cl.data.cpu.used_delta < 68 * MB
        line, told = capsys.readouterr().out.splitlines()[-2:]
        assert told == "CPU contains the tensors of the simulated GPUs"
        assert re.fullmatch(
            r"CPU: \d+/\d+/\d+ MB \| Time 0:00:0\d\.\d{3} \| \(Consumed/Peaked/Used Total\)", line
        )
        names["exp"].finish()


@pytest.mark.parametrize("end", ["exp.finish()", "del exp", "exp = 5", "%reset -f"])
def test_it_ends_with_its_experiment(run, names, capsys, end):
    run("exp = IPyExperimentsCPU(cl_enable=True, cl_set_seed=3)")
    run(end)
    names.pop("exp", None)
    capsys.readouterr()
    run("x = 1")
    assert capsys.readouterr().out == ""
    assert not torch.backends.cudnn.deterministic


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("", 0),
        ("exp_enable=False", 2),
        ("cl_set_seed=42", 2),
        ("cl_set_seed=42, cl_enable=False", 0),
    ],
)
def test_it_reports_from_the_beginning_if_nothing_else_was_asked_for(
    run, names, capsys, options, count
):
    run(f"exp = IPyExperimentsCPU({options})\nfirst = random.random()")
    run("second = random.random()")
    assert capsys.readouterr().out.count("･ CPU:") == count
    assert (names["first"] == names["second"]) is (options == "cl_set_seed=42")
    names["exp"].finish()


def test_an_experiment_that_only_logs_deletes_nothing(run, names, capsys):
    run("exp = IPyExperimentsCPU(exp_enable=False, cl_compact=True)")
    run("x = bytearray(64 * MB); exp.keep_var_names('x')")
    assert 63 * MB < names["exp"].cl.data.cpu.used_delta < 66 * MB
    run("final = exp.finish()")
    printed = capsys.readouterr().out
    assert "***" not in printed
    assert printed.count("CPU: ") == 3
    assert len(names["x"]) == 64 * MB
    consumed, reclaimed, available = names["final"]
    assert consumed == reclaimed == {"gen_ram": 0, "gpu_ram": 0}
    assert available["gen_ram"] > 0
    assert names["exp"].data.cpu.consumed == 0


DRAW = "drawn = (random.random(), float(np.random.rand()), float(torch.rand(1)))"


def test_every_cell_draws_the_same_random_numbers(run, names):
    torch.backends.cudnn.benchmark = True
    try:
        run("exp = IPyExperimentsCPU(cl_enable=True, cl_set_seed=42)\n" + DRAW)
        first = names["drawn"]
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (True, False)
        run(DRAW)
        assert names["drawn"] == first
        assert first[0] == random.Random(42).random()
        assert first[1] == np.random.RandomState(42).rand()
        assert first[2] == torch.rand(1, generator=torch.Generator().manual_seed(42)).item()
        run("exp.finish()")
        assert (torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark) == (False, True)
        run(DRAW)
        run(DRAW)
        assert names["drawn"] != first
    finally:
        torch.backends.cudnn.benchmark = False


def test_cudnn_is_as_it_was_also_if_the_last_report_fails(run, names, monkeypatch):
    def fail(_reading, **_options):
        raise ValueError("standard output is closed")

    run("exp = IPyExperimentsCPU(cl_enable=True, cl_set_seed=42)")
    assert torch.backends.cudnn.deterministic
    monkeypatch.setattr(cell_logger, "experiment_table", fail)

    result = run("exp.cl.stop()")

    assert str(result.error_in_exec) == "standard output is closed"
    assert not torch.backends.cudnn.deterministic


@pytest.mark.parametrize("seed", ["'x'", "-1", "2**32", "None", "1.5"])
def test_a_wrong_seed_is_told_before_anything_begins(run, names, capsys, seed):
    result = run(f"exp = IPyExperimentsCPU(cl_enable=True, cl_set_seed={seed})")
    assert isinstance(result.error_in_exec, UsageError)
    assert capsys.readouterr().out == (
        f"UsageError: a seed is an int from 0, for none, to 4294967295, not {eval(seed)!r}\n"
    )


def test_garbage_is_left_alone_on_request(run, names):
    import gc

    cycle = "class Loop: pass\nloop = Loop(); loop.own = loop; loop.blob = bytearray(60 * MB)"
    gc.disable()
    try:
        run("exp = IPyExperimentsCPU(cl_enable=True, cl_gc_collect=False)")
        run(cycle)
        run("del loop")
        assert abs(names["exp"].cl.data.cpu.used_delta) <= MB
    finally:
        gc.enable()
    run("exp.finish()")
