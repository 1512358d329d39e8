"""Replays the requests so far under other settings, and then the one that failed."""

from __future__ import annotations

from array import array
from typing import Final

from ..simulation.allocator.failed_request import FailedRequest
from .event_log import EventLog
from .model import AllocationHistory, DeviceHistory
from .out_of_memory import SettingsCheck
from .replay import replay

LONGEST: Final = 300_000
"""Numbers of a log that are made again: more take too long for a report."""


def check(
    request: FailedRequest,
    requests: array[int],
    length: int,
    settings: str,
    *,
    one_stream: bool = False,
    is_whole: bool = True,
) -> SettingsCheck:
    """Make the recorded requests again, and the one that failed after them."""
    log = _events(request, requests, length, one_stream=one_stream)
    history = AllocationHistory((DeviceHistory(request.device, log, (), ()),), ((),))
    taken = (request.context or 0) + (request.others or 0)
    if request.allowed is not None:
        taken = max(taken, request.capacity - request.allowed)
    result = replay(history, settings=settings, capacity=request.capacity, taken=taken)
    made = sum(name == "alloc" for name in (log.action_names[action] for action in log.actions))
    return SettingsCheck(settings, made, result.out_of_memory is None, is_whole)


def _events(
    request: FailedRequest, requests: array[int], length: int, *, one_stream: bool
) -> EventLog:
    """The requests as a history has them."""
    log = EventLog()
    numbers = iter(requests[:length])
    for number in numbers:
        if number > 0:
            size, stream = next(numbers), next(numbers)
            log.append("alloc", number, size, 0 if one_stream else stream, 0, 0)
        else:
            log.append("free_completed", -number, 0, 0, 0, 0)
    log.append("oom", request.free, request.requested, 0 if one_stream else request.stream, 0, 0)
    return log
