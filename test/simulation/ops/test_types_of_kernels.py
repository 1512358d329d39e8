"""Ops that CUDA has for fewer types of numbers than the CPU, or not at all, fail as on a GPU."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.nn import functional

from pytorch_memlab import simulate


def numbers(*shape, dtype=torch.int64):
    return torch.ones(*shape, dtype=dtype, device="cuda")


CALLS = {
    "mm": ("addmm_cuda", lambda x: x @ x),
    "mm.out": ("addmm_cuda", lambda x: torch.mm(x, x, out=x.clone())),
    "addmm_": ("addmm_cuda", lambda x: x.clone().addmm_(x, x)),
    "linear": ("addmm_cuda", lambda x: functional.linear(x, x, x[0])),
    "bmm": ("baddbmm_cuda", lambda x: x[None] @ x[None]),
    "baddbmm": ("baddbmm_cuda", lambda x: torch.baddbmm(x[None], x[None], x[None])),
    "einsum": ("baddbmm_cuda", lambda x: torch.einsum("ij,jk->ik", x, x)),
    "mv": ("addmv_impl_cuda", lambda x: x @ x[0]),
    "dot": ("dot", lambda x: x[0] @ x[0]),
    "max_pool2d": (
        "max_pool2d_with_indices_out_cuda_frame",
        lambda x: functional.max_pool2d(x[None], 2),
    ),
    "max_pool3d": (
        "max_pool3d_with_indices_out_frame",
        lambda x: functional.max_pool3d(x[None, None], (1, 2, 2)),
    ),
    "avg_pool2d": ("avg_pool2d_out_cuda_frame", lambda x: functional.avg_pool2d(x[None], 2)),
    "avg_pool3d": (
        "avg_pool3d_out_cuda",
        lambda x: functional.avg_pool3d(x[None, None], (1, 2, 2)),
    ),
}


@computed_or_dry
@pytest.mark.parametrize("name", CALLS)
def test_kernels_for_floating_point_refuse_integers(name, compute):
    kernel, call = CALLS[name]
    with simulate("1GiB", compute=compute):
        x = numbers(4, 4)
        allocated = torch.cuda.memory_allocated()
        with pytest.raises(NotImplementedError, match=f"^\"{kernel}\" not implemented for 'Long'$"):
            call(x)
        assert torch.cuda.memory_allocated() == allocated
        call(x.float())
    call(torch.ones(4, 4, dtype=torch.int64))  # as a CPU does


@computed_or_dry
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_cudnn_convolves_no_integers(dims, compute):
    convolve = (functional.conv1d, functional.conv2d, functional.conv3d)[dims - 1]
    with simulate("1GiB", compute=compute):
        x = numbers(1, 1, *[4] * dims)
        with pytest.raises(
            RuntimeError, match=r"^getCudnnDataTypeFromScalarType\(\) not supp.*Long"
        ):
            convolve(x, x)
        convolve(x.float(), x.float())


def test_types_have_pytorch_names():
    names = {torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte"}
    with simulate("1GiB"):
        for dtype, name in names.items():
            x = numbers(2, 2, dtype=dtype)
            with pytest.raises(NotImplementedError, match=f"for '{name}'"):
                torch.mm(x, x)


def test_products_without_elements_need_no_kernel():
    with simulate("1GiB"):
        assert (numbers(2, 0) @ numbers(0, 3)).tolist() == [[0] * 3] * 2


CPU_ONLY = {
    "histogram.bin_ct": lambda x: torch.histogram(x, 3),
    "histogram.bin_ct_out": lambda x: torch.histogram(x, 3, out=(x[:3], x[:4].clone())),
    "histogram.bins_tensor": lambda x: torch.histogram(x, x),
    "_histogramdd_bin_edges": lambda x: torch.histogramdd(x[:, None], [3]),
    "_sparse_mm_reduce_impl": lambda x: torch.sparse.mm(
        torch.eye(9, device=x.device).to_sparse_csr(), x[:, None], "sum"
    ),
    "_spdiags": lambda x: torch.sparse.spdiags(x[None], torch.zeros(1, dtype=torch.int64), (9, 9)),
    "to_mkldnn": lambda x: x.to_mkldnn(),
}


@computed_or_dry
@pytest.mark.parametrize("name", CPU_ONLY)
def test_ops_that_only_the_cpu_has(name, compute):
    call = CPU_ONLY[name]
    with simulate("1GiB", compute=compute):
        refused = f"^Could not run 'aten::{name}' with arguments from the 'CUDA' backend"
        with pytest.raises(NotImplementedError, match=refused):
            call(torch.arange(9.0, device="cuda"))
    call(torch.arange(9.0))


def test_drivers_are_those_of_cusolver():
    torch.manual_seed(0)
    matrix, right = torch.randn(5, 3), torch.randn(5, 2)
    values = torch.linalg.svdvals(matrix)
    solved = torch.linalg.lstsq(matrix, right, driver="gels")
    with simulate("1GiB"):
        matrix, right = matrix.cuda().requires_grad_(), right.cuda()
        for driver in ("gesvd", "gesvdj", "gesvda"):
            found = torch.linalg.svd(matrix, full_matrices=False, driver=driver)
            torch.testing.assert_close(found.S.detach().cpu(), values)
            found.S.sum().backward()
        torch.testing.assert_close(matrix.grad.cpu(), 3 * (found.U @ found.Vh).detach().cpu())
        with pytest.raises(RuntimeError, match="unknown svd driver gesdd in svd_cusolver"):
            torch.linalg.svd(matrix, driver="gesdd")
        for given in ({}, {"driver": "gels"}):
            found = torch.linalg.lstsq(matrix.detach(), right, **given)
            for one, expected in zip(found, solved, strict=True):
                torch.testing.assert_close(one.cpu(), expected)
        with pytest.raises(RuntimeError, match="`driver` other than `gels` is not"):
            torch.linalg.lstsq(matrix.detach(), right, driver="gelsd")


@computed_or_dry
def test_types_that_only_cudas_kernels_take(compute):
    numbers = torch.tensor([[1 + 2j, complex(float("nan"), 1)], [3j, 4]])
    mask = torch.tensor([True, False])
    with pytest.raises(RuntimeError, match="does not support complex"):
        numbers.nansum()
    with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
        mask.abs()
    with simulate("1GiB", compute=compute):
        a, m = numbers.cuda(), mask.cuda()
        out = torch.empty(0, dtype=torch.complex64, device="cuda")
        assert torch.nansum(a, 1, out=out) is out
        found = (a.nansum(), a.nansum(0, keepdim=True), out, m.abs(), a[0].nanmean())
        shapes = [(), (1, 2), (2,), (2,), ()]
        assert [tuple(one.shape) for one in found] == shapes
        assert found[3].dtype is torch.bool
        if compute:
            expected = (5 + 5j, [[1 + 5j, 4]], [1 + 2j, 4 + 3j], [True, False], 1 + 2j)
            for one, values in zip(found, expected, strict=True):
                assert one.tolist() == values


@computed_or_dry
def test_what_a_driver_of_cusolver_finds_is_written_to_out(compute):
    matrix = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    with simulate("1GiB", compute=compute):
        values = torch.empty(0, device="cuda")
        assert torch.linalg.svdvals(matrix.cuda(), driver="gesvd", out=values) is values
        factors = tuple(torch.empty(0, device="cuda") for _ in range(3))
        torch.linalg.svd(matrix.cuda(), driver="gesvd", out=factors)
        assert [tuple(one.shape) for one in (values, *factors)] == [(2,), (2, 2), (2,), (2, 2)]
        if compute:
            torch.testing.assert_close(values.cpu(), torch.tensor([4.0, 3.0]))
            u, s, vh = factors
            torch.testing.assert_close((u * s @ vh).cpu(), matrix)


@computed_or_dry
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_pictures_of_bytes_are_not_interpolated(mode, antialias, compute):
    def shrink(pictures):
        return functional.interpolate(pictures, (4, 4), mode=mode, antialias=antialias)

    with simulate("1GiB", compute=compute):
        with pytest.raises(NotImplementedError, match=r"out_frame.* not implemented for 'Byte'"):
            shrink(numbers(1, 3, 8, 8, dtype=torch.uint8))
        assert shrink(numbers(1, 3, 8, 8, dtype=torch.float32)).shape == (1, 3, 4, 4)
    assert shrink(torch.ones(1, 3, 8, 8, dtype=torch.uint8)).dtype == torch.uint8


@computed_or_dry
@pytest.mark.parametrize(
    ("dtype", "of_weight", "message"),
    [
        (torch.float32, torch.float16, "expected scalar type Float but found Half"),
        (torch.float16, torch.float32, "expected scalar type Half but found Float"),
        (torch.bfloat16, torch.float32, "expected scalar type BFloat16 but found Float"),
        (torch.float64, torch.float32, "expected scalar type Double but found Float"),
    ],
)
def test_layer_and_group_norms_mix_no_types(dtype, of_weight, message, compute):
    with simulate("1GiB", compute=compute):
        x, weight = numbers(2, 4, dtype=dtype), numbers(4, dtype=of_weight)
        allocated = torch.cuda.memory_allocated()
        for norm in (
            lambda weight: functional.layer_norm(x, (4,), weight, weight),
            lambda weight: functional.group_norm(x, 2, weight, weight),
        ):
            with pytest.raises(RuntimeError, match=f"^{message}$"):
                norm(weight)
            assert torch.cuda.memory_allocated() == allocated
            assert norm(weight.to(dtype)).dtype == dtype
        if torch.float64 not in (dtype, of_weight):  # which autocast leaves alone
            with torch.autocast("cuda", torch.float16):
                assert functional.layer_norm(x, (4,), weight).dtype == torch.float32
