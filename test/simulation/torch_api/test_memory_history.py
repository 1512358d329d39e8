"""PyTorch's memory history under simulation: events, frames, files and PyTorch's own viewers."""

from __future__ import annotations

import base64
import pickle
import re
import threading
from inspect import signature
from pathlib import Path

import pytest
import torch
from recorded_programs import attention_from_start
from recorded_programs.memory_history import trace_of
from recorded_programs.streams import load
from support.computed_or_dry import computed_or_dry
from support.flamegraph import draws_flame_graphs, prepare_drawer
from torch.cuda import _memory_viz

from pytorch_memlab.errors import UnsupportedCUDACallError
from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.allocator.caching_allocator import CachingAllocator
from pytorch_memlab.simulation.allocator.driver import RecordedDriver, Step
from pytorch_memlab.simulation.torch_api import memory_history

MB = 2**20
_ARGUMENTS = signature(torch.cuda.memory._record_memory_history_impl).parameters
clears_and_skips = pytest.mark.skipif(
    not {"clear_history", "skip_actions"} <= {*_ARGUMENTS},
    reason="torch 2.6 clears no history and skips no actions",
)
finds_stacks = pytest.mark.skipif(
    not hasattr(torch.cuda.memory, "_allocation_traceback"),
    reason="torch 2.6 has no _allocation_traceback",
)
THIS_FILE = str(Path(__file__))


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine
        torch.cuda.memory._record_memory_history(enabled=None)


def events(snapshot, device=0):
    return [
        (one["action"], one.get("addr"), one["size"]) for one in snapshot["device_traces"][device]
    ]


def lines_of(entry):
    return [
        (frame["name"], frame["line"])
        for frame in entry["frames"]
        if frame["filename"] == THIS_FILE
    ]


def line_of(function, text):
    code = function.__code__
    source = Path(code.co_filename).read_text().splitlines()
    return next(
        number
        for number, line in enumerate(source[code.co_firstlineno :], code.co_firstlineno + 1)
        if text in line
    )


def test_every_event_of_the_allocator_is_recorded_in_order(gpu):
    torch.cuda.memory._record_memory_history()
    x = torch.empty(3 * MB, dtype=torch.uint8, device="cuda")
    (segment,) = torch.cuda.memory_snapshot()
    address = segment["address"]
    del x
    torch.cuda.empty_cache()
    assert events(torch.cuda.memory._snapshot()) == [
        ("segment_alloc", address, 20 * MB),
        ("alloc", address, 3 * MB),
        ("snapshot", 0, 3 * MB),
        ("free_requested", address, 3 * MB),
        ("free_completed", address, 3 * MB),
        ("segment_free", address, 20 * MB),
    ]


