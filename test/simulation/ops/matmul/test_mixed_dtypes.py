"""Products whose dtype is not that of their operands: memory, values, refusals."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn

from pytorch_memlab import simulate
from pytorch_memlab.simulation.ops.matmul import cublaslt

HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32
WORKSPACE = 8519680


has_dtype = pytest.mark.skipif(
    not hasattr(aten.mm, "dtype"), reason="this torch has no products of another dtype"
)


@has_dtype
@computed_or_dry
@pytest.mark.parametrize("dtype", [HALF, BFLOAT])
def test_products_of_half_precision_in_single(dtype, compute):
    def matrix(*shape):
        return lambda: randn(*shape, dtype=dtype)

    def of(op, *make):
        return events(lambda *given: op(*given, SINGLE), *make, compute=compute)

    first, second = matrix(100, 60), matrix(60, 90)
    single, half = 100 * 90 * 4, 100 * 90 * 2
    assert of(aten.mm.dtype, first, second) == [single, WORKSPACE]
    scattered = of(aten.mm.dtype, lambda: randn(100, 120, dtype=dtype)[:, ::2], second)
    assert scattered == [single, 100 * 60 * 2, WORKSPACE, -100 * 60 * 2]
    full = of(aten.addmm.dtype, matrix(100, 90), first, second)
    assert full == [single, WORKSPACE]
    assert of(aten.addmm.dtype, matrix(90), first, second) == [360, single, -360, WORKSPACE]
    first, second = matrix(2, 100, 60), matrix(2, 60, 90)
    assert of(aten.bmm.dtype, first, second) == [2 * single, WORKSPACE]
    added = of(aten.baddbmm.dtype, matrix(2, 100, 90), first, second)
    assert added == [2 * half, 2 * single, -2 * half, WORKSPACE]


@has_dtype
def test_they_are_more_exact_than_their_operands():
    torch.manual_seed(0)
    wide = [torch.randn(*shape).half() for shape in ((3, 9, 7), (3, 9, 64), (3, 64, 7))]
    bias, first, second = (one.double() for one in wide)
    expected = 2 * bias + 3 * (first @ second)
    with simulate("1GiB"):
        bias, first, second = (one.cuda() for one in wide)
        factors = {"beta": 2, "alpha": 3}
        batch = torch.baddbmm(bias, first, second, out_dtype=SINGLE, **factors)
        added = torch.addmm(bias[0], first[0], second[0], out_dtype=SINGLE, **factors)
        plain = torch.mm(first[0], second[0], out_dtype=SINGLE)
        several = torch.bmm(first, second, out_dtype=SINGLE)
        assert {one.dtype for one in (batch, added, plain, several)} == {SINGLE}
        for found, known in (
            (batch, expected),
            (added, expected[0]),
            (several * 3, expected - 2 * wide[0].double()),
            (plain * 3, (expected - 2 * wide[0].double())[0]),
        ):
            torch.testing.assert_close(found.cpu().double(), known, rtol=1e-5, atol=1e-4)
        column_major = torch.baddbmm(bias.mT.contiguous().mT, first, second, out_dtype=SINGLE)
        assert column_major.stride() == (63, 1, 9)


@has_dtype
@computed_or_dry
@pytest.mark.parametrize("name", ["mm", "bmm", "addmm", "baddbmm"])
def test_products_are_written_to_what_is_given(name, compute):
    """The bias is copied into the result: nothing is taken on the way."""
    batch = (2,) if "bmm" in name else ()
    shapes = [(*batch, 100, 60), (*batch, 60, 90)]
    if "add" in name:
        shapes.insert(0, (*batch, 100, 90))

    def call(*given):
        *factors, out = given
        result = getattr(torch, name)(*factors, out_dtype=SINGLE, out=out)
        assert result is out
        assert out.shape == (*batch, 100, 90)

    given = [lambda shape=shape: randn(*shape, dtype=BFLOAT) for shape in shapes]
    found = events(call, *given, lambda: randn(*batch, 100, 90), compute=compute)
    assert found == [WORKSPACE]


@has_dtype
def test_what_is_given_gets_the_products():
    torch.manual_seed(0)
    wide = [torch.randn(*shape).half() for shape in ((3, 9, 7), (3, 9, 64), (3, 64, 7))]
    with simulate("1GiB"):
        bias, first, second = (one.cuda() for one in wide)
        out, one = torch.zeros(3, 9, 7, device="cuda"), torch.zeros(9, 7, device="cuda")
        for name, given, to in (
            ("bmm", (first, second), out),
            ("baddbmm", (bias, first, second), out),
            ("mm", (first[0], second[0]), one),
            ("addmm", (bias[0], first[0], second[0]), one),
        ):
            product = getattr(torch, name)
            product(*given, out_dtype=SINGLE, out=to)
            assert torch.equal(to, product(*given, out_dtype=SINGLE))


@has_dtype
@computed_or_dry
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: torch.mm(randn(9, 9), randn(9, 9), out_dtype=HALF), "out_dtype"),
        (
            lambda: torch.mm(
                randn(9, 9, dtype=HALF),
                randn(9, 9, dtype=HALF),
                out_dtype=SINGLE,
                out=randn(9, 9, dtype=HALF),
            ),
            "dtype of the provided out tensor",
        ),
        (
            lambda: torch.baddbmm(
                randn(1, 9, 9, dtype=HALF),
                randn(2, 9, 9, dtype=HALF),
                randn(2, 9, 9, dtype=HALF),
                out_dtype=SINGLE,
            ),
            "self must have the same shape as the output",
        ),
        (lambda: torch._int_mm(int8(16, 8), int8(8, 8)), "self.size.0. needs to be greater"),
        (lambda: torch._int_mm(int8(17, 7), int8(7, 8)), "self.size.1. needs .* but got 7"),
        (lambda: torch._int_mm(int8(17, 8), int8(8, 12)), "mat2.size.1. needs .* but got 12"),
        (lambda: torch._int_mm(int8(17, 8), int8(7, 8)), "to match mat2.size.0. but got 8 and 7"),
        (lambda: torch._int_mm(int8(17, 8).float(), int8(8, 8)), "type Char but found Float"),
        (lambda: torch._int_mm(int8(17, 8), int8(8, 8).float()), "type Char but found Float"),
        (lambda: torch._int_mm(int8(8, 17).t(), int8(8, 8)), "CUBLAS_STATUS_NOT_SUPPORTED"),
        (lambda: torch._int_mm(int8(17, 8), int8(8, 8), out=int8(17, 8)), "type kInt but got sign"),
        (
            lambda: torch._int_mm(int8(17, 8), int8(8, 8), out=int8(16, 8).int()),
            "result.size.0. to be 17 but got 16",
        ),
    ],
)
def test_what_cuda_refuses_is_refused(call, message, compute):
    with simulate("1GiB", compute=compute), pytest.raises(RuntimeError, match=message):
        call()


def int8(*shape):
    return torch.ones(*shape, device="cuda", dtype=torch.int8)


@computed_or_dry
@pytest.mark.parametrize(("release", "taken"), [((2, 12), [WORKSPACE]), ((2, 13), [])])
def test_integers_are_multiplied_without_a_workspace(release, taken, compute, monkeypatch):
    monkeypatch.setattr(cublaslt, "RELEASE", release)
    make = [lambda: int8(100, 64), lambda: int8(64, 80)]
    assert events(torch._int_mm, *make, compute=compute) == [100 * 80 * 4, *taken]
    with simulate("1GiB"):
        assert torch.all(torch._int_mm(int8(100, 64), int8(64, 80)) == 64)


@pytest.mark.skipif(
    not hasattr(aten, "_scaled_mm_v2"), reason="this torch has no torch.nn.functional.scaled_mm"
)
@computed_or_dry
def test_a_scaled_product_by_its_recipe_takes_a_workspace(compute):
    scaled_mm, kinds = torch.nn.functional.scaled_mm, torch.nn.functional.ScalingType

    def matrix(*shape):
        return lambda: torch.zeros(shape, dtype=torch.float8_e4m3fn, device="cuda")

    def multiply(kind):
        def run(first, second, *scales):
            turned = second.t()
            return scaled_mm(first, turned, scales[0], kind, scales[1], kind, output_dtype=BFLOAT)

        return run

    one = lambda: torch.ones((), device="cuda")  # noqa: E731
    made, large = 64 * 128 * 2, 33554432
    make = [matrix(64, 32), matrix(128, 32), one, one]
    whole = events(multiply(kinds.TensorWise), *make, gpu="h100", compute=compute)
    assert whole == [made, large]
    nothing = [matrix(64, 0), matrix(128, 0), one, one]
    assert events(multiply(kinds.TensorWise), *nothing, gpu="h100", compute=False) == [made]
    with simulate("h100", compute=False) as machine:
        rows = [torch.ones(64, 1, device="cuda"), torch.ones(128, 1, device="cuda").t()]
        multiply(kinds.RowWise)(make[0](), make[1](), *rows)
        named = {name for _, name in machine.approximations[0].uncounted}
    assert named == {"workspaces of row-wise scaled products"}
    assert machine.unmodelled == {}


def test_integers_are_multiplied_by_a_transposed_matrix_and_into_a_result():
    with simulate("a100"):
        torch.manual_seed(0)
        first = torch.randint(-9, 9, (17, 8), dtype=torch.int8, device="cuda")
        second = torch.randint(-9, 9, (16, 8), dtype=torch.int8, device="cuda").t()
        expected = (first.cpu().long() @ second.cpu().long()).int()
        assert torch._int_mm(first, second).cpu().equal(expected)
        out = torch.zeros(17, 16, dtype=torch.int32, device="cuda")
        assert torch._int_mm(first, second, out=out) is out
        assert out.cpu().equal(expected)


@computed_or_dry
def test_an_activation_after_a_product_is_the_tanh_of_cublaslt(compute):
    torch.manual_seed(0)
    bias, first, second = torch.randn(6), torch.randn(4, 5), torch.randn(5, 6)
    gelu = torch.nn.functional.gelu
    with simulate("a100", compute=compute):
        call = [one.cuda() for one in (bias, first, second)]
        found = torch._addmm_activation(*call, use_gelu=True)
        clamped = torch._addmm_activation(*call, beta=2, alpha=3)
        out = torch.empty(4, 6, device="cuda")
        torch._addmm_activation(*call, use_gelu=True, out=out)
        assert found.shape == clamped.shape == (4, 6)
        if compute:
            plain = bias + first @ second
            torch.testing.assert_close(found.cpu(), gelu(plain, approximate="tanh"))
            torch.testing.assert_close(out, found)
            assert not torch.allclose(found.cpu(), gelu(plain), rtol=0, atol=1e-5)
            torch.testing.assert_close(clamped.cpu(), (2 * bias + 3 * first @ second).relu())
