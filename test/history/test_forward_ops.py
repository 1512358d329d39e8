"""Backward's memory and the forward op that caused it, and how much is remembered for that."""

from __future__ import annotations

import threading

import pytest
import torch

from pytorch_memlab._common.frames.call_stacks import call_stacks
from pytorch_memlab._common.torch import forward_ops
from pytorch_memlab._common.torch.forward_ops import ForwardOps, NodeStacks, OpStack
from pytorch_memlab.history.holders import peak_holders
from pytorch_memlab.history.program import program
from pytorch_memlab.history.recorder import Recording
from pytorch_memlab.history.snapshot import history_of
from pytorch_memlab.simulation import simulate

MIB = 2**20


class NotedOps(torch.utils._python_dispatch.TorchDispatchMode):
    def __init__(self, ops):
        super().__init__()
        self.ops = ops
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.op_runs(func)
        if torch._C._current_autograd_node() is not None:
            stack = self.ops.of_current_node()
            name = func.overloadpacket.__name__
            self.found.append((name, None if stack is None else stack.module))
        return func(*args, **(kwargs or {}))


def in_modules(module):
    """Ops whose modules have the names that a function returns, one for each op with a node."""

    def stack_of(op):
        stack = OpStack(op)
        stack.module = module()
        return stack

    return ForwardOps(stack_of)


def test_a_view_that_allocates_nothing_is_charged_with_what_its_backward_takes():
    """The gradient of a slice is as large as the whole; the op after it must not get it."""

    def select(x):
        return x[:, :1]

    with simulate("24GiB"):
        torch.cuda.memory._record_memory_history()
        x = torch.zeros(MIB, 2, device="cuda", requires_grad=True)
        y = select(x)
        noise = torch.ones(7, device="cuda")
        y.sum().backward()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    assert noise is not None
    rows = {row.function: row.backward for row in peak_holders(history_of(snapshot)).by_function()}
    assert rows["select"] >= 8 * MIB


def test_a_change_of_a_view_is_charged_with_what_its_backward_takes():
    """Autograd makes two of its nodes after the op: the op after it must not get them."""

    def change(x):
        part = x[:MIB].mul_(3)
        noise = torch.ones(7, device="cuda")
        return part.view(-1), noise

    first = change.__code__.co_firstlineno
    with simulate("24GiB", compute=False):
        torch.cuda.memory._record_memory_history()
        x = torch.zeros(2 * MIB, device="cuda", requires_grad=True) * 1
        part, noise = change(x)
        (x.sum() + part.sum()).backward()
        snapshot = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
    assert noise is not None
    sizes = {1: 0}
    for event in snapshot["device_traces"][0]:
        frame = event.get("forward_frames", [{"name": ""}])[0]
        if frame["name"] == "change":
            line = frame["line"] - first
            sizes[line] = sizes.get(line, 0) + event["size"]
    assert list(sizes) == [1]
    # gradients: of the whole before the change, of the part before and after, and of the view
    assert sizes[1] >= (8 + 4 + 4 + 8) * MIB


def test_a_node_of_an_op_that_views_by_strides_is_its_own():
    stacks, own = NodeStacks(), OpStack(torch.ops.aten.as_strided.default)
    stacks.add(5, 6, own)
    assert forward_ops._stack_of(5, "AsStridedBackward0", stacks) is own
    assert forward_ops._stack_of(6, "AsStridedBackward0", stacks) is None


@pytest.mark.parametrize("record", ["profiler", "PyTorch"])
def test_nodes_that_were_made_in_a_pause_are_charged_to_no_op(record):
    def step(x):
        return x.exp().sum()

    def switch(*, is_on):
        if record == "PyTorch":
            torch.cuda.memory._record_memory_history(enabled="all" if is_on else None)
        elif is_on:
            recording.begin()
        else:
            recording.end()

    recording = Recording(history=True)
    with simulate("24GiB", compute=False):
        x = torch.zeros(MIB, device="cuda", requires_grad=True)
        switch(is_on=True)
        step(x)
        switch(is_on=False)
        loss = step(x)
        switch(is_on=True)
        torch.ones(7, device="cuda")
        loss.backward()
        if record == "PyTorch":
            history = history_of(torch.cuda.memory._snapshot())
        else:
            history = recording.history()
        switch(is_on=False)
        recording.forget()
    events = history.of_device(0).events
    assert sum(event.size for event in events if event.action == "alloc") >= 4 * MIB
    assert not any(event.forward for event in events)


