"""Names of tensors after the variables that lead to them."""

from __future__ import annotations

import collections
import functools
import gc
import re
import runpy
import sys
import threading
import types
import weakref
from dataclasses import dataclass

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.mem_reporter import MemReporter
from pytorch_memlab.reporter import names as tensor_names
from pytorch_memlab.reporter.leaks import held_in_containers

META = torch.device("meta")
CACHE: list[torch.Tensor] = []
HELD: list[dict[str, object]] = []
NUMBERED = re.compile(r"[A-Za-z]*Tensor\d+(\.|$)")


@pytest.fixture(autouse=True)
def long_search(searches_end_early, monkeypatch):
    """Globals of other modules come last: those of all tests are there."""
    monkeypatch.setattr(tensor_names, "LOOKED_INTO", 10_000)


@pytest.fixture(autouse=True)
def _collected():
    gc.collect()


def tensor(size: int) -> torch.Tensor:
    """One on a device where no other test has any."""
    return torch.empty(size, device="meta")


def named(snapshot) -> dict[str, int]:
    """Rows with a name; what PyTorch's own caches keep of other tests' tensors has numbers."""
    rows = snapshot.on(META).rows
    return {row.name: row.numel for row in rows if not NUMBERED.match(row.name)}


def test_a_class_whose_module_is_gone():
    made = type("Made", (), {"__module__": "a_module_that_is_gone"})

    kept = tensor(3)
    assert named(MemReporter().snapshot()) == {"kept": 3}
    del made, kept


def test_the_locals_that_a_program_keeps_stay_as_they_are():
    kept = tensor(3)
    HELD.append(locals())

    assert named(MemReporter().snapshot()) == {"kept": 3}
    assert HELD.pop()["kept"] is kept


def test_variables_and_what_they_hold():
    @dataclass
    class Batch:
        x: torch.Tensor

    class Slots:
        __slots__ = ("kept", "unset")

    Pair = collections.namedtuple("Pair", "left right")
    slots = Slots()
    slots.kept = tensor(8)
    inp = tensor(1)
    held = [tensor(2), (tensor(3),)]
    batch = {"x": tensor(4), 7: Batch(tensor(5))}
    pair = Pair(tensor(6), collections.deque([tensor(7)]))

    assert named(MemReporter().snapshot()) == {
        "inp": 1,
        "held[0]": 2,
        "held[1][0]": 3,
        "batch['x']": 4,
        "batch[7].x": 5,
        "pair.left": 6,
        "pair.right[0]": 7,
        "slots.kept": 8,
    }
    del inp, held, batch, pair


def test_what_functions_keep():
    def recorder():
        seen, self_made = [tensor(1)], tensor(9)

        def record(value, known=(tensor(2),), *, more=tensor(3)):  # noqa: B008
            return seen, self_made, value, known, more

        return record

    def batches():
        batch = tensor(4)
        yield batch
        yield None

    class Logger:
        shared: list[torch.Tensor] = []  # noqa: RUF012

        def __init__(self):
            self.scores = [tensor(5)]

        def on_step(self):
            pass

    record, waiting, on_step = recorder(), batches(), Logger().on_step
    next(waiting)
    Logger.shared.append(tensor(6))
    callback = functools.partial(print, tensor(7), end=tensor(8))
    add = [tensor(10)].append
    names = named(MemReporter().snapshot())

    assert names == {
        "record().seen[0]": 1,
        "record().self_made": 9,
        "record().known[0]": 2,
        "record().more": 3,
        "waiting().batch": 4,
        "on_step.__self__.scores[0]": 5,
        "Logger.shared[0]": 6,
        "callback.args[0]": 7,
        "callback.keywords['end']": 8,
        "add.__self__[0]": 10,
    }
    del record, waiting, on_step, callback, add


def test_what_a_hook_of_a_module_keeps():
    def recorder():
        seen: list[torch.Tensor] = []
        return lambda module, args, output: seen.append(output)

    model = torch.nn.Sequential(torch.nn.Identity())
    handle = model[0].register_forward_hook(recorder())
    model(tensor(3))

    assert named(MemReporter().snapshot()) == {f"model.0._forward_hooks[{handle.id}]().seen[0]": 3}


def test_the_shortest_name_wins_and_public_before_private():
    _first = held = [[tensor(1)]]
    direct = held[0][0]
    _second = public = {"x": tensor(2)}

    assert named(MemReporter().snapshot()) == {"direct": 1, "public['x']": 2}
    del _first, direct, _second, public


