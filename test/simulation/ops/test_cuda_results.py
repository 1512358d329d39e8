"""Results that CUDA returns in other memory than a CPU, and products that CUDA alone has."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, storage_of
from torch.nn import functional as F

from pytorch_memlab import simulate
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.attention.rules import RELEASE
from pytorch_memlab.simulation.ops.matmul import cublaslt

A100 = PRESETS["a100"]
HALF, BFLOAT, SINGLE = torch.float16, torch.bfloat16, torch.float32
WORKSPACE = 8519680
has_dtype = pytest.mark.skipif(
    not hasattr(aten.mm, "dtype"), reason="this torch has no products of another dtype"
)


def sizes_of(tensors):
    return [tensor.untyped_storage().nbytes() for tensor in tensors]


# Group norm


def channels_last(*shape, dtype=SINGLE):
    return lambda: randn(*shape, dtype=dtype).contiguous(memory_format=torch.channels_last)


@computed_or_dry
def test_a_group_norm_copies_channels_last_and_returns_none(compute):
    def norm(x, w):
        result, mean, deviation = aten.native_group_norm(x, w, w, 2, 8, 300, 4, 0.1)
        assert result.is_contiguous()
        return result, mean, deviation

    whole, groups, scales = 2 * 8 * 300 * 4, 2 * 4 * 4, 2 * 8 * 4
    found = events(norm, channels_last(2, 8, 20, 15), lambda: randn(8), compute=compute)
    assert found == [whole, whole, groups, groups, scales, scales, -scales, -scales, -whole]
    plain = events(norm, lambda: randn(2, 8, 20, 15), lambda: randn(8), compute=compute)
    assert plain == [whole, groups, groups, scales, scales, -scales, -scales]


@computed_or_dry
def test_its_gradient_copies_both_and_is_contiguous(compute):
    def gradient(g, x, m, w):
        mask = [True, True, True]
        found = aten.native_group_norm_backward(g, x, m, m, w, 2, 8, 300, 4, mask)
        assert found[0].is_contiguous()
        return found

    make = [channels_last(2, 8, 20, 15)] * 2 + [lambda: randn(2, 4), lambda: randn(8)]
    whole, sums, groups = 2 * 8 * 300 * 4, 2 * 8 * 4, 2 * 4 * 4
    found = events(gradient, *make, compute=compute)
    assert found[:5] == [whole, whole, whole, 8 * 4, 8 * 4]
    coefficients = [groups, groups, sums, -sums, -groups, -groups]
    assert found[5:] == [sums, sums, *coefficients, -sums, -sums, -whole, -whole]


@pytest.mark.parametrize("weighted", [True, False])
def test_a_group_norm_computes_what_a_cpu_computes(weighted):
    torch.manual_seed(0)
    tensor = torch.randn(2, 8, 3, 5).double().contiguous(memory_format=torch.channels_last)
    leaves = [tensor, *((torch.randn(8).double(), torch.randn(8).double()) if weighted else ())]

    def run(*given):
        result = F.group_norm(given[0], 4, *given[1:])
        result.sin().sum().backward()
        return [result.detach().cpu(), *(one.grad.cpu() for one in given)]

    expected = run(*(one.clone().requires_grad_() for one in leaves))
    with simulate("1GiB"):
        found = run(*(one.cuda().requires_grad_() for one in leaves))
        torch.testing.assert_close(found, expected)


# RMS norm


@pytest.mark.skipif(
    not hasattr(aten, "_fused_rms_norm_backward"), reason="this torch has no fused RMS norm"
)
@computed_or_dry
@pytest.mark.parametrize("dtype", [SINGLE, BFLOAT])
def test_an_rms_norm_is_one_kernel_forward_and_backward(dtype, compute):
    whole, row, width = 300 * 512 * dtype.itemsize, 512 * dtype.itemsize, 4
    make = [lambda: randn(300, 512, dtype=dtype), lambda: randn(512, dtype=dtype)]
    forward = events(lambda x, w: F.rms_norm(x, (512,), w), *make, compute=compute)
    assert forward == [whole, 300 * width, -300 * width]
    transposed = [lambda: randn(512, 300, dtype=dtype).t(), make[1]]
    copied = events(lambda x, w: F.rms_norm(x, (512,), w), *transposed, compute=compute)
    assert copied == [whole, *forward[:2], -whole, -300 * width]

    def gradient(g, x, w, inverse):
        return aten._fused_rms_norm_backward(g, x, [512], inverse, w, [True, True])

    given = [make[0], make[0], make[1], lambda: randn(300, 1)]
    assert events(gradient, *given, compute=compute) == [whole, row]
    expanded = [lambda: randn(1, 1, dtype=dtype).expand(300, 512), *given[1:]]
    assert events(gradient, *expanded, compute=compute) == [whole, row, whole, -whole]


# Log sigmoid


@computed_or_dry
def test_a_log_sigmoid_keeps_its_input_alone(compute):
    with simulate("1GiB", compute=compute):
        leaf = torch.randn(128, 512, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = F.logsigmoid(leaf)
        assert torch.cuda.max_memory_allocated() - before == result.nbytes
        buffer = aten.log_sigmoid_forward(leaf)[1]
        assert (tuple(buffer.shape), buffer.dtype, buffer.is_cuda) == ((0,), SINGLE, True)
        result.sum().backward()
        assert leaf.grad.shape == leaf.shape


@pytest.mark.parametrize("dtype", [torch.float64, BFLOAT])
def test_a_log_sigmoid_computes_what_a_cpu_computes(dtype):
    torch.manual_seed(0)
    tensor = (4 * torch.randn(5, 7)).to(dtype)

    def run(leaf):
        F.logsigmoid(leaf).sin().sum().backward()
        return F.logsigmoid(leaf.detach()).cpu(), leaf.grad.cpu()

    expected = run(tensor.clone().requires_grad_())
    with simulate("1GiB"):
        torch.testing.assert_close(run(tensor.cuda().requires_grad_()), expected)


# Unique elements


@computed_or_dry
def test_unique_elements_lie_in_memory_for_all(compute):
    with simulate("1GiB", compute=compute):
        tensor = torch.tensor([3, 1, 3, 3, 2, 1] * 1000, device="cuda")
        before = torch.cuda.memory_allocated()
        found, inverse, counts = tensor.unique(return_inverse=True, return_counts=True)
        assert (found.tolist(), counts.tolist()) == ([1, 2, 3], [2000, 1000, 3000])
        assert torch.equal(found[inverse], tensor)
        assert sizes_of((found, inverse, counts)) == [6000 * 8] * 3
        assert torch.cuda.memory_allocated() - before == 3 * 48128
        del inverse, counts
        assert torch.cuda.memory_allocated() - before == 48128
        runs, lengths = tensor.unique_consecutive(return_counts=True)
        assert (runs[:4].tolist(), lengths[:4].tolist()) == ([3, 1, 3, 2], [1, 1, 2, 1])
        assert (runs.numel(), sizes_of((runs, lengths))) == (5000, [48000, 48000])
        rows, lengths = tensor.view(-1, 6).unique(dim=0, return_counts=True)
        assert (rows.tolist(), lengths.tolist()) == ([[3, 1, 3, 3, 2, 1]], [1000])
        assert sizes_of((rows, lengths)) == [48, 8]


@computed_or_dry
def test_a_mask_has_two_at_most(compute):
    mask = lambda: randn(70_000) > 0  # noqa: E731
    reduced = storage_of(108 * 8 * 5 * 4)  # a number of each block: 8 of 256 threads, 5 times
    take = [4, reduced, -reduced]
    found = events(torch.unique, mask, compute=compute)
    assert found == [*take, 2, 16, -4, -16]
    both = events(lambda x: x.unique(return_inverse=True), mask, compute=compute)
    assert both == [*take, 2, 16, 70_000 * 8, -4, -16]
    with simulate("1GiB", compute=compute):
        same = torch.ones(5, device="cuda", dtype=torch.bool)
        found, counts = same.unique(return_counts=True)
        assert (found.tolist(), counts.tolist()) == ([True], [5])
        assert sizes_of((found, counts)) == [2, 16]


@computed_or_dry
def test_unique_rows_number_them(compute):
    def rows(x):
        return torch.unique(x, dim=0, return_inverse=True, return_counts=True)

    make = lambda: torch.arange(600, device="cuda").view(100, 6)  # noqa: E731
    result = [800, 800, 800, -800, 808, 800, -808, 4800, -800]
    assert events(rows, make, compute=compute) == result
    columns = lambda x: torch.unique(x, dim=1)  # noqa: E731
    assert events(columns, make, compute=compute) == [4800, 48, 4800, -48, -4800]


def test_nothing_is_unique_in_nothing():
    assert events(torch.unique, lambda: randn(0)) == []
    assert events(torch.unique_consecutive, lambda: randn(0)) == []
    assert events(lambda x: x.unique(dim=0), lambda: randn(0, 3)) == []


# Copies to the host


@computed_or_dry
@pytest.mark.parametrize(
    ("copy", "staged"),
    [
        (lambda x: x.cpu(), []),
        (lambda x: x.t().cpu(), []),  # its copy is laid out as it is
        (lambda x: x[:, ::2].cpu(), [40 * 20 * 4]),
        (lambda x: x[:, ::2].to("cpu"), [40 * 20 * 4]),
        (lambda x: x[:, ::2].to("cpu", torch.float64), [40 * 20 * 4]),
        (lambda x: x.to("cpu", torch.float64), []),
        (lambda x: x.to("cpu", torch.float64, non_blocking=True), [40 * 40 * 8]),
        (lambda x: x[:, ::2].to("cpu", HALF, non_blocking=True), [40 * 20 * 2]),
        (lambda x: x.t().to("cpu", HALF, non_blocking=True), [40 * 40 * 2] * 2),
        (lambda x: x[0].expand(40, 40).cpu(), [40 * 40 * 4]),
        (lambda x: x.t()[3, 5].item(), []),
    ],
)
def test_a_copy_to_the_host_is_staged_where_it_lies_otherwise(copy, staged, compute):
    found = events(copy, lambda: randn(40, 40), compute=compute)
    assert found == [*staged, *(-size for size in reversed(staged))]


def test_a_copy_is_staged_on_the_gpu_that_it_leaves():
    with simulate("1GiB", 2):
        tensor = torch.randn(1000, 1000, device="cuda:1")[:, ::2]
        for index in range(2):
            torch.cuda.reset_peak_memory_stats(index)
        assert tensor.cpu().shape == (1000, 500)
        assert torch.cuda.max_memory_allocated(0) == 0
        assert torch.cuda.max_memory_allocated(1) == 4_000_256 + 2_000_384


# Products of another dtype


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


# CTC loss


@computed_or_dry
def test_lengths_of_a_ctc_loss_are_numbers_and_its_labels_go_to_the_gpu(compute):
    def loss(x, lengths, targets):
        return F.ctc_loss(x, targets, *lengths, zero_infinity=True)

    numbers = [10] * 4, [5, 4, 3, 2]
    tensors = tuple(torch.tensor(one) for one in numbers)
    probabilities = lambda: randn(10, 4, 20).log_softmax(2)  # noqa: E731
    forward = [32, 32, 32, 16, 4 * 10 * 11 * 4, -32, -32, -32, -1760]
    finite = [4, 4, 16, -16, -4, -4]
    mean = [16, 16, -16, 16, 4, -16, -16, -16]
    for lengths in (numbers, tensors):
        make = [probabilities, lambda lengths=lengths: lengths]
        on_gpu = events(loss, *make, lambda: indices(14) + 1, compute=compute)
        assert on_gpu == [*forward, *finite, *mean]
        on_host = events(loss, *make, lambda: torch.arange(14) % 9 + 1, compute=compute)
        assert on_host[:8] == [14 * 8, *forward[:7]]
        assert sum(on_host) == 4


@pytest.mark.parametrize("steps", [10, 300])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_a_ctc_loss_has_shapes_without_values(steps, dtype):
    def loss():
        leaf = randn(steps, 4, 20).requires_grad_()
        F.ctc_loss(leaf.log_softmax(2), indices(4, 5) + 1, [steps] * 4, [5] * 4).backward()
        lengths = (torch.tensor(one, device="cuda", dtype=dtype) for one in ([steps] * 4, LABELS))
        targets = indices(14).to(dtype) + 1
        F.ctc_loss(leaf.log_softmax(2), targets, *lengths, zero_infinity=True).backward()

    computed = events(loss)
    assert len(computed) > 20
    assert events(loss, compute=False) == computed


LABELS = [5, 4, 3, 2]


@computed_or_dry
@pytest.mark.parametrize("in_tensors", [False, True])
def test_cudnn_makes_the_gradient_with_the_loss(in_tensors, compute):
    targets = (torch.arange(14) % 9 + 1).int()
    lengths = torch.tensor([10] * 4).int(), torch.tensor(LABELS).int()
    given = lengths if in_tensors else tuple(one.tolist() for one in lengths)
    loss = lambda x: F.ctc_loss(x, targets, *given, reduction="none")  # noqa: E731
    found = events(loss, lambda: randn(10, 4, 20).log_softmax(2), compute=compute)
    copies = [14 * 4, 16, 16] if in_tensors and RELEASE >= (2, 5) else []
    assert found == [*copies, 3200, 16, *(-size for size in reversed(copies)), -3200]
    with simulate("1GiB", compute=compute) as machine:
        leaf = torch.randn(10, 4, 20, device="cuda").log_softmax(2).requires_grad_()
        result = loss(leaf)
        assert type(result.grad_fn).__name__[:-1] == "CudnnCtcLossBackward"
        result.sum().backward()
        assert any("_cudnn_ctc_loss" in name for name, _ in machine.approximations[0].uncounted)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_a_ctc_loss_computes_what_a_cpu_computes(dtype, reduction):
    torch.manual_seed(0)
    probabilities = torch.randn(10, 4, 20).log_softmax(2)
    targets = torch.randint(1, 20, (14,), dtype=dtype)
    lengths = [10] * 4, LABELS

    def run(leaf):
        loss = F.ctc_loss(leaf, targets, *lengths, reduction=reduction)
        loss.sum().backward()
        return loss.detach().cpu(), leaf.grad.cpu()

    expected = run(probabilities.double().requires_grad_())
    with simulate("1GiB"):
        found = run(probabilities.cuda().requires_grad_())
        wide = tuple(one.double() for one in found)
        torch.testing.assert_close(wide, expected, rtol=1e-4, atol=1e-5)


# What libraries take is named


LIBRARIES = {
    "linalg_cholesky_ex": lambda x: torch.linalg.cholesky(x @ x.mT + 9 * torch.eye(4).cuda()),
    "_linalg_solve_ex": lambda x: torch.linalg.solve(x, x),
    "_linalg_svd": torch.linalg.svd,
    "_linalg_eigh": torch.linalg.eigh,
    "linalg_eig": torch.linalg.eig,
    "linalg_qr": torch.linalg.qr,
    "linalg_lu_factor_ex": torch.linalg.lu_factor,
    "linalg_inv_ex": torch.linalg.inv,
    "_linalg_det": torch.linalg.det,
    "_linalg_slogdet": torch.linalg.slogdet,
    "linalg_lstsq": lambda x: torch.linalg.lstsq(x, x),
    "linalg_solve_triangular": lambda x: torch.linalg.solve_triangular(x, x, upper=True),
    "linalg_householder_product": lambda x: torch.linalg.householder_product(x, x[0]),
    "linalg_matrix_exp": torch.linalg.matrix_exp,
    "triangular_solve": lambda x: torch.triangular_solve(x, x),
    "cholesky_inverse": torch.cholesky_inverse,
    "geqrf": torch.geqrf,
    "ormqr": lambda x: torch.ormqr(x, x[0], x),
    "_fft_r2c": torch.fft.rfft,
    "_fft_c2c": lambda x: torch.fft.fft(x.to(torch.complex64)),
    "_fft_c2r": lambda x: torch.fft.irfft(x.to(torch.complex64)),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_an_op_of_a_library_is_named(name):
    torch.manual_seed(0)
    with simulate("1GiB") as machine:
        LIBRARIES[name](torch.randn(4, 4, device="cuda"))
        approximations = machine.approximations[0]
        ops = (
            *approximations.unmodelled,
            *approximations.estimated,
            *(op for op, _ in approximations.uncounted),
        )
        assert name in {op.split(".")[1] for op in ops}


def test_an_op_that_writes_to_a_given_result_is_named_too():
    with simulate("1GiB") as machine:
        tensor = torch.eye(4, device="cuda")
        torch.linalg.inv(tensor, out=torch.empty_like(tensor))
        torch.add(tensor, 1, out=tensor)
        assert set(machine.approximations[0].unmodelled) == {"aten.linalg_inv_ex.inverse"}
