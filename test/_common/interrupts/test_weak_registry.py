"""One object for each owner, for as long as anything refers to it."""

from __future__ import annotations

import gc
import weakref

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.process.made_once import WeakRegistry
from pytorch_memlab.devices import get_device
from pytorch_memlab.scopes import peak_tracker


class Value:
    def __init__(self, owner: object) -> None:
        self.owner = owner


def test_an_owner_has_one_object_while_it_is_used() -> None:
    registry: WeakRegistry[Value] = WeakRegistry()
    one, other = object(), object()
    found = registry.of(one, lambda: Value(one))
    assert registry.of(one, lambda: Value(one)) is found
    assert registry.of(other, lambda: Value(other)) is not found
    number = id(found)
    del found
    assert registry.of(one, lambda: Value(one)).owner is one
    assert len(registry._known) <= 2, f"the entry of {number} is still there"


def test_nothing_that_measured_keeps_a_simulation_alive() -> None:
    def work() -> None:
        pass

    with simulate("24GiB") as machine:
        with LineProfiler(work):
            work()
        device = get_device(0)
        tracker = peak_tracker(device)
        assert get_device(0) is device
        assert peak_tracker(device) is tracker
        tracker.open()[0].close()
        died = [weakref.ref(one) for one in (machine.known_gpus[0], device, tracker)]
        assert vars(machine.known_gpus[0]).keys().isdisjoint({"reader", "_tracker", "_ledger"})
    del machine, device, tracker
    gc.collect()
    assert [one() for one in died] == [None] * 3
