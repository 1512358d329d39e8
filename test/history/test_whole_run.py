"""The history of a whole run, beside the one that the program itself records."""

from __future__ import annotations

from contextlib import ExitStack
from inspect import signature

import pytest
import torch

from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.snapshot import read_snapshot
from pytorch_memlab.history.whole_run import WholeRunHistory
from pytorch_memlab.simulation import simulate

KIB = 1024

newer = pytest.mark.skipif(
    "skip_actions" not in signature(torch.cuda.memory._record_memory_history).parameters,
    reason="this release of PyTorch does not have the option",
)


@pytest.fixture
def gpu():
    with simulate("24GiB") as machine:
        yield machine


@pytest.fixture
def whole(gpu):
    """The recording of a whole run."""
    with ExitStack() as process:
        recording = WholeRunHistory()
        recording.start(process)
        yield recording


def allocate(kib):
    return torch.empty(kib * KIB, dtype=torch.uint8, device="cuda")


def sizes(snapshot, action="alloc"):
    """Sizes in KiB of the events of one kind."""
    return [
        event["size"] // KIB for event in snapshot["device_traces"][0] if event["action"] == action
    ]


def of_program():
    return torch.cuda.memory._snapshot()


def test_a_program_without_a_history_sees_none_of_ours(whole):
    allocate(1)

    assert of_program()["device_traces"] == [[]]
    assert sizes(whole.snapshot()) == [1]


def test_a_program_sees_its_own_history_and_the_run_has_all(whole):
    allocate(1)
    torch.cuda.memory._record_memory_history()
    allocate(2)
    first = of_program()
    torch.cuda.memory._record_memory_history(enabled=None)
    allocate(3)
    torch.cuda.memory._record_memory_history()
    allocate(4)
    second = of_program()

    assert [sizes(each) for each in (first, second)] == [[2], [4]]
    assert sizes(whole.snapshot()) == [1, 2, 3, 4]
    assert sizes(whole.snapshot(), "free_completed") == [1, 2, 3, 4]


@newer
def test_what_the_program_clears_stays_in_the_run(whole):
    torch.cuda.memory._record_memory_history()
    allocate(1)
    torch.cuda.memory._record_memory_history(clear_history=True)
    allocate(2)

    assert sizes(of_program()) == [2]
    assert sizes(whole.snapshot()) == [1, 2]


def test_a_legacy_call_without_the_later_options_clears_nothing(whole):
    for kib in (1, 2):
        torch._C._cuda_record_memory_history_legacy(True, True, 10, False)
        allocate(kib)

    assert sizes(of_program()) == [1, 2]
    assert sizes(whole.snapshot()) == [1, 2]


def test_a_second_call_that_clears_nothing_keeps_what_the_program_has(whole):
    torch.cuda.memory._record_memory_history()
    allocate(1)
    torch.cuda.memory._record_memory_history(context="alloc")
    allocate(2)

    assert sizes(of_program()) == [1, 2]
    assert sizes(whole.snapshot()) == [1, 2]


@pytest.mark.parametrize(
    ("options", "actions"),
    [
        ({"max_entries": 2}, ["free_requested", "free_completed"]),
        ({"enabled": "state"}, ["free_completed"]),
        pytest.param(
            {"skip_actions": ["free_requested"]}, ["alloc", "free_completed"] * 2, marks=newer
        ),
    ],
)
def test_the_programs_options_hide_events_from_the_program_alone(whole, options, actions):
    allocate(1)
    torch.cuda.memory._record_memory_history(**options)
    allocate(2)
    allocate(3)

    assert [each["action"] for each in of_program()["device_traces"][0]] == actions
    assert sizes(whole.snapshot()) == [1, 2, 3]
    assert sizes(whole.snapshot(), "free_requested") == [1, 2, 3]


