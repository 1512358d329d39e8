"""Numbers of fewer bits on a simulated GPU: float8, TF32, scaled gradients. Bytes are exact."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.computed_or_dry import computed_or_dry

from pytorch_memlab import simulate

KIB = 2**10

FLOAT8 = [
    getattr(torch, name)
    for name in (
        *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"),
        "float8_e8m0fnu",
    )
    if hasattr(torch, name)
]

SCALED_MM_COUNTS_HERE = pytest.mark.skipif(
    torch.__version__ < (2, 8), reason="torch._scaled_mm needs a GPU before torch 2.8"
)


def allocated() -> int:
    return torch.cuda.memory_allocated()


def matrix(rows: int, columns: int) -> torch.Tensor:
    return torch.zeros(rows, columns, device="cuda").to(torch.float8_e4m3fn)


# float8


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
@computed_or_dry
def test_a_float8_number_is_one_byte(dtype: torch.dtype, *, compute: bool) -> None:
    with simulate("h100", compute=compute, strict=True):
        wide = torch.ones(64 * KIB, device="cuda")
        assert allocated() == 256 * KIB
        narrow = wide.to(dtype)
        assert (narrow.dtype, narrow.device.type, allocated()) == (dtype, "cuda", 320 * KIB)
        back = narrow.to(torch.bfloat16)
        assert (back.dtype, allocated()) == (torch.bfloat16, 448 * KIB)
        assert narrow.view(torch.uint8).device.type == "cuda"
        assert narrow.cpu().device.type == "cpu"
        moved = torch.empty(1000, dtype=dtype).cuda()
        assert allocated() == 449 * KIB
        if compute:
            assert torch.equal(back.float(), wide)
        del wide, narrow, back, moved
        assert allocated() == 0


@SCALED_MM_COUNTS_HERE
@computed_or_dry
@pytest.mark.parametrize(
    ("out_dtype", "size"), [(torch.bfloat16, 2), (torch.float32, 4), (torch.float8_e4m3fn, 1)]
)
def test_a_scaled_product_takes_its_result_and_a_workspace(
    out_dtype: torch.dtype, size: int, *, compute: bool
) -> None:
    with simulate("h100", compute=compute, strict=True):
        a, b, one = matrix(64, 32), matrix(128, 32), torch.ones((), device="cuda")
        assert allocated() == 2 * KIB + 4 * KIB + 512
        before = allocated()
        torch.cuda.reset_peak_memory_stats()
        product = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=out_dtype)
        assert (product.shape, product.dtype) == ((64, 128), out_dtype)
        workspace = 32 * KIB * KIB
        assert allocated() - before == 8 * KIB * size + workspace
        assert torch.cuda.max_memory_allocated() == allocated()  # the operands are not copied
        again = torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=out_dtype)
        assert allocated() - before == 2 * 8 * KIB * size + workspace
        del product, again


@SCALED_MM_COUNTS_HERE
def test_a_gpu_without_float8_units_refuses_as_pytorch_does() -> None:
    for gpu in ("l4", "rtx4090", "rtx5090", "b200"):
        with simulate(gpu, compute=False):
            one = torch.ones((), device="cuda")
            torch._scaled_mm(matrix(16, 16), matrix(16, 16).t(), scale_a=one, scale_b=one)
    for gpu in ("a100", "t4", "24GiB"):
        with simulate(gpu, compute=False):
            one = torch.ones((), device="cuda")
            a, b = matrix(16, 16), matrix(16, 16)
            with pytest.raises(RuntimeError, match=r"only supported on CUDA devices with compute"):
                torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one)


# TF32


def train_a_little() -> tuple[int, int]:
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 64)).cuda()
    model(torch.ones(32, 256, device="cuda")).square().mean().backward()
    return torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()


@pytest.fixture
def precision() -> Any:
    names = [(torch.backends.cuda.matmul, "allow_tf32"), (torch.backends.cudnn, "allow_tf32")]
    before = [getattr(owner, name) for owner, name in names]
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    for (owner, name), value in zip(names, before, strict=True):
        setattr(owner, name, value)


def test_tf32_can_be_set_and_takes_no_memory(precision: None) -> None:
    peaks = set()
    for value in (False, True):
        with simulate("a100", compute=False):
            torch.backends.cuda.matmul.allow_tf32 = value
            torch.backends.cudnn.allow_tf32 = value
            assert torch.backends.cuda.matmul.allow_tf32 is value
            assert torch.backends.cudnn.allow_tf32 is value
            assert torch.get_float32_matmul_precision() == ("high" if value else "highest")
            peaks.add(train_a_little())
    with simulate("a100", compute=False):
        torch.set_float32_matmul_precision("medium")
        assert torch.backends.cuda.matmul.allow_tf32 is True
        peaks.add(train_a_little())
    assert len(peaks) == 1


# Scaled gradients


@pytest.mark.parametrize("unscales", [True, False])
def test_an_inf_skips_its_step_and_halves_the_scale(*, unscales: bool) -> None:
    with simulate("24GiB"):
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda", init_scale=4.0, growth_interval=2)
        begin = allocated()
        assert begin == 16 * KIB + 512
        seen = []
        for number in range(5):
            optimizer.zero_grad()
            before = model.weight.detach().cpu().clone()
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.ones(8, 64, device="cuda")).float().square().mean()
            if number == 1:
                loss = loss * float("inf")
            scaler.scale(loss).backward()
            if unscales:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            seen.append((scaler.get_scale(), torch.equal(before, model.weight.cpu())))
        # Two steps without an inf double it, the one with an inf halves it and changes nothing.
        assert seen == [(4.0, False), (2.0, True), (2.0, False), (4.0, False), (4.0, False)]
        # The gradients, the loss, the scale and its growth tracker, two workspaces of cuBLAS.
        workspaces = 2 * 8_519_680
        assert allocated() - begin == 16 * KIB + 512 + 512 + 2 * 512 + workspaces
        assert scaler.state_dict()["scale"] == 4.0
        del loss
        optimizer.zero_grad()
        assert allocated() - begin == 2 * 512 + workspaces


def test_the_scaler_reads_back_without_values() -> None:
    with simulate("24GiB", compute=False) as machine:
        model = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(model(torch.ones(8, 64, device="cuda")).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        assert allocated() == 2 * (16 * KIB + 512) + 2 * 512 + 2 * 8_519_680
        # Whether there was an inf is a small tensor, which has its value also here.
        assert machine.data_dependent_reads == ()
        assert scaler.get_scale() == 65536.0
