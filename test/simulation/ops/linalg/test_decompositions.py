"""Decompositions and products of matrices: what CUDA takes and refuses, and its values."""

from __future__ import annotations

import warnings

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn

from pytorch_memlab import simulate


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_kernels_that_conjugate_matrices_do_so_below_the_mode(dtype):
    torch.manual_seed(0)
    matrices = torch.randn(3, 4, 4, dtype=dtype)
    one = torch.eye(4, dtype=dtype)
    with simulate("t4"):
        for tensors in (matrices, matrices.cuda()):
            inverse = torch.linalg.pinv(tensors)
            torch.testing.assert_close(
                (inverse @ tensors).cpu(), one.expand(3, 4, 4), rtol=0, atol=1e-4
            )
        right = torch.randn(3, 4, 2, dtype=dtype, device="cuda")
        solved = torch.linalg.lstsq(matrices.cuda(), right).solution
        torch.testing.assert_close(
            torch.linalg.pinv(matrices.cuda()) @ right, solved, rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("hermitian", [True, False])
@pytest.mark.parametrize(
    "tolerance", [{}, {"atol": 0.1}, {"rtol": 0.1}, {"atol": 0.1, "rtol": 0.2}, {"tol": 0.5}]
)
def test_ranks_are_written_where_the_program_wants_them(tolerance, hermitian):
    torch.manual_seed(0)
    half = torch.randn(4, 6, 2)
    matrices = half @ half.mT
    expected = torch.linalg.matrix_rank(matrices, hermitian=hermitian, **tolerance)
    with simulate("t4"):
        for out in (torch.full((4,), 77, device="cuda"), torch.empty(0, dtype=int, device="cuda")):
            found = torch.linalg.matrix_rank(
                matrices.cuda(), hermitian=hermitian, out=out, **tolerance
            )
            assert found is out
            assert out.cpu().equal(expected)
        of_tensors = {
            name: torch.tensor(value, device="cuda")
            for name, value in tolerance.items()
            if name != "tol"
        }
        torch.linalg.matrix_rank(matrices.cuda(), hermitian=hermitian, out=out, **of_tensors)
        assert out.cpu().equal(
            torch.linalg.matrix_rank(
                matrices,
                hermitian=hermitian,
                **{name: value.cpu() for name, value in of_tensors.items()},
            )
        )
        empty = torch.full((4,), 77, device="cuda")
        torch.linalg.matrix_rank(torch.empty(4, 0, 3, device="cuda"), out=empty)
        assert empty.tolist() == [0] * 4


def test_a_rank_written_elsewhere_takes_no_result():
    def rank(matrices, out):
        torch.linalg.matrix_rank(matrices, out=out)

    made = events(rank, lambda: randn(4, 6, 2), lambda: torch.zeros(4, dtype=int, device="cuda"))
    tolerances, thresholds, mask, counted = [8, 8], [32, 32], 8, 4 * 2 * 8
    assert made[:2] == tolerances
    assert made[made.index(-64) + 1 :] == [
        *thresholds,
        -32,
        *(mask, counted, -counted, -mask),
        *(-8, -8, -32, -32),
    ]


@computed_or_dry
@pytest.mark.parametrize("size", [(3, 3), (5, 4, 2), (2, 3, 4), (0, 3, 3), (0, 0), (3, 0)])
def test_factors_without_pivots(size, compute):
    torch.manual_seed(0)
    with simulate("t4", compute=compute):
        matrices = torch.randn(size, device="cuda")
        factors, pivots = torch.linalg.lu_factor(matrices, pivot=False)
        with_pivots, others = torch.linalg.lu_factor(matrices)
        assert (factors.stride(), pivots.shape) == (with_pivots.stride(), others.shape)
        assert factors.is_cuda
        assert pivots.is_cuda
        order, lower, upper = torch.linalg.lu(matrices, pivot=False)
        assert order.numel() == 0
        if compute:
            torch.testing.assert_close(lower @ upper, matrices, rtol=1e-3, atol=1e-3)
            assert (pivots == torch.arange(1, min(size[-2:]) + 1, device="cuda")).all()
            _, low, up = torch.lu_unpack(factors, pivots, unpack_pivots=False)
            torch.testing.assert_close((low, up), (lower, upper))


def test_a_zero_pivot_is_told():
    matrix = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    with simulate("t4"):
        assert torch.linalg.lu_factor_ex(matrix.cuda(), pivot=False).info.item() == 2
        with pytest.raises(RuntimeError, match=r"U\[2,2\] is zero"):
            torch.linalg.lu_factor(matrix.cuda(), pivot=False)
    with pytest.raises(RuntimeError, match="not implemented on the CPU"):
        torch.linalg.lu_factor(matrix, pivot=False)


@pytest.mark.parametrize("driver", ["gelsy", "gelsd", "gelss", "magic"])
def test_cuda_has_one_driver_of_least_squares(driver):
    with simulate("t4"):
        matrix = randn(4, 3)
        with pytest.raises(RuntimeError, match="`driver` other than `gels` is not supp"):
            torch.linalg.lstsq(matrix, matrix, driver=driver)
        assert torch.linalg.lstsq(matrix, matrix, driver="GELS").solution.shape == (3, 3)


def test_a_chain_of_products_names_the_tensor_on_another_device():
    with simulate("t4", count=2):
        first, second = randn(4, 3), torch.randn(3, 4)
        message = r"^multi_dot\(\): all tensors .* tensor 0 is on cuda:0 and tensor 1 on cpu$"
        with pytest.raises(RuntimeError, match=message):
            torch.linalg.multi_dot([first, second])
        with pytest.raises(RuntimeError, match=r"expected out tensor to be on device cuda:0 but"):
            torch.linalg.multi_dot([first, second.cuda()], out=torch.empty(4, 4))
        assert torch.linalg.multi_dot([first, second.cuda(), first]).shape == (4, 3)


@pytest.mark.parametrize("rows", [17, 40])
def test_a_sparse_matrix_has_a_low_rank(rows):
    torch.manual_seed(0)
    dense = (torch.randn(rows, 1) @ torch.randn(1, 20)) * (torch.rand(rows, 20) > 0.7)
    with simulate("t4"):
        sparse = dense.to_sparse().cuda()
        assert sparse.t().is_cuda
        assert sparse.mT.coalesce().indices().is_cuda
        left, values, right = torch.svd_lowrank(sparse, q=17)
        expected = torch.linalg.svdvals(dense)[:17]
        torch.testing.assert_close(values.cpu(), expected, rtol=1e-3, atol=1e-3)
        assert all(part.is_cuda for part in (left, values, right))


def test_libraries_of_the_build_may_be_preferred():
    with simulate("t4"):
        matrix = randn(3, 3)
        for name in ("magma", "cusolver"):
            torch.backends.cuda.preferred_linalg_library(name)
            assert torch.backends.cuda.preferred_linalg_library().name.lower() == name
            torch.linalg.inv(matrix)
        if hasattr(torch.backends.cuda, "preferred_blas_library"):
            torch.backends.cuda.preferred_blas_library("cublaslt")
            assert torch.backends.cuda.preferred_blas_library().name == "Cublaslt"
    assert torch.backends.cuda.preferred_linalg_library().name == "Default"


def test_products_are_not_tuned():
    if not hasattr(torch.cuda, "tunable"):
        pytest.skip("this torch has no torch.cuda.tunable")
    with simulate("t4"):
        assert not torch.cuda.tunable.is_enabled()
        torch.cuda.tunable.enable(False)
        with pytest.raises(RuntimeError, match=r"torch\.cuda\.tunable\.enable\(True\) is not cov"):
            torch.cuda.tunable.enable()


def test_results_are_refused_on_another_device():
    with simulate("t4"):
        matrix = torch.eye(3, device="cuda")
        for write in (
            lambda: torch.linalg.cond(matrix, 2, out=torch.empty(0)),
            lambda: torch.linalg.cond(matrix, "fro", out=torch.empty(0)),
            lambda: torch.linalg.matrix_rank(matrix, out=torch.empty(0, dtype=torch.int64)),
            lambda: torch.linalg.pinv(matrix, out=torch.empty(0)),
            lambda: torch.linalg.tensorinv(matrix, ind=1, out=torch.empty(0)),
            lambda: torch.linalg.tensorsolve(matrix, matrix[0], out=torch.empty(3)),
        ):
            with pytest.raises(RuntimeError, match="result on cpu and input on cuda:0"):
                write()


def test_results_that_are_resized_warn_once_each():
    with simulate("t4"):
        matrix = torch.eye(3, device="cuda")

        def room(size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.empty(size, dtype=dtype, device="cuda")

        def warnings_of(write, *outs):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                write(matrix, out=outs if len(outs) > 1 else outs[0])
            assert all("was resized since it had shape" in str(one.message) for one in caught)
            return len(caught)

        complex64, int64 = torch.complex64, torch.int64
        assert warnings_of(torch.linalg.eig, room(1, complex64), room(1, complex64)) == 2
        assert warnings_of(torch.linalg.svd, room(1), room(1), room(1)) == 3
        assert warnings_of(torch.linalg.svdvals, room(1)) == 1
        assert warnings_of(torch.linalg.matrix_rank, room(3, int64)) == 1
        assert warnings_of(torch.linalg.matrix_rank, room(0, int64)) == 0
        assert warnings_of(lambda x, out: torch.sum(x, 0, out=out), room(1)) == 1
        assert warnings_of(lambda x, out: torch.sum(x, 0, out=out), room(3)) == 0


def test_a_singular_factor_has_an_infinite_inverse():
    factor = torch.tensor([[2.0, 0.0], [0.0, 0.0]])
    with pytest.raises(RuntimeError, match="singular"):
        torch.cholesky_inverse(factor)
    with simulate("t4"):
        for upper in (True, False):
            inverse = torch.cholesky_inverse(factor.cuda(), upper=upper)
            assert not inverse.isfinite().all()
        with pytest.raises(RuntimeError, match="must have at least 2 dimensions"):
            torch.cholesky_inverse(factor[0].cuda())
        regular = torch.cholesky_inverse(factor.cuda() + torch.eye(2, device="cuda"))
        torch.testing.assert_close(regular.cpu(), torch.tensor([[1 / 9, 0.0], [0.0, 1.0]]))


def test_factors_without_pivots_leave_a_column_whose_pivot_is_zero():
    with simulate("t4"):
        ones = torch.ones(3, 3, dtype=torch.float64, device="cuda")
        factors, pivots, info = torch.linalg.lu_factor_ex(ones, pivot=False)
        _, lower, upper = torch.lu_unpack(factors, pivots)
        assert torch.equal(lower @ upper, ones)
        assert info.item() == 2