def test_a_stack_that_another_thread_reads_now_is_taken_again(monkeypatch):
    ops = ForwardOps()
    x = torch.ones(2, requires_grad=True)
    with NotedOps(ops):
        y = x + 1
        stack = ops.of_node(y.grad_fn)
        number = forward_ops._modes_that_wait() - 1
        read = []

        def read_meanwhile():
            stack.raw = None
            read.append(stack)
            return number

        monkeypatch.setattr(forward_ops, "_modes_that_wait", read_meanwhile)
        assert ops.capture() is not None
    assert read == [stack]


def test_only_so_many_nodes_are_remembered(monkeypatch):
    monkeypatch.setattr(forward_ops, "MOST_NODES", 8)
    names = map(str, range(100))
    ops = in_modules(lambda: next(names))
    with NotedOps(ops) as mode:
        x = torch.ones(2, requires_grad=True)
        outputs = [x.exp() for _ in range(20)]
        assert len(ops._threads[0]) <= 8
        outputs[19].sum().backward()
        outputs[0].sum().backward()
    assert ("mul", "19") in mode.found
    assert [found for name, found in mode.found if name == "mul"][1] is None


def noted(stacks, calls):
    """Add calls of ops, each with the number of its first node and the one after its last."""
    for begin, end, name in calls:
        stack = OpStack(torch.ops.aten.exp.default)
        stack.module = name
        stacks.add(begin, end, stack)


def modules_of(stacks, numbers):
    found = [stacks.get(number) for number in numbers]
    return [None if stack is None else stack.module for stack in found]


def test_nodes_are_found_by_their_numbers_also_after_a_gap_and_when_they_begin_again():
    stacks = NodeStacks()
    noted(stacks, [(10, 12, "a"), (12, 13, "b")])
    assert modules_of(stacks, range(9, 14)) == [None, "a", "a", "b", None]
    assert [stacks.is_second(number) for number in range(9, 14)] == [
        *(False, False, True, False, False)
    ]
    noted(stacks, [(11, 14, "c")])
    assert modules_of(stacks, range(9, 15)) == [None, "a", "c", "c", "c", None]
    assert [stacks.is_second(number) for number in (11, 12, 13)] == [False, True, True]
    noted(stacks, [(20, 21, "d")])
    assert modules_of(stacks, (13, 19, 20, 21)) == [None, None, "d", None]
    noted(stacks, [(3, 4, "e")])
    assert modules_of(stacks, (3, 4, 20)) == ["e", None, None]


def test_the_newest_half_of_too_many_nodes_stays(monkeypatch):
    monkeypatch.setattr(forward_ops, "MOST_NODES", 8)
    stacks = NodeStacks()
    noted(stacks, [(number, number + 1, str(number)) for number in range(100, 109)])
    assert modules_of(stacks, range(103, 110)) == [*(None, None, "105", "106", "107", "108", None)]


def test_equal_stacks_of_a_loop_are_kept_once_when_they_were_read(monkeypatch):
    monkeypatch.setattr(forward_ops, "_AT_ONCE", 4)
    ops = ForwardOps()
    x = torch.ones(2, requires_grad=True)

    def step():
        x.exp()
        x.exp()
        x.sin()

    with NotedOps(ops):
        for _ in range(3):
            step()
        nodes = ops._threads[0]
        assert len({id(stack) for stack in nodes.values()}) == 9
        call_stacks.read()
        for _ in range(2):
            step()
    loop, first = nodes.values()[:9], step.__code__.co_firstlineno
    assert len({id(stack) for stack in loop}) == 3
    lines = [
        line - first
        for stack in loop
        for file, line, function in call_stacks.places(stack)
        if file == __file__ and function == "step"
    ]
    assert lines == [1, 2, 3] * 3
    names = [stack.op._schema.name for stack in loop]
    assert names == ["aten::exp", "aten::exp", "aten::sin"] * 3


