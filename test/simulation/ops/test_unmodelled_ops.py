"""Ops without a memory model, and calls of libraries with an unknown workspace, are named."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import simulate


def test_ops_without_an_entry_are_counted(a100):
    tensor = torch.randn(8, 8, device="cuda")
    _ = (tensor @ tensor).relu().sum() + tensor.view(-1)[0].clone()
    assert a100.unmodelled == {}
    torch.linalg.qr(tensor)
    torch.linalg.qr(tensor)
    [(name, found)] = a100.unmodelled.items()
    assert (name, found.calls, found.nbytes) == ("aten.linalg_qr.default", 2, 2 * 2 * 8 * 8 * 4)


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