def test_variables_of_callers_have_their_function():
    def inner():
        inp = tensor(2)
        snapshot = MemReporter().snapshot()
        del inp
        return snapshot

    inp = tensor(1)
    name = "test_variables_of_callers_have_their_function().inp"

    assert named(inner()) == {"inp": 2, name: 1}
    del inp


def test_generators_are_callers_too():
    def steps():
        seen = tensor(1)
        yield named(MemReporter().snapshot())
        del seen

    assert list(steps()) == [{"seen": 1}]


def test_globals_of_the_callers_module_and_of_others(monkeypatch):
    CACHE.append(tensor(1))
    other = types.ModuleType("train")
    other.__file__ = "/home/me/train.py"
    other.state = {"best": tensor(2)}
    monkeypatch.setitem(sys.modules, "train", other)
    names = named(MemReporter().snapshot())
    CACHE.clear()
    del other.state

    assert names == {"CACHE[0]": 1, "train.state['best']": 2}


def test_a_global_of_the_same_name_as_a_variable():
    global inp
    inp = tensor(1)

    def run():
        inp = tensor(2)
        snapshot = MemReporter().snapshot()
        del inp
        return snapshot

    names = named(run())
    del inp

    assert names == {"inp": 2, "inp#2": 1}


def test_modules_in_variables_name_their_tensors_as_state_dict_does():
    class Trainer:
        def __init__(self):
            self.model = torch.nn.Sequential(torch.nn.BatchNorm1d(3, device="meta"))
            self.model[0].extra = [tensor(9)]
            self.optimizer = torch.optim.SGD(self.model.parameters())

    trainer = Trainer()

    assert named(MemReporter().snapshot()) == {
        "trainer.model.0.weight": 3,
        "trainer.model.0.bias": 3,
        "trainer.model.0.running_mean": 3,
        "trainer.model.0.running_var": 3,
        "trainer.model.0.num_batches_tracked": 1,
        "trainer.model.0.extra[0]": 9,
    }
    del trainer


def test_attributes_of_the_model_have_its_names_in_the_report_too(capsys):
    model = torch.nn.Sequential(torch.nn.Identity())
    model[0].cache = {"keys": [tensor(5)]}
    model.itself = [model]
    reporter = MemReporter(model)
    reporter.report(device="meta")

    assert named(reporter.snapshot()) == {"0.cache['keys'][0]": 5}
    assert "0.cache['keys'][0]" in capsys.readouterr().out


def test_optimizer_state_is_named_after_the_variable_of_its_parameter():
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    weight.sum().backward()
    optimizer.step()
    names = {row.name for row in MemReporter().snapshot().rows}

    assert {"weight", "weight.grad", "SGD.weight.momentum_buffer"} <= names


def test_views_say_what_they_view():
    inp = torch.ones(4000)
    part = inp[3:5]
    alias = inp.detach().numpy()
    again = torch.from_numpy(alias)
    alone = torch.ones(3000)[1:2]
    lines = {
        line.split()[0]: line.partition("B  ")[2] or line.partition("K  ")[2]
        for line in str(MemReporter().snapshot()).splitlines()
        if line.strip()
    }

    assert lines["inp"] == ""
    assert lines["part"] == "view of inp"
    assert lines["again"] == "shares inp"
    assert lines["alone"] == "view of 11.7 KiB that no variable holds"
    del part, again, alone


def test_no_variable_is_kept_alive_by_the_frame_that_it_is_of():
    kept = tensor(3)
    died = weakref.ref(kept)
    MemReporter().snapshot()
    del kept

    assert died() is None


def test_a_programs_own_locals_stay_as_they_are():
    kept = tensor(3)
    scope = locals()
    MemReporter().snapshot()

    assert scope["kept"] is kept


def test_no_code_of_objects_runs():
    ran = []

    class Tells:
        def __getattribute__(self, name):
            ran.append(name)
            return super().__getattribute__(name)

        def __iter__(self):
            ran.append("iter")
            return iter(())

    class Telling(dict):
        def items(self):
            ran.append("items")
            return super().items()

    odd = Tells()
    odd.kept = tensor(1)
    mapping = Telling(kept=tensor(2))
    ran.clear()
    names = named(MemReporter().snapshot())
    del mapping

    assert names == {"odd.kept": 1, "mapping['kept']": 2}
    assert ran == []


