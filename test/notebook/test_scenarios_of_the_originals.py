"""Checks of the notebooks and tests of earlier tools, with our names."""

from __future__ import annotations

import ctypes
import gc
import re

import numpy as np
import pytest
import torch

from pytorch_memlab import (
    GPUMemTrace,
    IPyExperimentsCPU,
    IPyGPULogger,
    gpu_mem_allocate_mbs,
    gpu_mem_get,
    gpu_mem_get_all,
    gpu_mem_get_used,
    gpu_mem_get_used_no_cache,
    gpu_mem_trace,
    gpu_with_max_free_mem,
    preload_pytorch,
    simulate,
)
from pytorch_memlab.notebook.perf import parse_sample

MB = 2**20


def host_128() -> np.ndarray:
    return np.ones((2**12, 2**12))


def gpu_256() -> torch.Tensor:
    return torch.ones((2**13, 2**13), device="cuda")


# The logger's notebook


@pytest.fixture
def logging(shell, run):
    # What other tests freed goes back to the system now, not in a cell that is measured.
    gc.collect()
    getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)(0)
    shell.user_ns.update(host_128=host_128, gpu_256=gpu_256, logger=IPyGPULogger())
    with simulate("4GiB"):
        run("logger.start()")
        yield shell.user_ns
        shell.user_ns["logger"].stop()


def numbers(printed: str, label: str) -> list[int]:
    row = re.search(label + r": +(-?\d+) +(-?\d+) +(-?\d+) MB", printed)
    return [int(number) for number in row.groups()]


def test_a_captured_cell_has_its_report_in_the_capture(run, logging):
    run("%%capture output\nhost = host_128()\ngpu = gpu_256()")
    printed = str(logging["output"])
    assert "Consumed Peaked" in printed
    # The simulated GPU's tensors are in host memory too.
    assert numbers(printed, "Gen")[:2] == pytest.approx([128 + 256, 0], abs=2)
    assert numbers(printed, "GPU")[:2] == [256, 0]


RELEASE_HALF = """
first_host = host_128()
second_host = host_128()
del first_host
first_gpu = gpu_256()
second_gpu = gpu_256()
del first_gpu
"""


def test_what_is_taken_and_released_is_a_peak(run, logging):
    run("%%capture output" + RELEASE_HALF)
    printed = str(logging["output"])
    # The simulated GPU's tensors are in host memory too.
    assert numbers(printed, "GPU")[:2] == [256, 256]
    run("del second_host, second_gpu")
    run(RELEASE_HALF)
    (host, host_peak, _, gpu, gpu_peak, _, _) = logging["logger"].data
    assert (gpu, gpu_peak) == (256, 256)
    assert (host, host_peak) == pytest.approx((128 + 256, 256), abs=2)


def test_once_it_is_stopped_nothing_is_printed(run, logging):
    run("logger.stop()")
    run("%%capture output\nhost = host_128()")
    assert str(logging["output"]) == ""


# The experiments' notebooks


@pytest.fixture
def experiments(shell, run):
    shell.user_ns.update(host_128=host_128, IPyExperimentsCPU=IPyExperimentsCPU)
    return shell.user_ns


def check_reclaimed(printed: str, names: list[str]) -> tuple[float, float]:
    assert "Starting experiment" in printed
    assert f"*** Deleting the following local variables:\n{names}" in printed
    consumed = float(re.search(r"Gen: ([\d.]+) MB\n", printed)[1])
    reclaimed, share = re.search(r"Gen: ([\d.]+) MB \(([\d.]+)%\)", printed).groups()
    assert float(reclaimed) == pytest.approx(consumed, rel=0.02)
    assert float(share) > 99
    return consumed, float(reclaimed)


def test_an_experiment_that_is_deleted_in_its_own_cell(run, experiments):
    run(
        "%%capture output\n"
        "exp1 = IPyExperimentsCPU()\n"
        "x1 = host_128()\n"
        "x2 = host_128()\n"
        "there = 'x1' in locals() and 'x2' in locals()\n"
        "exp1.keep_var_names('there')\n"
        "del exp1\n"
        "gone = 'x1' not in locals() and 'x2' not in locals()"
    )
    assert experiments["there"]
    assert experiments["gone"]
    check_reclaimed(str(experiments["output"]), ["x1", "x2"])


def test_numbers_in_the_middle_and_at_the_end(run, experiments):
    run(
        "%%capture output\n"
        "exp2 = IPyExperimentsCPU()\n"
        "x1 = host_128()\n"
        "middle = [exp2.data.cpu]\n"
        "exp2.keep_var_names('middle')\n"
        "x2 = host_128()\n"
        "middle.append(exp2.data.cpu)\n"
        "final = exp2.finish()\n"
    )
    first, second = experiments["middle"]
    assert first.consumed == pytest.approx(128 * MB, rel=0.03)
    assert second.consumed == pytest.approx(256 * MB, rel=0.03)
    assert first.reclaimed == second.reclaimed == 0
    consumed, reclaimed = check_reclaimed(str(experiments["output"]), ["x1", "x2"])
    final = [one["gen_ram"] / MB for one in experiments["final"]]
    assert final[:2] == pytest.approx([consumed, reclaimed], rel=0.02)
    assert not {"x1", "x2"} & experiments.keys()


