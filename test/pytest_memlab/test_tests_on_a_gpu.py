"""The plugin where there is a GPU: a simulated one that the package takes for a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from inner_runs import section
from support.blind import blind

from pytorch_memlab import simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.devices import program_view

pytest_plugins = "pytester"


@pytest.fixture
def gpu() -> Iterator[None]:
    with blind(), simulate("24GiB"):
        yield
        torch.cuda.reset_peak_memory_stats()
        assert program_view._views == {}


TESTS = """
kept = []

def fill(size):
    return torch.empty(size << 20, dtype=torch.uint8, device="cuda")

@pytest.fixture(scope="module")
def of_module():
    return fill(4)

@pytest.mark.gpu_memory_limit("8 MiB", gpu="t4")  # there is a GPU: this one counts for nothing
def test_over(of_module):
    assert torch.cuda.get_device_properties(0).total_memory == 24 << 30
    fill(5)

@pytest.mark.gpu_memory_limit("16 MiB")
@pytest.mark.gpu_leaks("1 MiB")
def test_leak(of_module):
    kept.append(fill(2))
    torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")

def test_holders(gpu_memory, of_module):
    x = fill(7)
    assert gpu_memory.peak == 13 << 20
    held = {one.function: one.size >> 20 for one in gpu_memory.holders.by_line()}
    assert held == {"fill": 13}
    del x
    fill(1)
    assert gpu_memory.peak == 13 << 20
    assert gpu_memory.holders.peak.active == 13 << 20

def test_plain():
    kept.clear()
"""

OVER = """\
GPU memory is over the limit of 8.0 MiB: peak 9.0 MiB in use on cuda:0
  (Simulated GPU (24.00 GiB))
  4.0 MiB were in use before it began, by fixtures or earlier tests

held by these lines:
     9.0 MiB  100.0%  test_it.py:6  fill
                        return torch.empty(size << 20, dtype=torch.uint8, devic…
as: 5.0 MiB unknown, 4.0 MiB inputs and other tensors
"""


def test_limits_leaks_and_holders(gpu, run):
    result = run(TESTS)

    text = result.stdout.str()
    result.assert_outcomes(passed=3, failed=1, errors=1)
    assert section(text, "test_over") == OVER
    assert section(text, "ERROR at teardown of test_leak") == (
        "GPU memory leak of 2.0 MiB in 1 block on cuda:0, more than 1.0 MiB: it stays in\n"
        "  use when the test and its fixtures are over\n"
        "\n"
        "held by these lines:\n"
        "     2.0 MiB  100.0%  test_it.py:6  fill\n"
        "                        return torch.empty(size << 20, dtype=torch.uint8, devic…\n"
        "as: 2.0 MiB inputs and other tensors\n"
    )


def test_a_run_with_a_limit(gpu, tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text("import torch\ntorch.empty(100 << 20, dtype=torch.uint8, device='cuda')\n")

    assert main(["run", "--max-peak", "99MiB", str(script)]) == 3
    assert capsys.readouterr().err == (
        "pytorch-memlab: peak 100.0 MiB reserved on cuda:0, more than --max-peak 99MiB\n"
    )
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    assert main(["run", "--max-peak", "100MiB", str(script)]) == 0
