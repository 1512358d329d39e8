"""Memory runs out while the compiler times the configurations of a Triton kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.made_up_facts import MIB, made_up_facts, place
from torch._inductor import config

from pytorch_memlab import explain_oom, simulate
from pytorch_memlab.advice.causes.timed_kernels import TimedKernels

ELEMENTWISE = "       torch._inductor.config.triton.autotune_pointwise = False"
REDUCTIONS = "       torch._inductor.config.deterministic = True"
BEFORE = "  # before the first compiled call"


def product(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * x.cos()


def normalised(x: torch.Tensor) -> torch.Tensor:
    return x / x.exp().sum(-1, keepdim=True)


@pytest.mark.parametrize(
    ("function", "kernel", "line"),
    [(product, "poi", ELEMENTWISE), (normalised, "red", REDUCTIONS)],
)
def test_kernels_have_one_configuration_where_timing_them_does_not_fit(function, kernel, line):
    with simulate("110MiB", compute=False, context=0):  # two tensors fit, and its cache has 40 MiB
        x = torch.zeros(512, 20480, device="cuda")
        with (
            pytest.raises(torch.OutOfMemoryError),
            explain_oom(no_try=True) as explained,
        ):
            torch.compile(function)(x)
        report = (explained.report or "").splitlines()
        first = next(number for number, text in enumerate(report) if text.startswith("  1. "))
        assert report[first].startswith(f"  1. Inductor takes 40.0 MiB to time triton_{kernel}_")
        code = report.index("       import torch._inductor.config")
        lines = [text for text in report[code + 1 :] if "_inductor.config." in text]
        assert lines == [f"{line}{BEFORE}"]
        del explained
        torch.compiler.reset()
        with config.patch({"triton.autotune_pointwise": False, "deterministic": True}):
            assert torch.compile(function)(x).shape == x.shape


def test_a_real_gpu_does_not_say_which_kernel(tmp_path):
    """Its stack has Inductor's functions, and no frame with the name of the kernel."""
    facts = made_up_facts(place("y = f(x)\n", tmp_path, "y = f(x)"), [], requested=50 * MIB)
    assert TimedKernels().remedy(facts) is None
    functions = (("benchmark_all_configs", "/torch/_inductor/runtime/triton_heuristics.py"),)
    remedy = TimedKernels().remedy(replace(facts, functions=functions))
    assert remedy is not None
    assert remedy.why == "Inductor takes 50.0 MiB to time a Triton kernel"
    assert list(remedy.code) == [
        "import torch._inductor.config",
        f"{ELEMENTWISE}{BEFORE}".strip(),
        f"{REDUCTIONS}{BEFORE}".strip(),
    ]