def test_as_a_context_with_a_variable_that_stays(run, experiments):
    run(
        "%%capture output\n"
        "with IPyExperimentsCPU() as exp:\n"
        "    x1 = host_128()\n"
        "    z = 'some data'\n"
        "    x2 = host_128()\n"
        "    exp.keep_var_names('z')\n"
        "print(z)"
    )
    printed = str(experiments["output"])
    check_reclaimed(printed, ["x1", "x2"])
    assert printed.endswith("some data\n")
    assert experiments["z"] == "some data"


def test_variables_from_before_stay_by_default(run, experiments):
    run("x3 = 10\nx4 = 20")
    run(
        "%%capture output\n"
        "with IPyExperimentsCPU():\n"
        "    x1 = host_128()\n"
        "    x2 = host_128()\n"
        "    x3 = 10\n"
        "    x4 = 10000"
    )
    check_reclaimed(str(experiments["output"]), ["x1", "x2"])
    assert (experiments["x3"], experiments["x4"]) == (10, 10000)


# The memory helpers' tests


@pytest.fixture(params=[True, False], ids=["simulated GPU", "no GPU"])
def has_gpu(request):
    if not request.param:
        if torch.cuda.is_available():
            pytest.skip("there is a GPU")
        yield False
        return
    with simulate("24GiB"):
        preload_pytorch()
        yield True


def test_memory_by_id_of_all_and_of_the_freest(has_gpu):
    assert all(number > 0 for number in gpu_mem_get()) is has_gpu
    assert gpu_mem_get(99) == (0, 0, 0)
    assert [all(number > 0 for number in one) for one in gpu_mem_get_all()] == [True] * has_gpu
    index, free = gpu_with_max_free_mem()
    assert (index, free > 0) == ((0, True) if has_gpu else (None, False))


def test_consumed_and_reclaimed_16_mb():
    with simulate("24GiB"):
        preload_pytorch()
        before = gpu_mem_get_used_no_cache()
        block = torch.ones((2**11, 2**11), device="cuda")
        assert gpu_mem_get_used() - before >= 15
        del block
        gc.collect()
        assert abs(gpu_mem_get_used_no_cache() - before) <= 2


def test_a_trace_of_allocations_that_come_and_go(capsys):
    def is_about(trace, used, peaked):
        return trace.data() == pytest.approx((used, peaked), abs=2)

    with simulate("24GiB"):
        trace = GPUMemTrace()
        for _ in range(2):
            small, large = gpu_mem_allocate_mbs(10), gpu_mem_allocate_mbs(15)
            del large
            assert is_about(trace, 10, 15)
            trace.report("whoah")
            used, peaked = re.fullmatch(
                r"△used: (\d+)MB, △peaked: (\d+)MB: whoah\n", capsys.readouterr().out
            ).groups()
            assert (int(used), int(peaked)) == pytest.approx((10, 15), abs=2)
            del small
            assert is_about(trace, 0, 25)
            trace.reset()
        small = gpu_mem_allocate_mbs(10)
        trace.reset()
        del small
        assert is_about(trace, -10, 0)
        with GPUMemTrace() as trace:
            kept = gpu_mem_allocate_mbs(20)
        assert is_about(trace, 20, 0)
        del kept


class Experiment:
    @staticmethod
    @gpu_mem_trace
    def run() -> None:
        """Takes nothing."""


def test_a_decorated_method_reports_under_its_name(capsys):
    with simulate("24GiB"):
        Experiment.run()
    assert capsys.readouterr().out == "△used: 0MB, △peaked: 0MB: Experiment.run: exit\n"


# The parser of perf


HEADING = "#           time             counts events\n"
TWO_COUNTS = """\
     0.100167119              3,183 cache-misses
     0.200354348              4,045 cache-misses
"""
LARGE_COUNTS = """\
     3.501390851        471,219,787 stalled-cycles-frontend
    14.005319456          2,249,115 stalled-cycles-frontend
"""


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (TWO_COUNTS.splitlines()[0], [3183]),
        (HEADING + TWO_COUNTS, [3183, 4045]),
        (LARGE_COUNTS, [471219787, 2249115]),
    ],
)
def test_perfs_output_line_by_line(text, counts):
    for printed, expected in ((text, counts), (f"{text}\n{text}", counts * 2)):
        found = [parse_sample(line) for line in printed.split("\n")]
        assert [count for count in found if count is not None] == expected
