"""Outputs of CUDA graphs that a later run has written over: their use fails, as on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from pytorch_memlab import MemReporter, simulate
from pytorch_memlab.reporter.memory_snapshot import MemorySnapshot
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = [
    pytest.mark.skipif(RELEASE < (2, 9), reason="compiled programs are simulated from 2.9 on"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]

MB = 2**20

TEXT = "overwritten by a subsequent"


def cube(x: torch.Tensor) -> torch.Tensor:
    return x * x * x


def recorded() -> tuple[Callable[..., torch.Tensor], torch.Tensor]:
    return torch.compile(cube, mode="reduce-overhead"), torch.full((4,), 2.0, device="cuda")


USES_OF_DATA: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x + 1,
    lambda x: x.data_ptr(),
    lambda x: x.tolist(),
    lambda x: x.sum().item(),
    lambda x: x.cpu(),
    lambda x: x.copy_(torch.ones(4, device="cuda")),
    lambda x: x.zero_(),
    lambda x: torch._foreach_add([x], 1),
    lambda x: torch.stack([torch.ones(4, device="cuda"), x]),
    repr,
    lambda x: torch.utils.dlpack.to_dlpack(x),
    lambda x: x.__dlpack__(),
    lambda x: x.__cuda_array_interface__,
    torch.from_dlpack,
]
USES_OF_THE_STORAGE: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.untyped_storage(),
    lambda x: x.view(2, 2),
]
OTHERS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.detach(),
    torch.zeros_like,
    lambda x: x.new_empty(3),
    lambda x: (x.shape, x.device, x.is_cuda, x.dtype, x.stride()),
]


@pytest.mark.parametrize("compute", [False, True])
def test_an_output_is_of_no_use_after_the_next_run(compute: bool) -> None:
    with simulate("h100", compute=compute):
        step, x = recorded()
        latest = step(x)  # the warm-up
        for _ in range(2):  # the recording, and the first replay
            stale, latest = latest, step(x)
            for use in (*USES_OF_DATA, *USES_OF_THE_STORAGE):
                with pytest.raises(RuntimeError, match=TEXT) as caught:
                    use(stale)
                assert "return x * x * x" in str(caught.value)
                assert "cudagraph_mark_step_begin" in str(caught.value)
            for use in OTHERS:
                use(stale)
            for use in (*USES_OF_DATA[:5], *USES_OF_THE_STORAGE):
                use(latest)
            if compute:
                assert latest.tolist() == [8.0] * 4
        assert step(x) is latest  # a replay gives what the last one gave


@pytest.mark.parametrize("compute", [False, True])
def test_aliases_give_views_and_no_data(compute: bool) -> None:
    """They have a storage, whose data is gone; the output itself has none any more."""
    with simulate("h100", compute=compute):
        step, x = recorded()
        output = step(x)
        alias = output.detach()
        step(x)
        for use in USES_OF_DATA:
            with pytest.raises(RuntimeError, match=TEXT):
                use(alias)
        with pytest.raises(RuntimeError, match=TEXT):
            alias.untyped_storage().data_ptr()
        for use in (*USES_OF_THE_STORAGE, *OTHERS):
            use(alias)
        with pytest.raises(RuntimeError, match=TEXT):
            output.detach().view(2, 2)


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("compute", [False, True])
def test_compiled_code_does_not_read_one(compute: bool, mode: str) -> None:
    with simulate("h100", compute=compute):
        step, x = recorded()
        later = torch.compile(lambda x: x + 1, mode=mode)
        later(x)
        output = step(x)
        step(x)
        with pytest.raises(RuntimeError, match=TEXT):
            later(output)


@pytest.mark.parametrize("compute", [False, True])
def test_the_storage_of_an_output_dies(compute: bool) -> None:
    with simulate("h100", compute=compute):
        step, x = recorded()
        output = step(x)
        storage = StorageWeakRef(output.untyped_storage())
        assert not storage.expired()
        step(x)
        assert storage.expired()


@pytest.mark.parametrize("are_dropped", [False, True])
def test_gradients_of_a_graph_do_not_add_up_over_steps(are_dropped: bool) -> None:
    """Those that are dropped before the next step are of no concern."""
    with simulate("h100", compute=False):
        net = nn.Linear(64, 64).cuda()
        step = torch.compile(net, mode="reduce-overhead")
        x = torch.ones(8, 64, device="cuda")
        step(x).sum().backward()
        if are_dropped:
            net.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        loss = step(x).sum()
        if are_dropped:
            loss.backward()
        else:
            with pytest.raises(RuntimeError, match="overwritten"):
                loss.backward()


def test_the_last_message_holds() -> None:
    with simulate("h100", compute=False):
        x = torch.ones(4, device="cuda", requires_grad=True)
        for message in ("this is gone", "this is gone for good"):
            torch._C._set_storage_access_error_msg(x, message)
            with pytest.raises(RuntimeError, match=f"^{message}$"):
                x.untyped_storage()
        assert x.requires_grad
        assert x._version == 0


@pytest.mark.parametrize("compute", [False, True])
def test_a_report_counts_no_bytes_of_an_output_whose_storage_is_gone(compute: bool) -> None:
    with simulate("h100", compute=compute):
        x = torch.ones(2**20, device="cuda")
        stale = x + 1
        assert bytes_of_rows(MemReporter().snapshot()) == {"x": 4 * MB, "stale": 4 * MB}
        torch._C._set_storage_access_error_msg(stale, "this is gone")
        assert bytes_of_rows(MemReporter().snapshot()) == {"x": 4 * MB, "stale": 0}
        assert torch.cuda.memory_allocated() == 4 * MB
        assert stale.shape == x.shape


def bytes_of_rows(report: MemorySnapshot) -> dict[str, int]:
    return {row.name: row.memory for row in report.on(torch.device("cuda", 0)).rows}


def test_ops_are_not_looked_at_where_nothing_is_overwritten() -> None:
    with simulate("h100", compute=False) as machine:
        step, x = recorded()
        latest = step(x)
        run_op = machine.execute
        stale, latest = latest, step(x)
        assert machine.execute is not run_op
        with pytest.raises(RuntimeError, match=TEXT):
            stale.add_(1)
        del stale
        latest.add_(1)
        assert machine.execute is run_op
