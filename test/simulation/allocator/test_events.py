"""Who is told of the events of an allocator that are not of one block."""

from __future__ import annotations

from typing import Any

from pytorch_memlab.simulation.allocator.events import AllocatorEvents


def test_a_snapshot_is_an_event_for_observers_and_none_for_the_log() -> None:
    logged: list[tuple[Any, ...]] = []
    observed: list[tuple[Any, ...]] = []

    class Log:
        def happened(self, *event: Any) -> None:
            logged.append(event)

    events = AllocatorEvents(Log())  # type: ignore[arg-type]
    events.add(lambda *event: observed.append(event))
    told = [("segment_alloc", 512, 2048, 3), ("snapshot", 0, 1024, 0), ("oom", 100, 4096, 3)]
    for event in told:
        events.tell(*event)
    assert observed == told
    assert logged == [(*told[0], None), (*told[2], None)]
