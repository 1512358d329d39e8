"""A simulation that does not count all memory: the peak of a test is a lower bound."""

from __future__ import annotations

import pytest
from inner_runs import section

pytest_plugins = "pytester"

TESTS = """
@pytest.mark.gpu_memory_limit("1 MiB")
def test_convolution():
    layer = torch.nn.Conv2d(16, 16, 3).cuda()
    layer(torch.ones(8, 16, 64, 64, device="cuda"))

@pytest.mark.gpu_memory_limit("64 MiB")
def test_linear():
    torch.nn.Linear(16, 16).cuda()
"""


@pytest.mark.knows_simulation("approximations of ops")
def test_a_lower_bound_is_marked(run):
    text = run(TESTS, "--memlab").stdout.str()

    assert "GPU memory is over the limit of 1.0 MiB: peak at least " in text
    summary = section(text, "GPU memory").splitlines()
    assert summary[2].endswith("MiB?   1.0 MiB  test_it.py::test_convolution")
    assert summary[3] == " 1.5 KiB  64.0 MiB  test_it.py::test_linear"
    assert summary[4] == "?: a lower bound, the simulation did not count all memory"