def test_pages_of_expandable_segments_are_recorded(gpu):
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    torch.cuda.memory._record_memory_history()
    x = torch.empty(3 * MB, dtype=torch.uint8, device="cuda")
    del x
    torch.cuda.empty_cache()
    snapshot = torch.cuda.memory._snapshot()
    actions = [(action, size) for action, _, size in events(snapshot)]
    assert actions == [
        ("segment_map", 20 * MB),
        ("alloc", 3 * MB),
        ("free_requested", 3 * MB),
        ("free_completed", 3 * MB),
        ("segment_unmap", 20 * MB),
    ]
    assert snapshot["allocator_settings"]["expandable_segments"] is True
    assert snapshot["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"


def test_a_free_that_waits_for_a_stream_is_complete_later(gpu):
    torch.cuda.memory._record_memory_history()
    x = torch.empty(MB, dtype=torch.uint8, device="cuda")
    x.record_stream(torch.cuda.Stream())
    del x
    assert events(torch.cuda.memory._snapshot())[-1][0] == "free_requested"
    torch.empty(2 * MB, dtype=torch.uint8, device="cuda")
    assert "free_completed" in [action for action, *_ in events(torch.cuda.memory._snapshot())]


def allocate():
    return torch.nn.functional.relu(torch.ones(MB, device="cuda"))


def test_frames_are_the_programs_and_torchs_innermost_first(gpu):
    torch.cuda.memory._record_memory_history()
    kept = allocate()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    allocations = [entry for entry in trace if entry["action"] == "alloc"]
    line = line_of(allocate, "return")
    assert len(allocations) == 2
    for entry in allocations:
        assert lines_of(entry)[0] == ("allocate", line)
        assert lines_of(entry)[1][0] == "test_frames_are_the_programs_and_torchs_innermost_first"
        assert not any("pytorch_memlab/" in frame["filename"] for frame in entry["frames"])
        assert not any(frame["filename"].endswith("_ops.py") for frame in entry["frames"])
    assert [frame["name"] for frame in allocations[1]["frames"]][:2] == ["relu", "allocate"]
    assert kept.sum() == MB


@clears_and_skips
def test_a_free_shows_where_it_happened_and_with_less_context_where_it_was_allocated(gpu):
    def lines(context):
        torch.cuda.memory._record_memory_history(context=context, clear_history=True)
        kept = allocate()
        del kept
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        return {
            entry["action"]: [name for name, _ in lines_of(entry)] if "frames" in entry else None
            for entry in trace
            if entry["action"] in ("alloc", "free_completed")
        }

    test = "test_a_free_shows_where_it_happened_and_with_less_context_where_it_was_allocated"
    assert lines("all")["free_completed"][0] == "lines"
    assert lines("alloc")["free_completed"][0] == "allocate"
    assert lines("state") == {"alloc": None, "free_completed": None}
    assert lines(None) == {"alloc": None, "free_completed": None}
    assert lines("all")["alloc"] == ["allocate", "lines", test]


def test_blocks_in_use_have_the_frames_of_their_allocation(gpu):
    torch.cuda.memory._record_memory_history(enabled="state", context="state")
    kept = allocate()
    snapshot = torch.cuda.memory._snapshot()
    (block,) = (
        block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )
    assert lines_of(block)[0][0] == "allocate"
    assert len(snapshot["device_traces"][0]) == 1
    traceback_of = torch._C._cuda_allocationTraceback
    assert traceback_of(block["address"]) == block["frames"]
    assert traceback_of(12345) is None
    del kept


def test_a_segment_has_the_frames_of_its_request_until_its_first_block_is_split(gpu):
    torch.cuda.memory._record_memory_history(context="state")

    def frames_of_segments(size):
        torch.cuda.empty_cache()
        kept = torch.empty(size, dtype=torch.uint8, device="cuda")
        (before,) = torch.cuda.memory._snapshot()["segments"]
        del kept
        (after,) = torch.cuda.memory._snapshot()["segments"]
        return [[frame["name"] for frame in one["frames"]][:1] for one in (before, after)]

    assert frames_of_segments(12 * MB) == [["frames_of_segments"], ["frames_of_segments"]]
    assert frames_of_segments(48) == [[], []]
    assert frames_of_segments(4 * MB) == [[], []]


@clears_and_skips
def test_only_the_newest_entries_are_kept_and_actions_can_be_skipped(gpu):
    torch.cuda.memory._record_memory_history(max_entries=3)
    for size in range(1, 6):
        torch.empty(size * 512, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    assert [(action, size) for action, _, size in events(snapshot)] == [
        ("alloc", 2560),
        ("free_requested", 2560),
        ("free_completed", 2560),
    ]
    torch.cuda.memory._record_memory_history(
        clear_history=True, skip_actions=["free_requested", "free_completed"]
    )
    torch.empty(512, dtype=torch.uint8, device="cuda")
    assert [one[0] for one in events(torch.cuda.memory._snapshot())] == ["alloc"]


def test_recording_ends(gpu):
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory._record_memory_history(enabled=None)
    torch.empty(512, device="cuda")
    assert events(torch.cuda.memory._snapshot()) == []


@pytest.mark.skipif(
    not hasattr(torch.cuda.memory, "_set_memory_metadata"),
    reason="torch 2.6 has no metadata of entries",
)
def test_entries_carry_the_metadata_of_their_thread(gpu):
    torch.cuda.memory._record_memory_history()
    torch.cuda.memory._set_memory_metadata("step 1")
    torch.empty(512, device="cuda")
    torch.cuda.memory._set_memory_metadata("")
    torch.empty(512, device="cuda")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    told = [entry["user_metadata"] for entry in trace if entry["action"] == "alloc"]
    assert told == ["step 1", ""]
    assert torch.cuda.memory._get_memory_metadata() == ""


@finds_stacks
def test_a_tensor_leads_to_the_stack_of_its_allocation(gpu):
    torch.cuda.memory._record_memory_history()
    kept = allocate()
    (frame, *_) = torch.cuda.memory._allocation_traceback(kept.untyped_storage().data_ptr())
    assert frame["name"] == "relu"
    assert torch.cuda.memory._allocation_traceback(torch.ones(3).data_ptr()) is None


def test_a_tensor_is_annotated_after_its_allocation(gpu):
    annotate = torch._C._cuda_annotateMemory
    kept = torch.empty(512, dtype=torch.uint8, device="cuda")
    annotate(kept.untyped_storage().data_ptr(), "while nothing records")
    torch.cuda.memory._record_memory_history()
    annotate(kept.untyped_storage().data_ptr(), "the weights")
    annotate(torch.ones(3).data_ptr(), "not of a GPU")
    (entry,) = torch.cuda.memory._snapshot()["device_traces"][0]
    (segment,) = torch.cuda.memory_snapshot()
    assert (entry["action"], entry["user_metadata"]) == ("annotate", "the weights")
    assert (entry["addr"], entry["size"]) == (segment["address"], 512)
    assert lines_of(entry)[0][0] == "test_a_tensor_is_annotated_after_its_allocation"
    assert torch._C._cuda_memoryMetadataSupported()


def allocations(snapshot):
    return [(event["addr"], event["size"]) for event in snapshot["device_traces"][0][:2]]


def test_other_ways_to_a_snapshot_have_the_same_events(gpu):
    torch.cuda.memory._record_memory_history()
    kept = allocate()
    expected = allocations(torch.cuda.memory._snapshot())
    if "augment_with_fx_traces" in signature(torch.cuda.memory._snapshot).parameters:
        found = torch.cuda.memory._snapshot("cuda:0", augment_with_fx_traces=True)
        assert allocations(found) == expected
    if hasattr(getattr(getattr(torch, "accelerator", None), "memory", None), "_snapshot"):
        assert allocations(torch.accelerator.memory._snapshot()) == expected
    assert kept.sum() == MB


@draws_flame_graphs
@pytest.mark.parametrize("name", ["_save_segment_usage", "_save_memory_usage"])
def test_flame_graphs_of_the_blocks_in_use_are_saved(gpu, tmp_path, monkeypatch, name):
    prepare_drawer(tmp_path, monkeypatch)
    torch.cuda.memory._record_memory_history()
    kept = allocate()
    getattr(torch.cuda.memory, name)(str(tmp_path / "flames.svg"))
    held = [
        line for line in (tmp_path / "flames.svg").read_text().splitlines() if "allocate" in line
    ]
    assert len(held) == 1
    assert held[0].endswith(f"relu {4 * MB}")
    assert kept.sum() == MB


def test_the_pool_of_ordinary_allocations_has_all_segments(gpu):
    kept = allocate()
    everything = torch.cuda.memory_snapshot()
    if "mempool_id" in signature(torch.cuda.memory_snapshot).parameters:
        assert torch.cuda.memory_snapshot((0, 0)) == everything
        assert torch.cuda.memory_snapshot((0, 7)) == []
    assert len(everything) == 1
    assert kept.sum() == MB


def test_each_gpu_has_its_history():
    with simulate("24GiB", count=2):
        torch.cuda.memory._record_memory_history()
        torch.empty(512, dtype=torch.uint8, device="cuda:1")
        snapshot = torch.cuda.memory._snapshot()
    assert events(snapshot, 0) == []
    assert events(snapshot, 1)[1][::2] == ("alloc", 512)


def test_arguments_of_later_releases_are_taken(gpu):
    positional = ("all", "all", "all", 100, False, False, False, [])
    torch._C._cuda_record_memory_history(*positional, False, False)
    torch.empty(512, device="cuda")
    assert events(torch.cuda.memory._snapshot()) == []
    legacy = (True, True, 100, True, False, False, False, False, [])
    torch._C._cuda_record_memory_history_legacy(*legacy, False, True)
    torch.empty(512, dtype=torch.uint8, device="cuda")
    assert events(torch.cuda.memory._snapshot())[0][::2] == ("alloc", 512)
    for record, arguments in (
        (torch._C._cuda_record_memory_history, positional),
        (torch._C._cuda_record_memory_history_legacy, legacy),
    ):
        with pytest.raises(UnsupportedCUDACallError, match="record_pinned_host_memory=True"):
            record(*arguments, True, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"enabled": "some"}, "expected state to be 'state', 'all', or None"),
        ({"context": "some"}, "expected context to be 'state', 'alloc', 'all', or None"),
        ({"stacks": "some"}, "expected stacks to be 'python', or 'all'"),
        pytest.param(
            {"skip_actions": ["some"]}, "unknown action to skip: 'some'", marks=clears_and_skips
        ),
    ],
)
def test_a_wrong_argument_is_refused(gpu, arguments, message):
    with pytest.raises(RuntimeError, match=message):
        torch.cuda.memory._record_memory_history(**arguments)


