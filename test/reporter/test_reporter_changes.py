"""Differences of two snapshots, and leaks of a loop."""

from __future__ import annotations

import gc
import textwrap

import numpy
import pytest
import torch
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.errors import UsageError
from pytorch_memlab.mem_reporter import MemReporter, diff
from pytorch_memlab.simulation import simulate

CUDA = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def gpu():
    gc.collect()
    with simulate("24GiB"):
        yield


def on_gpu(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def test_what_came_went_grew_and_shrank():
    reporter = MemReporter()
    gone, grows, shrinks, stays = on_gpu(1000), on_gpu(2000), on_gpu(5000), on_gpu(7000)
    before = reporter.snapshot().on(CUDA)
    del gone
    grows, shrinks, came = on_gpu(6000), on_gpu(4000), on_gpu(100)
    difference = diff(before, reporter.snapshot().on(CUDA))

    assert [(c.kind, c.name, c.before, c.after, c.delta) for c in difference.changes] == [
        ("came", "came", 0, 100, 100),
        ("went", "gone", 1000, 0, -1000),
        ("grew", "grows", 2000, 6000, 4000),
        ("shrank", "shrinks", 5000, 4000, -1000),
    ]
    assert difference.names("grew") == ["grows"]
    assert str(difference) == textwrap.dedent(f"""\
                                                              Before     After
        {"-" * 79}
        came   came                                            0.00B   100.00B   +100.00B
        went   gone                                         1000.00B     0.00B  -1000.00B
        grew   grows                                           1.95K     5.86K     +3.91K
        shrank shrinks                                         4.88K     3.91K  -1000.00B
        {"-" * 79}
        in all: +2.05K""")
    assert difference.to_dataframe()["delta"].tolist() == [100, -1000, 4000, -1000]
    del stays, grows, shrinks, came


def test_equal_snapshots_and_moves_between_devices():
    reporter = MemReporter()
    tensor = torch.zeros(100, dtype=torch.uint8)
    before = reporter.snapshot()
    assert str(reporter.diff(before, reporter.snapshot())) == "no change"
    tensor = tensor.cuda()
    changes = reporter.diff(before, reporter.snapshot()).changes

    assert [(c.kind, c.name, c.device) for c in changes] == [
        ("came", "tensor", "cuda:0"),
        ("went", "tensor", "cpu"),
    ]


def test_tensors_without_a_variable_keep_their_numbers():
    def hiding(size):
        return iter([on_gpu(size)])

    first = hiding(100)
    reporter = MemReporter()
    before = reporter.snapshot().on(CUDA)
    number = int(before.rows[0].name.removeprefix("Tensor"))
    second = hiding(300)
    [change] = reporter.diff(before, reporter.snapshot().on(CUDA)).changes

    assert (change.kind, change.after) == ("came", 300)
    # PyTorch's own caches may keep tensors of other tests, which have numbers too.
    assert int(change.name.removeprefix("Tensor")) > number
    del first, second


def test_a_snapshot_keeps_nothing_alive():
    tensor = on_gpu(1000)
    snapshot = MemReporter().snapshot()
    del tensor

    assert torch.cuda.memory_allocated() == 0
    assert [row.name for row in snapshot.on(CUDA).rows] == ["tensor"]


def test_leaks_of_a_training_loop():
    model = torch.nn.Linear(10, 10).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    losses, seen = [], {}
    watch = MemReporter(model).leaks(4)
    for step in watch:
        loss = model(torch.ones(3, 10, device="cuda")).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
        seen[f"step {step}"] = on_gpu(1000)

    assert [(each.name, each.device, each.per_iteration) for each in watch.growing] == [
        ("seen[*]", "cuda:0", 1000),
        ("losses[*]", "cuda:0", 4),
    ]
    assert watch.growing[0].sizes == (1000, 2000, 3000, 4000)
    assert str(watch) == textwrap.dedent(f"""\
        grew with each of 4 iterations                       by each       now
        {"-" * 79}
        seen[*] on cuda:0                                  +1000.00B     3.91K
        losses[*] on cuda:0                                   +4.00B    12.00B""")


@knows_saved_tensors
def test_leaks_without_a_name_and_graphs_that_grow():
    hidden = iter([])

    def hide(before):
        tensor = on_gpu(512)
        return iter([before, tensor])

    total = torch.zeros(100, device="cuda", requires_grad=True) * 1
    watch = MemReporter().leaks(range(3))
    for _ in watch:
        hidden = hide(hidden)
        total = total + total.exp()

    assert {each.name: each.per_iteration for each in watch.growing} == {
        "Tensor*": 512,
        "graph of total": 400,
    }


def test_no_leak_too_few_iterations_and_the_items_of_the_loop():
    reporter = MemReporter()
    watch = reporter.leaks(["a", "b", "c"])
    assert str(watch) == "0 iterations done: 3 are needed to tell a leak"
    assert list(watch) == ["a", "b", "c"]
    assert str(watch) == "nothing grew with every one of 3 iterations"


def test_a_leak_in_few_words_names_three_and_counts_the_others():
    first, second, third, fourth, fifth = [], [], [], [], []
    watch = MemReporter().leaks(3)
    for _ in watch:
        for number, kept in enumerate((first, second, third, fourth, fifth)):
            kept.append(on_gpu(5000 - 1000 * number))

    assert repr(watch) == (
        "<LeakWatch: first[*], second[*], third[*] and 2 more grew by 14.6 KiB with each of 3"
        " iterations>"
    )


@knows_saved_tensors
@pytest.mark.parametrize("order", [("most", "least"), ("least", "most")])
def test_a_graph_that_grows_has_the_line_that_saved_most(order):
    texts = {
        "most": "total = total.exp()",
        "least": "total = torch.cat([total[:10].exp(), total[10:]])",
    }
    names = {"torch": torch}
    names["total"] = torch.zeros(1000, device="cuda", requires_grad=True) * 1
    with MemReporter.record_lines():
        watch = MemReporter().leaks(3)
        for _ in watch:
            for name in order:
                exec(compile(texts[name], f"{name}.py", "exec"), names)

    assert [str(growth.line) for growth in watch.growing] == ["most.py:1"]


def test_a_loop_that_is_left_early():
    kept = []
    watch = MemReporter().leaks(iter(range(100)))
    for step in watch:
        kept.append(on_gpu(512))
        if step == 4:
            break

    assert [each.sizes for each in watch.growing] == [(512, 1024, 1536, 2048)]


def test_growth_that_pauses_is_no_leak():
    kept = []
    watch = MemReporter().leaks(5)
    for step in watch:
        kept += [on_gpu(512)] * (step != 2)

    assert watch.growing == ()


def snapshots_of(monkeypatch):
    """A list that gets an entry for each snapshot from now on."""
    taken = []
    snapshot = MemReporter._snapshot
    monkeypatch.setattr(
        MemReporter, "_snapshot", lambda self, frame: (taken.append(0), snapshot(self, frame))[1]
    )
    return taken


def test_a_loop_in_which_nothing_can_have_grown_any_more_is_looked_at_no_more(monkeypatch):
    taken, kept = snapshots_of(monkeypatch), []
    watch = MemReporter().leaks(50)
    for step in watch:
        kept += [on_gpu(512)] * (step != 4)

    assert len(taken) == 5  # the last is of the iteration that kept nothing
    assert watch.growing == ()
    assert repr(watch) == "<LeakWatch: nothing grew with every one of 50 iterations>"


def test_a_loop_whose_names_are_always_new_is_looked_at_to_its_end(monkeypatch):
    taken, model = snapshots_of(monkeypatch), torch.nn.Module()
    watch = MemReporter(model).leaks(10)
    for step in watch:
        model.register_buffer(f"mask_{step}", on_gpu(1000))

    assert len(taken) == 10
    assert [(each.name, each.sizes[-1]) for each in watch.growing] == [("all tensors", 10_000)]


@pytest.mark.parametrize(("first", "found"), [(1, [(0, 512, 1024, 1536, 2048)]), (2, [])])
def test_what_grows_from_the_second_iteration_on_is_a_leak_and_later_is_not(first, found):
    late, always = [], []
    watch = MemReporter().leaks(5)
    for step in watch:
        always.append(on_gpu(8))
        late += [on_gpu(512)] * (step >= first)

    assert [each.sizes for each in watch.growing if each.name == "late[*]"] == found
    assert [each.sizes for each in watch.growing if each.name == "always[*]"] == [
        (8, 16, 24, 32, 40)
    ]


def test_a_tensor_that_has_another_name_now_did_not_change():
    reporter = MemReporter()
    model = torch.nn.Linear(10, 10, device="cuda")
    optimizer = torch.optim.SGD(model.parameters())
    batch, stays = on_gpu(100), on_gpu(200)
    before = reporter.snapshot().on(CUDA)

    def inside():
        new = on_gpu(300)
        return reporter.diff(before, reporter.snapshot().on(CUDA)), new

    assert [(c.kind, c.name) for c in inside()[0].changes] == [("came", "new")]
    del model
    renamed, batch = batch, on_gpu(70)
    changes = reporter.diff(before, reporter.snapshot().on(CUDA)).changes

    assert [(c.kind, c.name, c.delta) for c in changes] == [
        ("came", "renamed", 100),
        ("shrank", "batch", -30),
    ]
    del renamed, stays, batch, optimizer


def test_a_name_that_another_tensor_had_is_no_new_name():
    reporter = MemReporter()
    first, second = on_gpu(100), on_gpu(200)
    before = reporter.snapshot().on(CUDA)
    second = first
    del first
    changes = reporter.diff(before, reporter.snapshot().on(CUDA)).changes

    assert [(c.kind, c.name, c.delta) for c in changes] == [
        ("went", "first", -100),
        ("shrank", "second", -100),
    ]
    del second


def test_a_name_on_two_devices_says_which():
    with simulate("24GiB", count=2):
        reporter = MemReporter()
        module = torch.nn.Linear(10, 10, bias=False, device="cuda:0")
        before = reporter.snapshot()
        module.to("cuda:1")
        other = on_gpu(64)
        text = str(reporter.diff(before, reporter.snapshot()))

    assert [line[:31].rstrip() for line in text.splitlines()[2:5]] == [
        "came   module.weight on cuda:1",
        "came   other",
        "went   module.weight on cuda:0",
    ]
    del other


def test_leaks_under_keys_that_are_no_text():
    seen = {}
    watch = MemReporter().leaks(4)
    for step in watch:
        seen[step, "it's"] = on_gpu(1000)

    assert [(each.name, each.per_iteration) for each in watch.growing] == [("seen[*]", 1000)]


def test_leaks_under_names_that_are_always_new():
    model = torch.nn.Module()
    watch = MemReporter(model).leaks(4)
    for step in watch:
        model.register_buffer(f"mask_{step}", on_gpu(1000))
        setattr(model, f"cache_{step}", on_gpu(500))

    assert [(each.name, each.device, each.sizes) for each in watch.growing] == [
        ("all tensors", "cuda:0", (1500, 3000, 4500, 6000))
    ]


@pytest.mark.parametrize(
    ("iterations", "message"),
    [
        (-3, "iterations must be 0 or more, not -3"),
        (True, "iterations must be a number or an iterable, not a bool"),
    ],
)
def test_wrong_numbers_of_iterations(iterations, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        MemReporter().leaks(iterations)


def test_numbers_and_sequences_of_any_kind_are_gone_through():
    class OldSequence:
        def __getitem__(self, index):
            return ["a", "b"][index]

    assert list(MemReporter().leaks(numpy.int64(2))) == [0, 1]
    assert list(MemReporter().leaks(OldSequence())) == ["a", "b"]
