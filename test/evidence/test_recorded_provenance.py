"""Each op that the registry calls confirmed by a recording is found in a recording.

An op is confirmed by one call of it in a recorded program that is simulated. The call takes memory
beyond its results. Each of its allocations has the address and the bytes of the allocation at the
same place of the recording, and the recording names the op at one of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from recorded_programs import streams
from recorded_programs.catalogue import PUBLIC

from pytorch_memlab.simulation.dispatch.device_mode import SimulatedDeviceMode
from pytorch_memlab.simulation.machine.cublas_workspaces import Workspaces
from pytorch_memlab.simulation.ops.core.op_call import OpCall
from pytorch_memlab.simulation.ops.core.registry import Provenance, provenances

PROGRAMS = (
    "attention_from_start",
    "lm_small_ctx128_forward_bf16",
    "lm2.7b_ctx128_forward_bf16",
    "lm2.7b_ctx128_train",
)
"""Together they run every op of the recorded programs, but for those of ``graph_trainer`` alone."""

RECORDED_NAMES = {"aten::sum": "sum_dim_IntList", "aten::index_put": "_index_put_impl_"}
"""Ops that call another on CUDA, which the recorded stacks name."""

Call = tuple[str, list[tuple[int, bool]]]
"""An op, and for each of its allocations the place in the stream, and whether it is a result."""


class Calls:
    """Writes down which op makes which allocation."""

    def __init__(self, patches: pytest.MonkeyPatch) -> None:
        self.finished: list[Call] = []
        self._open: list[Call] = []
        self._depth = 0
        patches.setattr(SimulatedDeviceMode, "_run", self._one_call(SimulatedDeviceMode._run))
        patches.setattr(OpCall, "alloc_temp", self._besides_results(OpCall.alloc_temp))
        patches.setattr(Workspaces, "need", self._besides_results(Workspaces.need))
        malloc = streams.ObservedAllocator.malloc

        def observed(allocator: Any, size: int, stream: int = 0) -> int:
            place = len(allocator.events)
            address = malloc(allocator, size, stream)
            if len(allocator.events) > place and self._open:
                self._open[-1][1].append((place, self._depth == 0))
            return address

        patches.setattr(streams.ObservedAllocator, "malloc", observed)

    def _one_call(self, run: Any) -> Any:
        def one_call(mode: Any, func: Any, *args: Any) -> Any:
            overload = func._schema.overload_name
            self._open.append((func._schema.name + (f".{overload}" if overload else ""), []))
            try:
                return run(mode, func, *args)
            finally:
                self.finished.append(self._open.pop())

        return one_call

    def _besides_results(self, take: Any) -> Any:
        def besides_results(*args: Any) -> Any:
            self._depth += 1
            try:
                return take(*args)
            finally:
                self._depth -= 1

        return besides_results


def confirmed(calls: list[Call], simulated: list[Any], recorded: list[Any]) -> Iterator[str]:
    """Ops of which a call shows in the recording what it takes beyond its results."""
    for op, allocations in calls:
        name = RECORDED_NAMES.get(op, op.removeprefix("aten::").replace(".", "_"))
        places = [place for place, _ in allocations]
        if (
            any(not is_result for _, is_result in allocations)
            and all(list(simulated[place]) == recorded[place][:3] for place in places)
            and any(recorded[place][4].get("op") == name for place in places)
        ):
            yield op


def ops_in(name: str) -> set[str]:
    """The ops that one recording confirms."""
    gpu, program = PUBLIC[name]
    trace = streams.load(name)
    with pytest.MonkeyPatch.context() as patches:
        calls = Calls(patches)
        simulated, _ = streams.simulated_events(gpu, program, trace, compute=False)
    recorded = [event for event in trace["events"] if event[0] in ("alloc", "free")]
    return set(confirmed(calls.finished, simulated, recorded))


def test_what_claims_to_be_recorded_is_recorded():
    found = set().union(*map(ops_in, PROGRAMS))
    known = {name: provenance for name, provenance, _ in provenances()}
    claimed = {name for name in known if known[name] is Provenance.RECORDING}
    assert claimed - found == set(), "no recording has these"
    assert found & set(known) == claimed
    assert claimed == {
        "aten::bmm",
        "aten::index.Tensor",
        "aten::index_put",
        "aten::max.dim",
        "aten::sum",
        "aten::sum.dim_IntList",
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda recorded: None, ["aten::sum"]),
        (lambda recorded: recorded[1].__setitem__(2, 257), []),
        (lambda recorded: recorded[0].__setitem__(1, 5), []),
        (lambda recorded: recorded[0][4].update(op="nansum"), ["aten::sum", "aten::nansum"]),
        (lambda recorded: [event[4].clear() for event in recorded], []),
    ],
)
def test_what_confirms_an_op(change, expected):
    recorded = [
        ["alloc", 0, 4, 0, {"op": "sum_dim_IntList"}],
        ["alloc", 512, 256, 0, {"op": "sum_dim_IntList", "kernel": "sum_kernel_cuda"}],
    ]
    calls = [
        ("aten::sum", [(0, True), (1, False)]),
        ("aten::nansum", [(0, True), (1, False)]),
        ("aten::sum", [(0, True)]),
    ]
    change(recorded)
    simulated = [("alloc", 0, 4), ("alloc", 512, 256)]
    assert list(confirmed(calls, simulated, recorded)) == expected