def test_the_search_ends_and_names_what_is_near(monkeypatch):
    monkeypatch.setattr(tensor_names, "LOOKED_INTO", 100)
    crowd = [[i] for i in range(10_000)]
    tensors = [tensor(size) for size in range(1, 2000)]
    loop: list = []
    loop.append(loop)
    names = named(MemReporter().snapshot())

    assert names == {f"tensors[{size - 1}]": size for size in range(1, 2000)}
    del crowd, tensors


def test_variables_come_in_their_order_and_parameters_in_their_modules():
    weights = torch.nn.Linear(3, 2, device="meta")
    weights.bias = torch.nn.Parameter(tensor(2))
    weights.weight = torch.nn.Parameter(tensor(6))  # younger than the bias
    last = [tensor(9)]
    inp, late = tensor(1), tensor(8)
    early = tensor(7)

    assert list(named(MemReporter().snapshot())) == [
        "inp",
        "late",
        "early",
        "weights.weight",
        "weights.bias",
        "last[0]",
    ]
    del last, inp, late, early


def test_variables_of_functions_that_an_exception_went_through(monkeypatch):
    def fails():
        activation = tensor(5)
        raise ValueError(activation.size())

    def passes_on():
        batch = {"x": tensor(6)}
        try:
            fails()
        except ValueError as error:
            raise RuntimeError(batch["x"].size()) from error

    try:
        passes_on()
    except RuntimeError as error:
        mine = tensor(1)
        assert named(MemReporter().snapshot()) == {
            "mine": 1,
            "fails().activation": 5,
            "passes_on().batch['x']": 6,
        }
        last_error = error.with_traceback(error.__traceback__)
    monkeypatch.setattr(sys, "last_value", last_error, raising=False)
    del last_error, mine

    assert set(named(MemReporter().snapshot())) == {"fails().activation", "passes_on().batch['x']"}


def test_what_a_report_saw_of_an_exception_goes_with_it():
    def fails():
        activation = tensor(5)
        alive.append(weakref.ref(activation))
        raise ValueError

    alive = []
    try:
        fails()
    except ValueError:
        assert "fails().activation" in named(MemReporter().snapshot())

    assert alive[0]() is None


def test_what_composable_apis_keep_of_a_module():
    @dataclass
    class State:
        gathered: list[torch.Tensor]

    def fully_shard():
        pass

    model = torch.nn.Sequential(torch.nn.Module())
    for size, module in ((3, model), (4, model[0])):
        key = f"__composable_api_state_key_{size}f3c-91"
        module.__dict__[key] = collections.OrderedDict({fully_shard: State([tensor(size)])})
    reporter = MemReporter(model)

    assert named(reporter.snapshot()) == {"gathered[0]": 3, "0.gathered[0]": 4}
    assert named(MemReporter().snapshot()) == {"model.gathered[0]": 3, "model.0.gathered[0]": 4}


def test_globals_of_a_program_that_runpy_runs(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom pytorch_memlab import MemReporter\n"
        "keep = torch.empty(3, device='meta')\nsnapshot = MemReporter().snapshot()\n"
    )
    assert named(runpy.run_path(str(program))["snapshot"]) == {"keep": 3}


def test_variables_of_libraries_name_what_nothing_else_does():
    found = []
    thread = threading.Thread(target=lambda: found.append(named(MemReporter().snapshot())))
    thread.extra = tensor(2)
    thread.start()
    thread.join()

    assert found == [{"run().self.extra": 2}]
    del thread


class Kept:
    def __init__(self, value):
        self.value = value


class Keeper:
    def __init__(self, *values):
        self.seen = list(map(Kept, values))


def in_a_thread_with(extra, look):
    """Look in a thread whose own variables alone, which are the library's, lead to an object."""
    found = []
    thread = threading.Thread(target=lambda: found.append(look()))
    thread.extra = extra
    del extra
    thread.start()
    thread.join()
    return found[0]


def test_names_in_attributes_of_libraries_begin_with_the_class_of_the_program():
    def look():
        return named(MemReporter().snapshot())

    timer = threading.Timer(1, print, kwargs={"of": Keeper(tensor(2), tensor(3))})
    found = in_a_thread_with({"timer": timer}, look)
    assert found == {"Keeper.seen[0].value": 2, "Keeper.seen[1].value": 3}


def test_what_grows_in_an_object_that_a_library_holds_is_named_by_its_class():
    with simulate("1GiB", compute=False):
        kept = (torch.zeros(4, device="cuda") for _ in range(3))
        held = in_a_thread_with([Keeper(*kept)], lambda: held_in_containers(sys._getframe()))
    assert held == {"Keeper.seen": 3}
