"""Courtesy on a real GPU: the tests of the simulated one, how fast it copies, and the context."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from courtesy.test_courtesy import (  # noqa: F401 - collected here, with the fixture below
    test_a_second_yield_takes_what_came_since,
    test_an_exception_inside_restores,
    test_any_sizes_travel_in_chunks,
    test_exact_bits_of_values_that_are_no_numbers,
    test_hooks_on_a_gradient_accumulator_are_not_lost,
    test_lent_tensors_lie_in_few_pinned_blocks,
    test_model_gradients_and_optimizer_state_are_cpu_tensors_until_restored,
    test_nothing_is_kept_afterwards,
    test_tensors_that_die_or_come_while_lent,
    test_training_goes_on_as_if_nothing_had_happened,
    test_what_shared_memory_shares_it_on_both_sides,
)
from courtesy.test_courtesy_elsewhere import (  # noqa: F401
    test_a_living_graph_cannot_be_restored_elsewhere,
    test_a_step_may_be_restored_where_it_was_after_elsewhere_was_refused,
)
from courtesy.test_courtesy_of_odd_tensors import (  # noqa: F401
    test_a_storage_that_only_python_holds,
    test_a_stream_of_ones_own_does_not_get_the_memory,
    test_inference_tensors_and_conjugate_views,
    test_sparse_tensors,
    test_what_a_gradient_edge_alone_keeps,
)
from courtesy.test_courtesy_that_fails import (  # noqa: F401
    test_ctrl_c_at_any_moment_loses_nothing,
)

from pytorch_memlab.courtesy import Courtesy
from pytorch_memlab.courtesy.context import find_driver
from pytorch_memlab.errors import ContextReleaseError

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parent.parent.parent

RELEASE = """
import os, subprocess, torch
from pytorch_memlab import Courtesy

def processes():
    command = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

tensor = torch.arange(1000.0, device="cuda")
before = len(processes())
courtesy = Courtesy()
courtesy.yield_memory(release_context=True)
print(before - len(processes()), tensor.device.type, tensor.sum().item())
courtesy.restore()
print(before - len(processes()), tensor.device, (tensor * 2).sum().item())
"""


@pytest.fixture(autouse=True)
def gpu():
    gc.collect()
    gc.freeze()
    if torch.cuda.is_available():
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()
    yield
    gc.unfreeze()


def test_it_copies_at_four_fifths_of_the_rate_of_pinned_memory():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.courtesy"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "of the rate of pinned memory" in done.stdout
    assert "MISSED" not in done.stdout, done.stdout


def test_the_context_is_given_back():
    torch.zeros(1, device="cuda")
    try:
        find_driver()
    except ContextReleaseError as error:
        pytest.skip(str(error))
    done = subprocess.run(
        [sys.executable, "-c", RELEASE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )

    assert done.stdout.splitlines() == ["1 cpu 499500.0", "0 cuda:0 999000.0"]


def test_without_a_driver_for_it_the_context_stays_and_so_does_everything(monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    tensor = torch.arange(3.0, device="cuda")
    with pytest.raises(ContextReleaseError, match="on Linux only"):
        Courtesy().yield_memory(release_context=True)

    assert str(tensor.device) == "cuda:0"
