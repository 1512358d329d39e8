"""The holders of the memory at the peak, recorded while a profiler is on."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch
from support.saved_tensors import knows_saved_tensors
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytorch_memlab import LineProfiler
from pytorch_memlab._common.frames.call_stacks import call_stacks
from pytorch_memlab._common.process.made_once import made_once
from pytorch_memlab.devices import get_device
from pytorch_memlab.errors import HistoryError, UnknownDeviceError
from pytorch_memlab.history import live_blocks, recorder
from pytorch_memlab.history.holders import ModuleNode, peak_holders
from pytorch_memlab.history.peak import find_peak
from pytorch_memlab.history.program import program
from pytorch_memlab.history.recorder import Recording, live_holders
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.history.sources import CpuBlocks
from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.machine import active

MIB = 2**20


@pytest.fixture
def machine():
    with simulate("24GiB", compute=False) as machine:
        yield machine


def take(mib=1):
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


def sizes(shares):
    return {share.name: share.size for share in shares}


def functions(holders):
    return {row.function: row.size for row in holders.by_function()}


def actions(profiler):
    return [event.action for event in profiler.history().of_device(0).events]


def assert_sums(holders, peak):
    assert holders.peak.active == peak
    for rows in (holders.by_line(), holders.by_category(), holders.by_module()):
        assert sum(row.size for row in rows) == peak
    assert holders.module_tree().total == sum(size for _, size in holders.by_stack()) == peak


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("scale", torch.ones(width))

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x * self.scale)))


class Model(nn.Module):
    def __init__(self, width=256, *, checkpointed=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block(width) for _ in range(3))
        self.checkpointed = checkpointed

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


def make_model(**options):
    return Model(**options).cuda()


def make_input():
    return torch.ones(1024, 256, device="cuda")


def train(steps=2, **options):
    model = make_model(**options)
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = make_input()
    for _ in range(steps):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_a_training_step_by_line_module_and_category(machine):
    with LineProfiler(train) as profiler:
        train()
    holders = profiler.peak_holders()
    assert_sums(holders, machine.gpus[0].peak_share()[0])
    parameters = sum(one.nbytes for one in Model().parameters())
    by_category = sizes(holders.by_category())
    assert by_category["parameters"] == parameters
    assert by_category["optimizer state"] == 2 * parameters
    assert by_category["buffers"] == 3 * 1024
    assert by_category["inputs and other tensors"] == MIB
    assert by_category["activations saved for backward"] >= 8 * MIB
    assert "unknown" not in by_category
    assert functions(holders)["make_model"] == parameters + by_category["buffers"]
    assert functions(holders)["make_input"] == MIB


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_modules_have_their_path_from_the_outermost_and_backward_counts_there(machine):
    with LineProfiler(train) as profiler:
        train(1)
    tree = profiler.peak_holders().module_tree()
    (model,) = tree.children
    assert (model.name, model.own) == ("Model", 0)
    (blocks,) = model.children
    assert sorted(one.path for one in blocks.children) == [
        f"Model.blocks.{number}" for number in range(3)
    ]
    last = next(one for one in blocks.children if one.name == "2")
    assert {one.name for one in last.children} == {"up", "down"}
    backward = {one.name: one.backward for one in profiler.peak_holders().by_module()}
    assert backward["Model.blocks.2.down"] > 0
    assert isinstance(tree, ModuleNode)


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_modules_made_in_a_call_are_not_looked_for_in_the_model(machine):
    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.scans, self.inner = 0, nn.Identity()

        def named_modules(self, *args, **kwargs):
            self.scans += 1
            return super().named_modules(*args, **kwargs)

        def forward(self, x):
            kept = [nn.Threshold(0, 0)(x) for _ in range(10)]
            return self.inner(kept[-1])

    model = Outer()
    with LineProfiler(Outer.forward) as profiler:
        model(take())
        model.inner = nn.Threshold(0, 0)
        model(take())
        looks = len(program.notes)  # what other tests keep looks too
    # For names and for what they hold: when the model is called first, for the first part without
    # a name, and for the new part.
    assert model.scans == 3 + 3 * looks
    assert set(sizes(profiler.peak_holders().by_module())) == {
        "",
        "Outer.Threshold",
        "Outer.inner",
    }


def test_what_backward_takes_counts_at_the_forward_line(machine):
    def forward(weight):
        return (weight * 2).exp()

    def step(weight):
        forward(weight).sum().backward()

    weight = torch.zeros(4 * MIB, device="cuda", requires_grad=True)
    with LineProfiler(step) as profiler:
        step(weight)
    holders = profiler.peak_holders()
    assert_sums(holders, torch.cuda.max_memory_allocated())
    rows = {row.function: (row.size, row.backward) for row in holders.by_function()}
    assert rows["forward"] == (32 * MIB, 16 * MIB)


def test_checkpointed_activations_count_at_the_line_of_the_model(machine):
    with LineProfiler(train) as profiler:
        train(checkpointed=True)
    holders = profiler.peak_holders()
    assert_sums(holders, machine.gpus[0].peak_share()[0])
    assert functions(holders)["forward"] > 8 * MIB
    assert "Block" not in {share.name.split(".")[0] for share in holders.by_module()}


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_blocks_of_the_peak_stay_though_they_are_freed_and_later_ones_do_not_count(machine):
    def work():
        first = take(4)
        second = take(3)
        del first, second
        for _ in range(50):
            take(6)

    with LineProfiler(work) as profiler:
        work()
    assert [(row.line, row.size) for row in profiler.peak_holders().by_line()] == [
        (take.__code__.co_firstlineno + 1, 7 * MIB)
    ]
    (peaks,) = profiler._recording()._peaks.values()
    (peak,) = peaks.values()
    assert len(peak.died) == 2


@pytest.mark.knows_simulation("what was made before has its line only if PyTorch recorded it")
def test_what_was_there_before_has_its_line_and_category(machine):
    model = make_model()
    with LineProfiler(take) as profiler:
        kept = take()
    holders = profiler.peak_holders()
    assert_sums(holders, torch.cuda.memory_allocated())
    before = sum(parameter.nbytes for parameter in model.parameters())
    assert functions(holders) == {"make_model": before + 3072, "take": MIB}
    assert sizes(holders.by_category()) == {
        "parameters": before,
        "inputs and other tensors": kept.nbytes,
        "buffers": 3072,
    }


def test_the_peak_is_that_of_the_times_when_the_profiler_was_on(machine):
    profiler = LineProfiler(take)
    kept = []
    with profiler:
        kept.append(take(2))
    outside = take(64)
    del outside
    with profiler:
        kept.append(take(3))
    holders = profiler.peak_holders()
    assert_sums(holders, 5 * MIB)
    assert functions(holders) == {"take": 5 * MIB}


def test_a_higher_peak_of_an_earlier_time_stays(machine):
    profiler = LineProfiler(take)
    with profiler:
        take(9)
    kept = take(2)
    with profiler:
        take(3)
    assert_sums(profiler.peak_holders(), 9 * MIB)
    assert kept.nbytes == 2 * MIB


def test_nested_profilers_have_each_its_peak(machine):
    with LineProfiler(take) as outer:
        take(8)
        with LineProfiler(take) as inner:
            take(2)
        take(4)
        assert inner.peak_holders().peak.active == 2 * MIB
        assert outer.peak_holders().peak.active == 8 * MIB
        inner.clear()
        take(16)
    assert outer.peak_holders().peak.active == 16 * MIB


def test_threads(machine):
    barrier = threading.Barrier(3)

    def hold(mib):
        kept = take(mib)
        barrier.wait()
        assert kept.nbytes

    with LineProfiler(hold) as profiler:
        threads = [threading.Thread(target=hold, args=(mib,)) for mib in (2, 4, 8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert_sums(profiler.peak_holders(), 14 * MIB)


def test_generators(machine):
    def batches():
        for _ in range(3):
            yield take(2)

    with LineProfiler(batches) as profiler:
        kept = list(batches())
    assert_sums(profiler.peak_holders(), len(kept) * 2 * MIB)


def test_a_storage_that_grows_in_place_counts_as_it_is(machine):
    kept = take(2)
    with LineProfiler(take) as profiler:
        kept.untyped_storage().resize_(6 * MIB)
    assert_sums(profiler.peak_holders(), 8 * MIB)
    assert machine.gpus[0].allocator.active_bytes == 6 * MIB


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_where_an_accelerator_tells_no_memory_the_tensors_of_the_host_are_recorded(monkeypatch):
    mps = SimpleNamespace(type="mps")
    accelerator = SimpleNamespace(is_available=lambda: True, current_accelerator=lambda: mps)
    monkeypatch.setattr(torch, "accelerator", accelerator, raising=False)

    def work():
        return torch.ones(3 * MIB, dtype=torch.uint8)

    with LineProfiler(work) as profiler:
        kept = work()
    assert profiler.peak_holders().peak.name == "cpu"
    assert functions(profiler.peak_holders())["work"] == kept.nbytes


def test_expandable_segments_and_other_streams(machine):
    torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    stream = torch.cuda.Stream()
    with LineProfiler(take) as profiler:
        first = take(4)
        first.record_stream(stream)
        del first
        second = take(2)
    assert_sums(profiler.peak_holders(), torch.cuda.max_memory_allocated())
    assert second.nbytes == 2 * MIB


def test_a_block_that_a_stream_still_uses_counts_until_it_is_free(machine):
    with LineProfiler(take):
        first = take(4)
        first.record_stream(torch.cuda.Stream())
        del first
        waiting = live_holders()
        second = take(2)  # the allocator sees now that the stream is done
        after = live_holders()
    line = take.__code__.co_firstlineno + 1
    assert [(row.line, row.size) for row in waiting.by_line()] == [(line, 4 * MIB)]
    assert [(row.line, row.size) for row in after.by_line()] == [(line, second.nbytes)]


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_a_workspace_of_a_kernel_is_no_tensor(machine):
    x = torch.ones(64, 64, device="cuda")
    with LineProfiler(take) as profiler:
        x @ x
    by_category = sizes(profiler.peak_holders().by_category())
    workspaces = sum(place.nbytes for place in machine.workspaces.living())
    assert by_category["workspaces"] == workspaces > 0


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.BatchNorm1d(MIB, device="cuda"),
        lambda: nn.BatchNorm1d(MIB).cuda(),
        lambda: nn.Sequential(nn.BatchNorm1d(MIB)).to("cuda"),
    ],
)
def test_a_module_that_dies_before_it_runs_holds_parameters_and_buffers(machine, make):
    def work():
        kept = make()
        take()
        del kept

    with LineProfiler(work) as prof:
        work()
    # Weight and bias, mean and variance of 4 MiB each; the number of batches takes 512 bytes.
    assert sizes(prof.peak_holders().by_category()) == {
        "parameters": 8 * MIB,
        "buffers": 8 * MIB + 512,
        "temporaries": MIB,
    }


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_gradients_that_were_dropped_are_known(machine):
    leaf = torch.ones(MIB, device="cuda", requires_grad=True)
    with LineProfiler(take) as profiler:
        leaf.sum().backward()
        leaf.grad = None
    assert sizes(profiler.peak_holders().by_category())["gradients"] == 4 * MIB


@knows_saved_tensors
@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_a_variable_of_what_autograd_keeps_changes_no_category(machine):
    leaf = torch.ones(MIB, device="cuda", requires_grad=True)
    with LineProfiler(take) as profiler:
        leaf.sum().backward()
        gradient = leaf.grad
        result = leaf.exp()
        doubled = result * 2
    assert sizes(profiler.peak_holders().by_category()) == {
        "inputs and other tensors": leaf.nbytes + doubled.nbytes,
        "gradients": gradient.nbytes,
        "activations saved for backward": result.nbytes,
    }


class Masked(nn.Module):
    def forward(self, x):
        return x * torch.ones(2 * MIB, dtype=torch.bfloat16, device="cuda")


@knows_saved_tensors
@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_what_a_module_makes_without_a_node_is_saved_if_autograd_keeps_it(machine):
    leaf = torch.ones(2 * MIB, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    with LineProfiler(take) as profiler:
        results = Masked()(leaf), leaf * torch.zeros_like(leaf)
    # The factor that the program made is an input, as the leaf is.
    assert sizes(profiler.peak_holders().by_category()) == {
        "activations saved for backward": 4 * MIB,
        "inputs and other tensors": (2 + len(results)) * 4 * MIB,
    }


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_activations_that_no_backward_frees_are_saved_ones(machine):
    model = make_model()
    with LineProfiler(Model.forward) as profiler:
        for _ in range(2):
            result = model(make_input()).sum()
            del result
    saved = sizes(profiler.peak_holders().by_category())["activations saved for backward"]
    with torch.no_grad(), LineProfiler(Model.forward) as without:
        model(make_input()).sum()
    assert saved == 14 * MIB
    assert "activations saved for backward" not in sizes(without.peak_holders().by_category())


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_inference_takes_temporaries(machine):
    model = make_model()
    with torch.no_grad(), LineProfiler(Model.forward) as profiler:
        model(make_input())
    by_category = sizes(profiler.peak_holders().by_category())
    assert by_category["temporaries"] == 9 * MIB


def test_an_error_and_ctrl_c_give_everything_back(machine):
    original, observers = nn.Module.__call__, active.observers.copy()

    class Fails(nn.Module):
        def forward(self, error):
            raise error

    for error in (ValueError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), LineProfiler(take):
            Fails()(error)
        assert nn.Module.__call__ is original
        assert program.state.modules.thread.calls.running == []
        assert machine.op_observers == machine.gradient_observers == ()
        assert active.observers == observers
        assert not program.state.is_on


def test_ctrl_c_in_a_module_leaves_no_module_behind(machine):
    class Fails(nn.Module):
        def forward(self):
            raise KeyboardInterrupt

    with LineProfiler(take) as profiler:
        with pytest.raises(KeyboardInterrupt):
            Fails()()
        kept = take()
    assert sizes(profiler.peak_holders().by_module()) == {"": kept.nbytes}


def test_nothing_observes_an_allocator_when_no_profiler_is_left(machine):
    gc.collect()
    before = program.notes  # of profilers that other tests left
    profiler = LineProfiler(take)
    with profiler:
        take()
    del profiler
    gc.collect()
    gpu = machine.gpus[0]
    assert (gpu.allocator._told.observers, gpu.log.follower) == ((), None)
    assert program.notes == before


def test_a_call_that_the_program_replaced_stays(machine):
    original = nn.Module.__call__

    def replaced(self, *args, **kwargs):
        return inner(self, *args, **kwargs)

    try:
        with LineProfiler(take):
            inner = nn.Module.__call__
            nn.Module.__call__ = replaced
        assert nn.Module.__call__ is replaced
        assert nn.Linear(2, 2)(torch.ones(2)).shape == (2,)
    finally:
        nn.Module.__call__ = original


def test_a_conversion_that_the_program_replaced_stays(machine):
    original = nn.Module._apply

    def replaced(module, *args, **kwargs):
        return inner(module, *args, **kwargs)

    try:
        with LineProfiler(take):
            inner = nn.Module._apply
            assert inner is not original
            nn.Module._apply = replaced
        assert nn.Module._apply is replaced
        assert nn.Linear(2, 2).double().weight.dtype == torch.float64
    finally:
        nn.Module._apply = original
    with LineProfiler(take):
        assert nn.Module._apply is not original
    assert nn.Module._apply is original


@pytest.mark.knows_simulation("the GPUs come and go")
def test_a_profiler_that_was_on_before_the_simulation():
    def work():
        return take(3)

    with LineProfiler(work) as profiler:
        with simulate("24GiB"):
            work()
        with simulate("24GiB"):
            take(1)
    assert_sums(profiler.peak_holders(), 3 * MIB)
    assert profiler.peak_holders("cuda:0").peak.active == 3 * MIB


def test_several_gpus():
    with simulate("24GiB", count=2), LineProfiler(take) as profiler:
        first = take(2)
        second = torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
        assert_sums(profiler.peak_holders(), second.nbytes)
        assert profiler.peak_holders().peak.device == 1
        assert_sums(profiler.peak_holders(0), first.nbytes)
        with pytest.raises(UnknownDeviceError):
            profiler.peak_holders("cuda:x")


def test_one_gpu_alone():
    with simulate("24GiB", count=2), LineProfiler(take, target_gpu=0) as profiler:
        take(2)
        torch.empty(5 * MIB, dtype=torch.uint8, device="cuda:1")
    assert profiler.peak_holders().peak.active == 2 * MIB
    with pytest.raises(HistoryError, match="cuda:1 was not recorded: there is cuda:0"):
        profiler.peak_holders(1)


def test_clear_forgets(machine):
    with LineProfiler(take) as profiler:
        take(8)
        profiler.clear()
        take(2)
    assert profiler.peak_holders().peak.active == 2 * MIB


def test_nothing_recorded_says_what_to_do():
    with pytest.raises(HistoryError, match="nothing was recorded: the profiler was never on"):
        LineProfiler(take).peak_holders()
    with pytest.raises(HistoryError, match="ask for them with history=True"):
        LineProfiler(take, history=False).history()


def test_tensors_of_the_host_without_a_gpu():
    def hold():
        kept = torch.ones(MIB)
        return kept.exp()

    with LineProfiler(hold) as profiler:
        result = hold()
    holders = profiler.peak_holders()
    assert_sums(holders, 8 * MIB)
    assert holders.peak.device == -1
    assert [row.size for row in holders.by_line()] == [4 * MIB, 4 * MIB]
    assert sizes(holders.by_category()) == {"inputs and other tensors": 8 * MIB}
    assert result.nbytes == 4 * MIB


def test_the_backward_pass_of_the_host_counts_at_the_forward_line():
    def forward(x):
        return x.exp()

    def step(x):
        forward(x).sum().backward()

    x = torch.zeros(MIB, requires_grad=True)
    with LineProfiler(step) as profiler:
        step(x)
    rows = {row.function: row.backward for row in profiler.peak_holders().by_function()}
    assert rows["forward"] == 4 * MIB


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_history_has_every_event_and_the_same_peak(device):
    def work():
        kept = [torch.ones(MIB, device=device) for _ in range(3)]
        del kept[1]
        return kept, [one.exp() for one in kept]

    if device == "cpu":
        with LineProfiler(work, history=True) as profiler:
            kept = work()
    else:
        with simulate("24GiB"), LineProfiler(work, history=True) as profiler:
            kept = work()
            del kept[0][0]
    history = profiler.history()
    (events,) = (one.events for one in history.devices)
    actions = [event.action for event in events if "segment" not in event.action]
    freed = 1 + (device == "cuda")
    assert (actions.count("alloc"), actions.count("free_completed")) == (5, freed)
    recorded = profiler.peak_holders()
    holders = peak_holders(history, recorded.peak.device)
    assert holders.peak.active == recorded.peak.active == 16 * MIB
    assert holders.by_line() == recorded.by_line()
    assert holders.by_category() == recorded.by_category()


def test_stacks_of_what_the_host_frees_below_the_peak_are_given_up(monkeypatch):
    # A profiler of another test may live on, and want all stacks.
    monkeypatch.setattr(recorder, "_host", made_once(CpuBlocks))
    monkeypatch.setattr(get_device("cpu"), "observers", ())

    def work():
        highest = torch.ones(MIB)
        del highest
        call_stacks.read()
        for _ in range(100):
            torch.ones(8)
        return [taken for taken in call_stacks._unread if taken.raw is not None]

    with LineProfiler(work, history=False):
        assert work() == []


@pytest.mark.knows_simulation("PyTorch's history has an event for each snapshot")
def test_a_history_begins_with_its_own_profiler(machine):
    with LineProfiler(take, history=True) as outer:
        before = take()
        with LineProfiler(take, history=True) as inner:
            kept = take(2)
        outer_events = actions(outer)
        outer.clear()
        del before
    assert outer_events == ["segment_alloc", "alloc", "segment_alloc", "alloc"]
    assert actions(inner) == ["segment_alloc", "alloc", "free_completed"]
    assert actions(outer) == ["free_completed"]
    for profiler in (outer, inner):
        recorded, replayed = profiler.peak_holders().peak, find_peak(profiler.history())
        assert (recorded.active, recorded.event) == (replayed.active, replayed.event)
        assert recorded.active == 3 * MIB
    assert kept.nbytes == 2 * MIB


@pytest.mark.knows_simulation("the GPUs come and go")
def test_the_history_is_that_of_the_last_simulation_and_of_the_host_without_one():
    def work(count, device):
        return [torch.ones(MIB, device=device) for _ in range(count)]

    profiler = LineProfiler(work, history=True)
    with profiler:
        work(1, "cpu")
        assert [one.device for one in profiler.history().devices] == [-1]
        for count in range(1, 6):
            with simulate("24GiB", compute=False):
                work(count, "cuda")
            gc.collect()
            (device,) = profiler.history().devices
            made = [event for event in device.events if event.action == "alloc"]
            assert (device.device, len(made)) == (0, count)


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_a_history_keeps_its_stacks_when_it_is_long(machine, monkeypatch):
    monkeypatch.setattr(live_blocks, "_MOST_OPEN", 10)

    def work():
        for _ in range(40):
            take()

    with LineProfiler(work, history=True) as profiler:
        work()
    history = profiler.history()
    allocations = [one for one in history.devices[0].events if one.action == "alloc"]
    assert {history.stacks[one.stack][0].name for one in allocations} == {"take"}
    assert {str(one.category) for one in allocations} == {"temporaries"}


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_what_is_live_now_without_a_profiler(machine):
    model = make_model()
    holders = live_holders(0)
    assert_sums(holders, torch.cuda.memory_allocated())
    assert set(sizes(holders.by_category())) == {"parameters", "buffers"}
    assert machine.gpus[0].allocator._told.observers == ()
    assert model is not None


def test_what_is_live_now_has_its_lines_while_a_profiler_is_on(machine):
    with LineProfiler(take):
        take(8)
        kept = take(2)
        holders = live_holders()
    assert_sums(holders, kept.nbytes)
    assert functions(holders) == {"take": kept.nbytes}


def test_no_gpu_has_no_live_holders():
    assert live_holders() is None


def test_a_recording_can_be_taken_without_a_profiler(machine):
    recording = Recording()
    recording.begin()
    recording.begin()
    take(3)
    recording.end()
    recording.end()
    assert_sums(recording.peak_holders(), 3 * MIB)
    assert live_blocks.FORWARD


@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_a_snapshot_says_module_and_category_while_a_profiler_knows_them(machine):
    """The peak of a file of it is that of the profiler, in every way to add it up."""
    torch.cuda.memory._record_memory_history()
    with LineProfiler(train) as profiler:
        train()
        snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    holders, recorded = peak_holders(history_of(snapshot)), profiler.peak_holders()
    assert holders.by_category() == recorded.by_category()
    assert holders.by_module() == recorded.by_module()
    assert holders.by_line() == recorded.by_line()
    blocks = [one for segment in snapshot["segments"] for one in segment["blocks"]]
    assert {one["category"] for one in blocks if "category" in one} == {"workspaces"}


def test_a_snapshot_without_a_profiler_has_pytorchs_keys_alone(machine):
    torch.cuda.memory._record_memory_history()
    kept = take()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(None)
    entries = [*snapshot["device_traces"][0], *snapshot["segments"][0]["blocks"]]
    assert all({"category", "module"}.isdisjoint(one) for one in entries)
    assert kept.nbytes == MIB


@pytest.mark.knows_simulation("PyTorch's history has an event for each snapshot")
def test_holders_and_history_count_the_same_events(machine):
    with LineProfiler(target_gpu=0):
        take(5)
    with LineProfiler(target_gpu=0, history=True) as profiler:
        kept = [take(), take(30)]
        kept.pop(0)
        del kept
        torch.cuda.empty_cache()
        with pytest.raises(torch.OutOfMemoryError):
            take(2**20)
    counted, held = find_peak(profiler.history()), profiler.peak_holders().peak
    assert (held.event, held.events) == (counted.event, counted.events) == (3, 10)


def test_events_have_their_actions_where_python_leaves_assertions_out():
    program = """
import torch
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.simulation import simulate

with simulate("24GiB"):
    recording = Recording(history=True)
    recording.begin()
    torch.ones(4, device="cuda")
    recording.end()
    print(*(event.action for event in recording.history().devices[0].events))
"""
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("segment_alloc alloc free_completed\n", "")