def test_an_out_of_memory_error_is_an_event_and_calls_observers():
    seen = []

    def observe(device, requested, total, free):
        trace = torch.cuda.memory._snapshot()["device_traces"][device]
        seen.append((device, requested, total, free, trace[-1]))

    with simulate("64MiB"):
        torch.cuda.memory._record_memory_history()
        torch._C._cuda_attach_out_of_memory_observer(observe)
        kept = torch.empty(40 * MB, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(30 * MB + 1, dtype=torch.uint8, device="cuda")
        ((device, requested, total, free, last),) = seen
        del kept
    assert (device, requested, total, free) == (0, 32 * MB, 64 * MB, 24 * MB)
    assert (last["action"], last["device_free"], last["size"]) == ("oom", 24 * MB, 30 * MB + 512)
    assert lines_of(last)[0][0] == "test_an_out_of_memory_error_is_an_event_and_calls_observers"


SCRIPT = """
import torch

torch.cuda.memory._record_memory_history(max_entries=100000)
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
torch.cuda.memory._dump_snapshot("history.pickle")
torch.cuda.memory._record_memory_history(enabled=None)
"""


@pytest.fixture
def dumped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with simulate("24GiB"):
        exec(compile(SCRIPT, "script.py", "exec"), {"__name__": "__main__"})
        allocated = torch.cuda.memory_stats()
    with open("history.pickle", "rb") as file:
        return pickle.load(file), allocated


def test_a_dump_has_every_allocation_that_the_counters_have(dumped):
    snapshot, stats = dumped
    trace = snapshot["device_traces"][0]
    taken = sum(entry["size"] for entry in trace if entry["action"] == "alloc")
    given_back = sum(entry["size"] for entry in trace if entry["action"] == "free_completed")
    assert taken == stats["requested_bytes.all.allocated"]
    active = sum(segment["active_size"] for segment in snapshot["segments"])
    assert active > 0
    assert taken - given_back == sum(segment["requested_size"] for segment in snapshot["segments"])


def test_pytorchs_viewers_take_a_dump(dumped):
    snapshot, _ = dumped
    assert "Tensor" not in _memory_viz.segsum(snapshot)
    assert "total_reserved" in _memory_viz.segsum(snapshot)
    assert "cudaMalloc" in _memory_viz.trace(snapshot)
    for plot in (_memory_viz.trace_plot, _memory_viz.segment_plot):
        (encoded,) = re.findall(r'"base64": "([^"]+)"', plot(snapshot))
        assert pickle.loads(base64.b64decode(encoded)) == snapshot
    lines = _memory_viz.compare([], snapshot["segments"], lambda lines: lines)
    assert lines.startswith("only_after;stream_0;seg_")
    for flamegraph in (lines, _memory_viz.memory(snapshot, lambda lines: lines)):
        assert "script.py" in flamegraph


@computed_or_dry
def test_the_attention_program_has_the_events_of_its_recording(compute):
    recorded = load("attention_from_start")
    histories, peaks = [], []

    def end():
        histories.append(torch.cuda.memory._snapshot())
        stats = torch.cuda.memory_stats()
        peaks.extend(stats[f"{kind}_bytes.all.peak"] for kind in ("active", "reserved"))

    driver = RecordedDriver()
    driver.expected.extend(
        Step(index, address, size)
        for index, (kind, address, size, *_) in enumerate(recorded["events"])
        if kind == "segment_alloc"
    )
    with simulate("a100", compute=compute) as machine:
        gpu = machine.gpus[0]
        gpu.allocator = CachingAllocator(driver, gpu.allocator.settings, order_by_address=True)
        attention_from_start.run(torch.cuda.memory._record_memory_history, end)
    trace = trace_of({"segments": []}, histories[0], recorded["settings"])
    assert len(trace["events"]) == 71
    assert [event[:4] for event in trace["events"]] == [e[:4] for e in recorded["events"]]
    assert peaks == [3249144832, 3781165056]


def test_other_threads_may_allocate_and_free_during_a_snapshot(monkeypatch):
    kept, threads, as_dict = [], [], memory_history._as_dict

    def change():
        kept.pop()
        kept.extend(torch.zeros(10, device="cuda") for _ in range(3))

    def interrupted(*arguments):
        if not threads:
            threads.append(threading.Thread(target=change))
            threads[0].start()
            threads[0].join(5)
        return as_dict(*arguments)

    monkeypatch.setattr(memory_history, "_as_dict", interrupted)
    with simulate("24GiB"):
        torch.cuda.memory._record_memory_history()
        kept.append(torch.zeros(1000, device="cuda"))
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    assert len(kept) == 3
    actions = [event["action"] for event in snapshot["device_traces"][0]]
    assert actions == ["segment_alloc", "alloc"]
    (used,) = [
        block for block in snapshot["segments"][0]["blocks"] if block["state"] == "active_allocated"
    ]
    assert used["requested_size"] == 4000
    assert used["frames"]
