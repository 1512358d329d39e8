"""Tensors for ``out=`` that linear algebra refuses."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate


def outs(count, dtype):
    return tuple(torch.empty(0, dtype=dtype, device="cuda") for _ in range(count))


@pytest.mark.parametrize(
    ("function", "count", "words"),
    [
        ("eig", 2, "Expected eigenvalues to be safely castable from ComplexDouble dtype"),
        ("svd", 3, "Expected out tensor to have dtype double, but got int instead"),
    ],
)
def test_outputs_that_hold_no_such_values_are_refused(function, count, words):
    with simulate("1GiB"):
        matrix = torch.eye(3, dtype=torch.float64, device="cuda")
        run = getattr(torch.linalg, function)
        with pytest.raises(RuntimeError, match=words):
            run(matrix, out=outs(count, torch.int32))
        values, vectors = torch.linalg.eig(matrix, out=outs(2, torch.complex128))
        assert (values.tolist(), vectors.shape) == ([1.0] * 3, (3, 3))


def test_a_rank_is_written_to_the_device_of_its_matrix():
    with simulate("1GiB"):
        matrix = torch.eye(3, device="cuda")
        with pytest.raises(RuntimeError, match="Expected result and input tensors to be on"):
            torch.linalg.matrix_rank(matrix, out=torch.empty(0, dtype=torch.int64))
        [out] = outs(1, torch.int64)
        assert torch.linalg.matrix_rank(matrix, out=out).item() == out.item() == 3
