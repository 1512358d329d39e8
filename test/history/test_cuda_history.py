"""The history of real GPUs, on simulated ones: PyTorch's functions are the same there."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pytorch_memlab import LineProfiler
from pytorch_memlab.errors import HistoryError
from pytorch_memlab.history import recorder
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.recorder import live_holders
from pytorch_memlab.records import NoteKind
from pytorch_memlab.render.notes import text
from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.machine import active

MIB = 2**20


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that nothing but PyTorch's own functions tells of."""
    with simulate("24GiB") as machine:

        class Active:
            machine = None
            observers = active.observers

        monkeypatch.setattr(recorder, "active", Active)
        yield machine


def is_recording():
    return torch._C._cuda_isHistoryEnabled()


def train():
    model = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    for _ in range(2):
        model(torch.ones(8, 512, device="cuda")).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def test_the_peak_and_its_lines_are_those_of_the_counters(gpu):
    with LineProfiler(train, history=True) as profiler:
        assert is_recording()
        kept = train()
    assert not is_recording()
    holders = profiler.peak_holders()
    assert holders.peak.active == gpu.gpus[0].peak_share()[0]
    for rows in (holders.by_line(), holders.by_category(), holders.by_module()):
        assert sum(row.size for row in rows) == holders.peak.active
    by_category = {share.name: share.size for share in holders.by_category()}
    parameters = MIB + 2048
    assert by_category["parameters"] == by_category["gradients"] == parameters
    assert by_category["optimizer state"] == 2 * parameters
    assert kept
    history = profiler.history()
    assert peak_holders(history).by_line() == holders.by_line()


def test_a_history_that_the_program_records_goes_on(gpu):
    torch.cuda.memory._record_memory_history(max_entries=77)
    before = torch.zeros(9 * MIB, dtype=torch.uint8, device="cuda")
    del before
    with LineProfiler(train, history=True) as profiler:
        train()
    assert is_recording()
    kept = torch.zeros(5, device="cuda")
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    assert [one["size"] for one in trace if one["action"] == "alloc"][-1] == kept.nbytes
    assert profiler.peak_holders().peak.active < 9 * MIB + kept.nbytes * 2**20
    sizes = [one.size for one in profiler.history().devices[0].events]
    assert 9 * MIB not in sizes
    torch.cuda.memory._record_memory_history(None)


def test_nothing_is_recorded_without_being_asked_for(gpu):
    with LineProfiler(train, history=False) as profiler:
        assert not is_recording()
        train()
    with pytest.raises(HistoryError, match=r"only on request, LineProfiler\(\.\.\., history=True"):
        profiler.peak_holders()


def test_an_error_ends_the_recording(gpu):
    with pytest.raises(KeyboardInterrupt), LineProfiler(train, history=True):
        raise KeyboardInterrupt
    assert not is_recording()


def test_of_several_times_the_highest_peak_counts(gpu):
    profiler = LineProfiler(train, history=True)
    for mib in (2, 8, 4):
        with profiler:
            torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")
    assert profiler.peak_holders("cuda:0").peak.active == 8 * MIB


def test_two_recordings_end_in_the_order_in_which_they_began(gpu):
    first, second = LineProfiler(train, history=True), LineProfiler(train, history=True)
    first.enable()
    second.enable()
    kept = torch.zeros(3 * MIB, dtype=torch.uint8, device="cuda")
    first.disable()
    assert is_recording()
    more = torch.zeros(2 * MIB, dtype=torch.uint8, device="cuda")
    second.disable()
    assert not is_recording()
    peaks = [profiler.peak_holders().peak.active for profiler in (first, second)]
    assert peaks == [kept.nbytes, kept.nbytes + more.nbytes]


def test_it_can_be_read_while_it_records(gpu):
    with LineProfiler(train, history=True) as profiler:
        with pytest.raises(HistoryError, match="no GPU took memory while the profiler was on"):
            profiler.peak_holders()
        for mib in (2, 8, 4):
            kept = torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")
            assert profiler.peak_holders().peak.active >= kept.nbytes
        events = profiler.history().devices[0].events
        sizes = [one.size // MIB for one in events if one.action == "alloc"]
        assert sizes == [2, 8, 4]
        assert is_recording()
    # The tensor of before is freed when the next one is there.
    assert profiler.peak_holders().peak.active == 12 * MIB


def test_a_target_narrows_it(monkeypatch):
    with simulate("24GiB", count=2):
        monkeypatch.setattr(recorder, "active", SimpleNamespace(machine=None, observers=[]))
        with LineProfiler(train, target_gpu=1, history=True) as profiler:
            kept = [torch.zeros(MIB, dtype=torch.uint8, device=f"cuda:{n}") for n in range(2)]
    assert profiler.peak_holders().peak.device == 1
    with pytest.raises(HistoryError, match="cuda:0 was not recorded: there is cuda:1"):
        profiler.peak_holders("cuda:0")
    assert kept


def test_what_is_live_has_its_lines_if_they_are_recorded(gpu):
    assert live_holders() is None
    torch.cuda.memory._record_memory_history()
    kept = torch.zeros(MIB, dtype=torch.uint8, device="cuda")
    torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    (line,) = live_holders().by_line()
    assert (line.function, line.size) == (
        "test_what_is_live_has_its_lines_if_they_are_recorded", kept.nbytes
    )  # fmt: skip
    torch.cuda.memory._record_memory_history(None)


def take_five(mib):
    for _ in range(5):
        torch.zeros(mib * MIB, dtype=torch.uint8, device="cuda")


def limits_of(profiler):
    notes = profiler.recorded().notes
    return [one for one in notes if getattr(one, "kind", None) is NoteKind.EVENTS_MAY_BE_MISSING]


def test_pytorch_keeps_as_many_events_as_the_limit_says_and_a_note_tells_it(gpu):
    with LineProfiler(take_five, history=True, history_max=6) as profiler:
        take_five(30)
    device = profiler.history().devices[0]
    assert len(device.events) == 6
    assert device.dropped is None
    (note,) = limits_of(profiler)
    assert text(note) == (
        "cuda:0: the history has the last 6 events, which is its limit, so that earlier ones may be"
        " missing: what held the peak, the timeline and replays are of these"
    )


def test_with_room_for_all_events_nothing_is_said(gpu):
    torch.zeros(30 * MIB, dtype=torch.uint8, device="cuda")
    # A segment's cache is there: each is an allocation, a request to free, and a free.
    with LineProfiler(take_five, history=True, history_max=16) as profiler:
        take_five(30)
    device = profiler.history().devices[0]
    assert (len(device.events), device.dropped) == (15, 0)
    assert limits_of(profiler) == []


def test_the_history_of_the_program_keeps_its_own_number_of_events(gpu):
    torch.cuda.memory._record_memory_history(max_entries=100)
    with LineProfiler(take_five, history=True, history_max=6) as profiler:
        take_five(30)
    torch.cuda.memory._record_memory_history(None)
    device = profiler.history().devices[0]
    assert len(device.events) > 14
    assert device.dropped == 0
