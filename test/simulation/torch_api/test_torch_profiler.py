"""``torch.profiler`` under simulation: the memory of the simulated GPU, for PyTorch's own plots."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from torch.cuda import _memory_viz
from torch.profiler import ProfilerActivity, profile

from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.simulation import simulate

KIB = 2**10
EVERYTHING = {"profile_memory": True, "with_stack": True, "record_shapes": True}


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine


def on_gpu(kib):
    return torch.empty(kib * KIB, dtype=torch.uint8, device="cuda")


def profiled(**options):
    """A profile of a program that had 1 and 2 KiB, releases 2, and makes 4 and 8 of which 8 stay.

    The last of what is returned keeps what stays.
    """
    stays, goes = on_gpu(1), on_gpu(2)
    with profile(activities=[ProfilerActivity.CPU], **{**EVERYTHING, **options}) as taken:
        del goes
        on_gpu(4)
        made = on_gpu(8)
    return taken, (stays, made)


def test_a_profile_has_the_memory_of_the_gpu(gpu):
    taken, kept = profiled()
    snapshot = _memory_viz._profile_to_snapshot(taken)

    of_gpu, of_host = snapshot["device_traces"]
    assert [(event["action"], event["size"] // KIB) for event in of_gpu] == [
        ("free_requested", 2),
        ("free_completed", 2),
        ("alloc", 4),
        ("free_requested", 4),
        ("free_completed", 4),
        ("alloc", 8),
    ]
    assert of_host == []
    (segment,) = snapshot["segments"]
    in_use = [block for block in segment["blocks"] if block["state"] == "active_allocated"]
    assert sorted(block["size"] for block in in_use) == [KIB, 8 * KIB]
    assert len(kept) == 2


def test_allocations_have_their_python_stack(gpu):
    taken, _kept = profiled()
    events = _memory_viz._profile_to_snapshot(taken)["device_traces"][0]
    names = [frame["name"] for frame in events[-1]["frames"]]

    assert names[0].startswith("test_torch_profiler.py(")
    assert [name.partition(": ")[2] for name in names[:3]] == [
        "on_gpu",
        "profiled",
        "test_allocations_have_their_python_stack",
    ]


def test_pytorch_plots_it_also_after_the_simulation(tmp_path):
    with simulate("24GiB"):
        taken, _kept = profiled()
        page = _memory_viz.profile_plot(taken)
    assert "Active Memory Timeline" in page

    file = str(tmp_path / "timeline.json")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        taken.export_memory_timeline(file, device="cuda:0")
    times, sizes = json.loads((tmp_path / "timeline.json").read_text())
    assert len(times) == len(sizes)
    assert max(map(sum, sizes)) == 9 * KIB


def test_without_its_options_pytorch_refuses_as_ever(gpu):
    taken, _kept = profiled(record_shapes=False)

    with pytest.raises(ValueError, match="record_shapes=True required for memory profiling"):
        _memory_viz.profile_plot(taken)


def test_a_program_keeps_its_own_history_beside_a_profile(gpu):
    torch.cuda.memory._record_memory_history()
    _taken, _kept = profiled()
    on_gpu(16)

    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    sizes = [event["size"] // KIB for event in trace if event["action"] == "alloc"]
    assert sizes == [1, 2, 4, 8, 16]


def test_nothing_is_recorded_after_a_profile(gpu):
    taken, _kept = profiled()
    before = _memory_viz._profile_to_snapshot(taken)
    on_gpu(16)

    assert _memory_viz._profile_to_snapshot(taken) == before
    assert all(each.allocator._told.observers == () for each in gpu.gpus)


def test_activities_of_cuda_bring_no_warnings(gpu, capfd):
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as taken:
        on_gpu(4)

    assert "Failed to record CUDA event" not in capfd.readouterr().err
    assert "aten::empty" in taken.key_averages().table()


def test_modules_are_called_under_a_profile_with_stacks_while_holders_are_recorded(gpu):
    recording = Recording()
    recording.begin()
    try:
        with profile(activities=[ProfilerActivity.CPU], **EVERYTHING):
            torch.nn.Sequential(torch.nn.Linear(256, 256)).cuda()(torch.ones(256, device="cuda"))
    finally:
        recording.end()

    names = [share.name for share in recording.peak_holders(0).by_module()]
    assert "Sequential.0" in names


def test_a_schedule_hands_over_the_memory_of_its_steps(gpu, tmp_path):
    file = tmp_path / "timeline.json"
    kept = []

    def ready(taken):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            taken.export_memory_timeline(str(file), device="cuda:0")

    schedule = torch.profiler.schedule(wait=1, warmup=0, active=2, repeat=1)
    with profile(
        activities=[ProfilerActivity.CPU], schedule=schedule, on_trace_ready=ready, **EVERYTHING
    ) as taken:
        for size in (1, 2, 4, 8):
            kept.append(on_gpu(size))
            taken.step()

    _times, sizes = json.loads(file.read_text())
    assert [sum(each) // KIB for each in sizes] == [1, 3, 7]
    assert len(kept) == 4
