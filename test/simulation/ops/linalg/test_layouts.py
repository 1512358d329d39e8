"""Results of decompositions lie in memory as those of cuSOLVER, which are not as LAPACK's."""

import torch
from support.computed_or_dry import computed_or_dry

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