def test_a_graph_of_another_thread_finds_its_ops():
    place = threading.local()
    ops = in_modules(lambda: place.name)
    results = {}

    def forward():
        place.name = "worker"
        with NotedOps(ops):
            results["loss"] = torch.ones(2, requires_grad=True).exp().sum()

    worker = threading.Thread(target=forward)
    worker.start()
    worker.join()
    place.name = "main"
    with NotedOps(ops) as mode:
        results["loss"].backward()
    assert ("mul", "worker") in mode.found


def test_nodes_of_one_number_in_two_threads_are_told_apart_by_their_ops():
    place = threading.local()
    ops = in_modules(lambda: place.name)
    losses = {}

    def forward(name, function):
        place.name = name
        with NotedOps(ops):
            losses[name] = function(torch.ones(2, requires_grad=True)).sum()

    for name, function in (("exp", torch.exp), ("sigmoid", torch.sigmoid)):
        worker = threading.Thread(target=forward, args=(name, function))
        worker.start()
        worker.join()
    found = []
    for loss in losses.values():
        with NotedOps(ops) as mode:
            loss.backward()
        found.append([note for name, note in mode.found if name in ("mul", "sigmoid_backward")])
    assert found == [["exp"], ["sigmoid"]]


@pytest.mark.parametrize("level", ["all", "alloc"])
def test_the_nodes_are_forgotten_when_recording_ends(level):
    with simulate("24GiB") as machine:
        torch.cuda.memory._record_memory_history(context=level)
        (observer,) = machine.op_observers
        torch.ones(2, device="cuda", requires_grad=True).exp()
        assert observer.__self__._threads[0]
        torch.cuda.memory._record_memory_history(enabled=None)
        assert machine.op_observers == ()
        assert not observer.__self__._threads[0]


def test_several_observers_of_an_allocator_are_each_called_once_for_an_event():
    seen = {"one": [], "other": []}
    one, other = (
        lambda *event, name=name: seen[name].append(event[0]) for name in ("one", "other")
    )
    with simulate("24GiB") as machine:
        gpu = machine.gpus[0]
        for observer in (one, other, one):
            gpu.locked(gpu.allocator.observe, observer)
        x = torch.ones(2, device="cuda")
        gpu.locked(gpu.allocator.stop_observing, one)
        del x
        assert torch.cuda.memory_allocated() == 0
    assert seen["one"] == ["segment_alloc", "alloc"]
    assert seen["other"] == ["segment_alloc", "alloc", "free_requested", "free_completed"]


def test_a_thread_that_runs_is_remembered_whatever_number_of_others_ended():
    names = map(str, range(1000))
    ops = in_modules(lambda: next(names))
    with NotedOps(ops) as mode:
        x = torch.ones(2, requires_grad=True)
        kept = x.exp()

        def short():
            ops.op_runs(torch.ops.aten.add.Tensor)

        for _ in range(200):
            thread = threading.Thread(target=short)
            thread.start()
            thread.join()
        assert 1 < len(ops._threads) <= 64
        kept.sum().backward()
    assert ("mul", "0") in mode.found


@pytest.fixture
def recording():
    recording = Recording()
    yield recording
    recording.end()
    recording.forget()


@pytest.mark.knows_simulation("blocks that the simulation follows")
def test_an_allocation_of_an_op_with_a_node_has_the_stack_that_was_taken_for_the_node(recording):
    with simulate("24GiB", compute=False) as machine:
        recording.begin()
        x = torch.zeros(MIB, device="cuda", requires_grad=True)
        y = x.exp()
        block = list(machine.gpus[0].log.live.values())[-1]
        assert program.state.forward_ops.of_node(y.grad_fn).raw is block.raw is not None


def test_memory_that_no_op_takes_has_its_own_line_after_a_view(recording):
    def work(x):
        y = x.view(2, -1)
        address = torch.cuda.caching_allocator_alloc(MIB)
        return y, address

    first = work.__code__.co_firstlineno
    with simulate("24GiB", compute=False):
        x = torch.zeros(2, device="cuda", requires_grad=True)
        recording.begin()
        y, address = work(x)
        rows = recording.peak_holders().by_line()
        recording.end()
        torch.cuda.caching_allocator_delete(address)
    assert y.grad_fn is not None
    assert [(row.size, row.line) for row in rows if row.size == MIB] == [(MIB, first + 2)]
