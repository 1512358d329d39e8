"""The last events of a history, and the memory before them, are those of a whole history."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytorch_memlab import LineProfiler
from pytorch_memlab.errors import UsageError
from pytorch_memlab.history import live_blocks
from pytorch_memlab.history.earlier_memory import EarlierMemory
from pytorch_memlab.history.model import HOST, Category
from pytorch_memlab.history.peak import counters_of, find_peak, settings_of
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.history.replay import check_replay
from pytorch_memlab.history.timeline import timeline_of
from pytorch_memlab.simulation import simulate

MIB = 2**20
STEPS = 12


counts_what_is_dropped = pytest.mark.knows_simulation(
    "a history of PyTorch does not say how many events it dropped"
)


@pytest.fixture
def _read_often(monkeypatch):
    """Open events are read, and old ones dropped, every few events."""
    monkeypatch.setattr(live_blocks, "_MOST_OPEN", 20)


def train(after_step=lambda: None):
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    kept = []
    for step in range(STEPS):
        x = torch.zeros(64 + 8 * (step % 5), 512, device="cuda")
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 3 == 0:
            kept.append(torch.zeros(MIB * (step + 1), dtype=torch.uint8, device="cuda"))
        if step % 4 == 3:
            torch.cuda.empty_cache()
        after_step()
    return model, optimizer, kept


def histories(limits):
    """The history of one program for each of the limits, in equal simulations."""
    for most in limits:
        with simulate("24GiB", compute=False):
            recording = Recording(history=True, history_max=most)
            recording.begin()
            kept = train()
            yield recording.history()
            recording.end()
            del kept


def described(history, event):
    stacks = history.stacks[event.stack], history.stacks[event.forward]
    return (*event[:4], *stacks, event.category, event.module)


def blocks_at(history, moment):
    """The blocks in use after some events, with all that is known of them."""
    device = history.devices[0]
    active, _ = counters_of(device, settings_of(history.settings))
    blocks = {}
    for index, event in enumerate(list(device.events)[:moment]):
        if event.action == "alloc":
            size = active[index + 1] - active[index]
            blocks[event.address] = (size, *described(history, event)[1:])
        elif event.action == "free_completed":
            del blocks[event.address]
    return blocks


def blocks_before(history):
    return {
        one.address: (
            *(one.size, one.address, one.requested, segment.stream),
            *(history.stacks[one.stack], history.stacks[one.forward], one.category, one.module),
        )
        for segment in history.devices[0].initial
        for one in segment.blocks
    }


LIMITS = (1, 2, 10, 47, 100, 333, 10**6)


@counts_what_is_dropped
@pytest.mark.usefixtures("_read_often")
@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_the_last_events_and_all_that_was_there_before_are_those_of_a_whole_history(
    conf, monkeypatch
):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", conf)
    whole, *limited = histories([None, *LIMITS])
    device = whole.devices[0]
    events = [described(whole, event) for event in device.events]
    active, reserved = counters_of(device, settings_of(whole.settings))
    assert device.dropped == 0
    categories = set()
    for most, history in zip(LIMITS, limited, strict=True):
        found = history.devices[0]
        dropped = found.dropped
        # A request is not cut, so that a few events less may be left.
        assert min(most, len(events)) - 3 <= len(found.events) <= most
        assert dropped + len(found.events) == len(events)
        assert [described(history, event) for event in found.events] == events[dropped:]
        counted = counters_of(found, settings_of(history.settings))
        assert counted == (active[dropped:], reserved[dropped:])
        if dropped:
            assert blocks_before(history) == blocks_at(whole, dropped)
            categories |= {row[-2] for row in blocks_before(history).values()}
        check = check_replay(history)
        assert check.matches
        assert check.figures.peak_active == max(active[dropped:])
    # A saved activation is known as such only when it is freed, after the cut.
    assert {Category.PARAMETERS, Category.OPTIMIZER_STATE, Category.SAVED} <= categories


@counts_what_is_dropped
@pytest.mark.usefixtures("_read_often")
def test_the_timeline_of_the_rest_has_the_peak_and_the_steps_of_the_whole_one():
    whole, limited = histories([None, 200])
    dropped = limited.devices[0].dropped
    assert dropped > 200
    active, _ = counters_of(whole.devices[0], settings_of(whole.settings))
    later = max(active[dropped:])
    drawn, all_drawn = timeline_of(limited), timeline_of(whole)
    assert drawn.dropped == dropped
    assert drawn.active[drawn.peak] == later
    assert drawn.points[drawn.peak] == active.index(later, dropped) - dropped - 1
    steps = [step - dropped for step in all_drawn.steps if step >= dropped]
    assert drawn.steps == tuple(steps)
    assert 0 < len(steps) < STEPS
    # The blocks of the peak, of which most are older than the events.
    peak, all_of_peak = find_peak(limited), find_peak(whole)
    assert peak.active == all_of_peak.active
    names = [
        [(one.size, one.category, one.module) for one in each.blocks]
        for each in (peak, all_of_peak)
    ]
    assert names[0] == names[1]


@counts_what_is_dropped
@pytest.mark.usefixtures("_read_often")
def test_old_events_go_a_quarter_at_a_time(monkeypatch):
    dropped, follow = [], EarlierMemory.follow

    def counted(self, log, nbytes, count, pools):
        dropped.append(count)
        follow(self, log, nbytes, count, pools)

    monkeypatch.setattr(EarlierMemory, "follow", counted)
    sizes = []
    with simulate("24GiB", compute=False) as machine:
        recording = Recording(history=True, history_max=100)
        recording.begin()
        try:
            log = next(iter(recording._peaks)).live[0].log
            kept = train(lambda: sizes.append(len(log.events)))
        finally:
            recording.end()
        assert machine.gpus
    assert kept
    assert min(dropped) >= 25
    assert sum(dropped) > 250
    open_events = 20 // 2 + 1
    assert max(sizes) <= 125 + open_events
    assert len(log._nbytes) == len(log.events)


@counts_what_is_dropped
def test_a_second_time_goes_on_with_the_same_limit():
    with simulate("24GiB", compute=False):
        profiler = LineProfiler(train, history=True, history_max=5)
        for mib in (1, 2, 3, 4):
            with profiler:
                kept = torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
                del kept
            history = profiler.history().devices[0]
            assert len(history.events) <= 5
        sizes = [event.size // MIB for event in history.events if event.action == "alloc"]
        assert sizes[-2:] == [3, 4]
        assert history.dropped + len(history.events) > 8
        assert profiler.peak_holders().peak.active == 4 * MIB  # of the whole run


@counts_what_is_dropped
def test_of_two_that_record_the_larger_limit_counts_and_each_has_its_own_beginning():
    def take(mib):
        return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")

    with simulate("24GiB", compute=False):
        small, large = (Recording(history=True, history_max=most) for most in (2, 8))
        small.begin()
        old = [take(20), take(20)]
        large.begin()
        later = [take(20) for _ in range(3)]  # two events each
        found = [one.history().devices[0] for one in (small, large)]
        whole = Recording(history=True)
        whole.begin()
        later += [take(20) for _ in range(9)]
        last = whole.history().devices[0]
        for one in (small, large, whole):
            one.end()
    assert [(one.dropped, len(one.events)) for one in found] == [(2, 8), (0, 6)]
    bytes_before = [sum(one.size for one in each.initial) // MIB for each in found]
    assert bytes_before == [20, 40]
    assert (last.dropped, len(last.events)) == (0, 18)
    assert len(old + later) == 14


def test_the_blocks_of_the_host_that_are_older_than_the_events():
    def take():
        first = torch.zeros(3 * MIB, dtype=torch.uint8)
        gone = torch.zeros(5 * MIB, dtype=torch.uint8)
        del gone
        later = torch.zeros(7 * MIB, dtype=torch.uint8)
        return first, later, torch.zeros(MIB, dtype=torch.uint8)

    profiler = LineProfiler(take, history=True, history_max=2, target_gpu="cpu")
    with profiler:
        first, later, last = take()
        history = profiler.history()
    device = history.of_device(HOST)
    assert device.dropped == 3
    assert [event.size for event in device.events] == [later.nbytes, last.nbytes]
    assert first.nbytes in [block.size for one in device.initial for block in one.blocks]
    assert 5 * MIB not in [block.size for one in device.initial for block in one.blocks]
    active, _ = counters_of(device, settings_of(history.settings))
    assert active[-1] - active[0] == later.nbytes + last.nbytes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"history": True, "history_max": 0}, "history_max is a number of events from 1 on, not 0"),
        (
            {"history": True, "history_max": -1},
            "history_max is a number of events from 1 on, not -1",
        ),
        (
            {"history": True, "history_max": "9"},
            "history_max is a number of events from 1 on, not '9'",
        ),
        ({"history": True, "history_max": True}, "from 1 on, not True"),
        pytest.param(
            {"history_max": 9},
            "history_max limits the history: give history=True too",
            marks=pytest.mark.knows_simulation("profilers have a history where it is hidden"),
        ),
    ],
)
def test_a_limit_that_is_none(options, message):
    with pytest.raises(UsageError, match=message):
        LineProfiler(train, **options)


@counts_what_is_dropped
def test_a_request_is_kept_whole_or_not_at_all():
    with simulate("24GiB", compute=False):
        recording = Recording(history=True, history_max=3)
        recording.begin()
        kept = [torch.empty(20 * MIB, dtype=torch.uint8, device="cuda") for _ in range(3)]
        device = recording.history().devices[0]
        recording.end()
    assert kept
    assert [event.action for event in device.events] == ["segment_alloc", "alloc"]
    assert device.dropped == 4
