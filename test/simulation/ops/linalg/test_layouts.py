"""Results of decompositions lie in memory as those of cuSOLVER, which are not as LAPACK's."""

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events

from pytorch_memlab.simulation import simulate


@computed_or_dry
def test_right_singular_vectors_are_contiguous(compute):
    with simulate("a100", compute=compute):
        u, s, vh = torch.linalg.svd(torch.randn(3, 80, 70, device="cuda"), full_matrices=False)
        assert (u.stride(), s.stride(), vh.stride()) == ((5600, 1, 80), (70, 1), (4900, 70, 1))
        v = torch.svd(torch.randn(3, 80, 70, device="cuda")).V
        assert v.stride() == (4900, 1, 70)


@computed_or_dry
def test_eigenvectors_are_contiguous(compute):
    with simulate("a100", compute=compute):
        values, vectors = torch.linalg.eig(torch.randn(3, 70, 70, device="cuda"))
        assert (values.stride(), vectors.stride()) == ((70, 1), (4900, 70, 1))


def test_factors_have_the_values_of_the_cpu():
    with simulate("a100"):
        matrix = torch.randn(3, 8, 7, device="cuda")
        u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
        torch.testing.assert_close(u @ torch.diag_embed(s) @ vh, matrix)
        square = matrix[:, :7]
        values, vectors = torch.linalg.eig(square)
        torch.testing.assert_close(square.to(vectors.dtype) @ vectors, vectors * values[:, None])


@computed_or_dry
def test_reflectors_lie_in_columns(compute):
    with simulate("a100", compute=compute):
        factors, scales = torch.geqrf(torch.randn(3, 80, 70, device="cuda"))
        assert (factors.shape, factors.stride()) == ((3, 80, 70), (5600, 1, 80))
        assert (scales.shape, scales.stride()) == ((3, 70), (70, 1))
        assert torch.cuda.memory_stats()["requested_bytes.all.current"] == 4 * 3 * (5600 + 70)


@computed_or_dry
def test_solutions_lie_in_columns_of_what_the_driver_works_in(compute):
    with simulate("a100", compute=compute):
        matrix = torch.randn(3, 80, 70, device="cuda")
        right = torch.randn(3, 80, 9, device="cuda")
        before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        solution, residuals, rank, values = torch.linalg.lstsq(matrix, right)
        kept = torch.cuda.memory_stats()["requested_bytes.all.current"] - before
        assert (solution.shape, solution.stride()) == ((3, 70, 9), (720, 1, 80))
        assert (residuals.shape, rank.numel(), values.numel()) == ((3, 9), 0, 0)
        assert kept == 4 * 3 * (80 * 9 + 9)
        solution, residuals, *_ = torch.linalg.lstsq(matrix.mT, right[:, :70, 0])
        assert (solution.shape, solution.stride(), residuals.shape) == ((3, 80), (80, 1), (0,))


@computed_or_dry
def test_a_factorization_is_checked_by_one_truth(compute):
    def check(infos):
        aten._linalg_check_errors(infos, "cholesky", is_matrix=False)

    infos = [lambda: torch.zeros(5000, dtype=torch.int32, device="cuda")]
    assert events(check, *infos, compute=compute) == [1, -1]


def test_a_failed_factorization_is_an_error():
    with simulate("a100"), pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        torch.linalg.cholesky(-torch.eye(3, device="cuda"))


def test_factorizations_of_many_matrices_succeed_without_values():
    with simulate("a100", compute=False) as machine:
        matrices = torch.randn(5000, 3, 3, device="cuda")
        infos = torch.full((5000,), 7, dtype=torch.int32, device="cuda")
        machine.values.absent.add(infos.untyped_storage(), False)
        aten._linalg_check_errors(infos, "inv", is_matrix=False)
        torch.linalg.inv(matrices)
        torch.linalg.cholesky(matrices)
        assert machine.data_dependent_reads == ()
