"""bitsandbytes' layers and optimizers on simulated GPUs, to the byte; `make programs` has them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import bytes_of, kept_by, lines_of_both_runs

bnb = pytest.importorskip("bitsandbytes", reason="`make programs` has bitsandbytes")

from pytorch_memlab import simulate  # noqa: E402
from pytorch_memlab.errors import UnsupportedCUDACallError  # noqa: E402

KIB, MIB = 1024, 1024**2


def linear_4bit(**options):
    options = {"bias": False, "compute_dtype": torch.bfloat16, "quant_type": "nf4", **options}
    return bnb.nn.Linear4bit(1024, 512, **options)


@computed_or_dry
def test_a_layer_of_four_bits_holds_them_and_their_scales(compute):
    with simulate("a100", compute=compute, strict=True) as machine:
        linear_4bit(compress_statistics=False).cuda()
        # Half a byte for each weight, float32 scales of blocks of 64, and the table of 16 values.
        assert torch.cuda.memory_allocated() == 512 * KIB // 2 + 512 * KIB // 64 * 4 + 512
        layer = linear_4bit().cuda()
        # Scales of one byte, float32 scales of 256 of those, their mean, and the tables.
        double = 256 * KIB + 8 * KIB + 512 + 512 + 512 + KIB
        assert bytes_of([layer.weight]) == 256 * KIB
        del layer
        assert torch.cuda.max_memory_allocated() > double
        assert machine.unmodelled == {}


@computed_or_dry
@pytest.mark.parametrize(
    ("gpu", "rows", "makes_weight"), [("h100", 64, True), ("rtx4090", 4, False)]
)
def test_which_kernel_multiplies_follows_the_gpu(gpu, rows, makes_weight, compute):
    with simulate(gpu, compute=compute, strict=True), torch.no_grad():
        layer = linear_4bit().cuda()
        x = torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16)
        torch.empty(1, device="cuda") @ torch.empty(1, device="cuda")
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        layer(x)
        taken = torch.cuda.max_memory_allocated() - before
        assert (taken >= MIB) == makes_weight  # 1,024 x 512 weights of bfloat16


def test_four_bits_compute_what_they_stand_for():
    with simulate("a100"):
        layer = linear_4bit()
        weight = layer.weight.data.clone()
        layer.cuda()
        x = torch.randn(8, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        result = layer(x)
        result.sum().backward()
        exact = x.detach().cpu().float() @ weight.T
        assert (result.cpu().float() - exact).abs().max() < 0.5
        assert (
            torch.corrcoef(torch.stack([result.cpu().float().flatten(), exact.flatten()]))[0, 1]
            > 0.99
        )
        expected = weight.sum(0).expand(8, -1)
        assert (
            torch.corrcoef(torch.stack([x.grad.cpu().float().flatten(), expected.flatten()]))[0, 1]
            > 0.99
        )


@computed_or_dry
def test_eight_bits_with_outliers(compute):
    with simulate("a100", compute=compute) as machine:
        layer = bnb.nn.Linear8bitLt(256, 512, has_fp16_weights=False, threshold=6.0)
        weight = layer.weight.data.clone()
        layer.cuda()
        assert bytes_of([layer.weight]) == 128 * KIB
        x = torch.randn(8, 256, device="cuda", dtype=torch.float16)
        x[:, 3] = 20
        result = layer(x)
        assert machine.unmodelled == {}
        if compute:
            exact = x.cpu().float() @ weight.T
            assert (result.cpu().float() - exact).abs().max() < 0.2


@computed_or_dry
@pytest.mark.parametrize(
    ("name", "state"),
    [
        ("Adam8bit", 2 * MIB + 2 * (MIB // 256) * 4),
        ("Lion8bit", MIB + (MIB // 256) * 4),
        ("AdamW32bit", 2 * 4 * MIB),
        ("PagedAdamW8bit", 2 * (MIB // 256) * 4),
        ("PagedAdamW32bit", 0),
    ],
)
def test_what_optimizers_keep(name, state, compute):
    with simulate("a100", compute=compute, strict=True):
        weight = torch.nn.Parameter(torch.ones(1024, 1024, device="cuda"))
        weight.grad = torch.full_like(weight, 0.5)
        optimizer = getattr(bnb.optim, name)([weight], lr=0.25)
        before = torch.cuda.memory_allocated()
        optimizer.step()
        maps = getattr(optimizer, "name2qmap", {}).values()
        tables = sum(one.nbytes for one in maps if one.is_cuda)
        assert torch.cuda.memory_allocated() - before == state + tables
        if compute:
            torch.testing.assert_close(weight, torch.full_like(weight, 0.75), atol=1e-2, rtol=0)


def fine_tuning():
    """QLoRA: a frozen layer of four bits, with an adapter that is trained by paged states."""
    frozen = linear_4bit().cuda()
    down = torch.nn.Linear(1024, 8, bias=False, device="cuda", dtype=torch.bfloat16)
    up = torch.nn.Linear(8, 512, bias=False, device="cuda", dtype=torch.bfloat16)
    optimizer = bnb.optim.PagedAdamW8bit([*down.parameters(), *up.parameters()])
    x = torch.randn(64, 1024, device="cuda", dtype=torch.bfloat16)
    for _ in range(2):
        loss = (frozen(x) + up(down(x))).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def test_a_dry_run_takes_the_same():
    lines = lines_of_both_runs(fine_tuning, [fine_tuning])
    assert kept_by(lines, "frozen = linear_4bit") > 256 * KIB + 8 * KIB


def test_another_function_of_its_library_is_refused_by_name():
    with simulate("a100"):
        a = torch.ones(8, 8, device="cuda", dtype=torch.int8)
        with pytest.raises(UnsupportedCUDACallError, match=r"^cigemm of bitsandbytes"):
            bnb.functional.igemm(a, a)


def test_it_gives_back_what_it_found():
    kernels = sys.modules.get("bitsandbytes.backends.cuda.ops")
    library = bnb.functional.lib
    before = None if kernels is None else dict(vars(kernels))
    with simulate("a100"):
        assert bnb.functional.lib is not library
    assert bnb.functional.lib is library
    assert before is None or dict(vars(kernels)) == before


PROGRAM = """
from pytorch_memlab import simulate
with simulate("a100", compute=False, strict=True):
    import bitsandbytes as bnb, torch
    bnb.nn.Linear4bit(64, 64, bias=False, compress_statistics=False).cuda()
    assert torch.cuda.memory_allocated() == 2048 + 512 + 512
print(bnb.optim.Adam8bit.__name__)
"""


def test_imported_inside_a_simulation_it_says_nothing_of_missing_libraries():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "Adam8bit\n"), done.stderr
    assert "libcublas" not in done.stderr