@pytest.mark.parametrize("context", [None, "state"])
def test_events_have_stacks_though_the_programs_own_have_none(whole, context):
    torch.cuda.memory._record_memory_history(context=context)
    allocate(1)
    (own, *_) = of_program()["device_traces"][0]

    assert "frames" not in own
    (event,) = [e for e in whole.snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert event["frames"][0]["name"] == "allocate"


def test_the_older_way_to_record_does_the_same(whole):
    allocate(1)
    torch.cuda.memory._record_memory_history(True, True, 3, True)
    allocate(2)
    actions = [each["action"] for each in of_program()["device_traces"][0]]
    torch.cuda.memory._record_memory_history(False)

    assert actions == ["alloc", "free_requested", "free_completed"]
    assert sizes(whole.snapshot()) == [1, 2]


def test_whether_a_history_is_on_is_the_programs_answer(whole):
    enabled = [torch._C._cuda_isHistoryEnabled()]
    torch.cuda.memory._record_memory_history()
    enabled.append(torch._C._cuda_isHistoryEnabled())
    torch.cuda.memory._record_memory_history(enabled=None)
    enabled.append(torch._C._cuda_isHistoryEnabled())

    assert enabled == [False, True, False]


def test_a_refused_call_changes_nothing(whole):
    allocate(1)
    for wrong in ({"enabled": "some"}, {"context": "some"}):
        with pytest.raises(RuntimeError, match=r"expected|unknown action"):
            torch.cuda.memory._record_memory_history(**wrong)
    allocate(2)

    assert of_program()["device_traces"] == [[]]
    assert sizes(whole.snapshot()) == [1, 2]


def test_the_recording_ends_with_the_run(gpu):
    with ExitStack() as process:
        WholeRunHistory().start(process)
        allocate(1)
    allocate(2)

    assert not torch._C._cuda_isHistoryEnabled()
    assert of_program()["device_traces"] == [[]]


def test_a_history_that_the_program_left_on_stays_on(gpu):
    with ExitStack() as process:
        WholeRunHistory().start(process)
        torch.cuda.memory._record_memory_history()
    allocate(1)

    assert sizes(of_program()) == [1]


def test_a_history_that_was_on_before_goes_on(gpu):
    torch.cuda.memory._record_memory_history()
    allocate(1)
    with ExitStack() as process:
        recording = WholeRunHistory()
        recording.start(process)
        allocate(2)
        assert sizes(recording.snapshot()) == sizes(of_program()) == [1, 2]
    allocate(3)

    assert sizes(of_program()) == [1, 2, 3]


def test_each_gpu_has_its_trace():
    with simulate("24GiB", count=2), ExitStack() as process:
        recording = WholeRunHistory()
        recording.start(process)
        torch.empty(KIB, dtype=torch.uint8, device="cuda:1")
        torch.cuda.memory._record_memory_history()
        torch.empty(2 * KIB, dtype=torch.uint8, device="cuda:1")
        traces = recording.snapshot()["device_traces"]

    assert traces[0] == []
    assert [e["size"] for e in traces[1] if e["action"] == "alloc"] == [KIB, 2 * KIB]


def test_without_events_the_blocks_alone_have_their_stacks(gpu):
    with ExitStack() as process:
        recording = WholeRunHistory(keeps_events=False)
        recording.start(process)
        kept = [allocate(size) for size in (1, 2, 3)]
        torch.cuda.memory._record_memory_history(max_entries=2)
        kept += [allocate(4), allocate(5), allocate(6)]
        own = sizes(of_program())
        torch.cuda.memory._record_memory_history(enabled=None)
        kept.append(allocate(7))
        found = recording.snapshot()

    assert own == [5, 6]
    assert len(found["device_traces"][0]) == 1
    (segment,) = found["segments"]
    blocks = [block for block in segment["blocks"] if block["state"] != "inactive"]
    assert [block["frames"][0]["name"] for block in blocks] == ["allocate"] * len(kept)


def test_a_history_that_begins_with_an_empty_segment_has_its_peak(gpu, tmp_path):
    allocate(2)
    torch.cuda.memory._record_memory_history()
    kept = allocate(4096)
    torch.cuda.memory._dump_snapshot(tmp_path / "own.pickle")
    peak = peak_holders(read_snapshot(tmp_path / "own.pickle")).peak

    assert (peak.active, peak.reserved) == (kept.nbytes, 22 << 20)
