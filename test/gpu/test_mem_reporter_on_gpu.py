"""The memory reporter on a real GPU: the very checks of the simulated one."""

from pathlib import Path

import pytest
import torch
from support import reporter_programs

from pytorch_memlab.mem_reporter import MemReporter

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _no_workspaces():
    """Give back what cuBLAS took in other tests, so that each starts alike."""
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("check", reporter_programs.PROGRAMS, ids=lambda check: check.__name__)
def test_program(check):
    check()


def test_the_driver_sees_what_is_reserved_and_the_context():
    kept = torch.ones(1024, device="cuda")
    [record] = MemReporter().snapshot().on(torch.device("cuda", 0)).reconciliations

    assert record.used is not None
    assert record.used > record.reserved
    if record.context is not None:
        assert record.context > 0
        assert record.reserved + record.context + record.others == record.used
    del kept


def test_the_memory_history_tells_lines():
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python")
    try:
        leaf = torch.ones(1000, device="cuda", requires_grad=True)
        out = (leaf * 2).exp().sum()
        [name] = [
            row.name
            for row in MemReporter().snapshot().on(torch.device("cuda", 0)).rows
            if row.name.startswith("saved by ExpBackward0")
        ]
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)

    assert f"({Path(__file__).name}:" in name
    del out
