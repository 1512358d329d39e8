"""Measured steps, on simulated GPUs and on what looks like a real one."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.devices import get_device
from pytorch_memlab.errors import UsageError
from pytorch_memlab.history import recorder
from pytorch_memlab.integrations import measured_steps
from pytorch_memlab.integrations.measured_steps import MeasuredSteps, StepMeasurement
from pytorch_memlab.simulation.machine import active

MIB = 2**20
PARAMETERS = MIB + 2048


@pytest.fixture(params=["simulated", "real"])
def gpu(request, monkeypatch):
    """A simulated GPU; as a real one, nothing but PyTorch's own functions tells of it."""
    with simulate("24GiB"):
        if request.param == "real":

            class Active:
                machine = None
                observers = active.observers

            monkeypatch.setattr(recorder, "active", Active)
            monkeypatch.setattr(measured_steps, "simulated_machine", lambda: None)
        yield get_device("cuda:0")


def take(mib):
    return torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")


def is_recording():
    return torch._C._cuda_isHistoryEnabled()


def test_categories_add_up_to_the_active_peak(gpu):
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(2):
        measurement = StepMeasurement(gpu)
        measurement.open()
        torch.cuda.reset_peak_memory_stats()
        model(torch.ones(8, 512, device="cuda")).sum().backward()
        optimizer.step()
        stats = torch.cuda.memory_stats()
        result = measurement.result()
        optimizer.zero_grad()
    assert not is_recording()
    found = result.metrics()
    for name in measured_steps.PEAKS:
        assert found.pop(f"memory/{name}") == stats[name]
    assert found.pop("memory/headroom") == 24 * 2**30 - stats["reserved_bytes.all.peak"]
    assert sum(found.values()) == stats["active_bytes.all.peak"]
    held = {name.removeprefix("memory/"): size for name, size in found.items()}
    assert held["parameters"] == held["gradients"] == PARAMETERS
    assert held["optimizer_state"] == 2 * PARAMETERS


def test_what_happens_between_two_batches_is_not_measured(gpu):
    measurement = StepMeasurement(gpu)
    for mib in (4, 6, 2):
        measurement.open()
        take(mib)
        measurement.close()
        assert not is_recording()
        take(64)
    result = measurement.result()
    assert result.peaks == {
        "allocated_bytes.all.peak": 6 * MIB,
        "reserved_bytes.all.peak": 84 * MIB,  # the cache keeps what was taken in between
        "active_bytes.all.peak": 6 * MIB,
    }
    assert sum(share.size for share in result.holders.by_category()) == 6 * MIB


@pytest.mark.knows_simulation("the size of a GPU before CUDA is initialised")
def test_a_step_without_any_memory():
    with simulate("24GiB"):
        measurement = StepMeasurement(get_device("cuda:0"))
        measurement.open()
        metrics = measurement.result().metrics()
        assert metrics.pop("memory/headroom") == 24 * 2**30
        assert set(metrics.values()) == {0}


def test_the_step_with_the_highest_peak_is_kept():
    with simulate("24GiB"):
        steps = MeasuredSteps(warmup=1, active=3)
        steps.restart(torch.device("cuda"))
        peaks = []
        for mib in (9, 2, 5, 3, 7):
            steps.begin()
            take(mib)
            found = steps.end()
            peaks.append(found and found.peaks["allocated_bytes.all.peak"] // MIB)
    assert peaks == [None, 2, 5, 3, None]
    assert steps.highest.peaks["allocated_bytes.all.peak"] == 5 * MIB


def test_some_of_each_ten_steps_are_measured_and_their_growth_is_that_of_a_step():
    with simulate("24GiB"):
        steps = MeasuredSteps(warmup=2, active=2, every=5)
        steps.restart(torch.device("cuda"))
        kept, found = [], {}
        for step in range(13):
            steps.begin()
            kept.append(take(2))
            measured = steps.end()
            if measured is not None:
                found[step] = measured.metrics()
    assert [*found] == [2, 3, 7, 8, 12]
    assert "memory/growth" not in found[2]
    assert {step: one["memory/growth"] for step, one in found.items() if step > 2} == {
        3: 2 * MIB, 7: 2 * MIB, 8: 2 * MIB, 12: 2 * MIB,
    }  # fmt: skip
    assert found[12]["memory/allocated_bytes.all.peak"] == 26 * MIB
    # Each two blocks of 2 MiB lie in 20 MiB that PyTorch takes at once.
    assert found[12]["memory/headroom"] == 24 * 2**30 - 40 * MIB


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        ({"every": 0}, "every is a number of steps from 1 on, not 0"),
        ({"every": 2.5}, "every is a number of steps from 1 on, not 2.5"),
        ({"active": True}, "active is a number of steps from 1 on, not True"),
    ],
)
def test_a_schedule_that_is_none(schedule, words):
    with pytest.raises(UsageError, match=f"^{words}$"):
        MeasuredSteps(**{"warmup": 2, "active": 1, **schedule})


@pytest.mark.programs
def test_the_package_imports_no_training_library():
    program = (
        "import sys, pytorch_memlab, pytorch_memlab.integrations.measured_steps\n"
        "print({'transformers', 'lightning', 'pytorch_lightning', 'accelerate'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
