"""Sparse tensors on simulated GPUs: their bytes, and products with them."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import events, randn

from pytorch_memlab import simulate

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]


def rounded(*sizes: int) -> int:
    """Bytes of blocks."""
    return sum(-(-size // 512) * 512 for size in sizes)


@computed_or_dry
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_matrix_without_zeros_takes_its_indices_and_values(layout, compute):
    with simulate("24GiB", compute=compute):
        dense = torch.ones(300, 200, device="cuda")
        before = torch.cuda.memory_allocated()
        sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
        kept = torch.cuda.memory_allocated() - before
        assert sparse.is_cuda
        assert sparse._nnz() == 60_000
    if layout == "coo":
        assert kept == rounded(2 * 60_000 * 8, 60_000 * 4)
    else:
        # Releases differ: the columns may be a view of the rows and columns that were found.
        columns = torch.ones(300, 200).to_sparse_csr().col_indices().untyped_storage().nbytes()
        assert kept == rounded(301 * 8, columns, 60_000 * 4)


def test_zeros_are_left_out_where_values_are_computed():
    with simulate("24GiB"):
        dense = torch.zeros(300, 200, device="cuda")
        dense[::3] = 1
        before = torch.cuda.memory_allocated()
        sparse = dense.to_sparse()
        assert torch.cuda.memory_allocated() - before == rounded(2 * 20_000 * 8, 20_000 * 4)
        assert torch.equal(sparse.cpu().to_dense(), dense.cpu())


def test_without_values_no_element_is_taken_for_zero_and_the_line_says_so():
    with simulate("24GiB", compute=False) as machine:
        dense = torch.zeros(300, 200, device="cuda")
        sparse = dense.to_sparse()
        assert sparse._nnz() == 60_000
        assert {read.op for read in machine.data_dependent_reads} == {"aten::nonzero"}
        assert {read.filename for read in machine.data_dependent_reads} == {__file__}


def test_data_of_the_host_become_sparse_without_values_too():
    with simulate("24GiB", compute=False):
        features = torch.rand(300, 200).to_sparse()
        before = torch.cuda.memory_allocated()
        moved = features.to("cuda")
        assert torch.cuda.memory_allocated() - before == rounded(2 * 60_000 * 8, 60_000 * 4)
        assert moved.layout is torch.sparse_coo


@computed_or_dry
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_products_with_sparse_matrices_have_gradients(layout, compute):
    def train(device: str) -> tuple[torch.Tensor, torch.Tensor]:
        adjacency = torch.ones(300, 300, device=device)
        sparse = adjacency.to_sparse() if layout == "coo" else adjacency.to_sparse_csr()
        weight = torch.full((300, 16), 0.5, device=device, requires_grad=True)
        product = torch.sparse.mm(sparse, weight)
        product.square().sum().backward()
        return product.detach(), weight.grad

    with simulate("24GiB", compute=compute) as machine:
        product, gradient = train("cuda")
        assert product.shape == gradient.shape == (300, 16)
        assert product.is_cuda
        assert gradient.is_cuda
        assert "aten.mm.default" in machine.unmodelled  # what cuSPARSE takes is not known
        found = product.cpu(), gradient.cpu()
        assert product.sum().item() == (720_000 if compute else 0)
    if compute:
        for one, other in zip(found, train("cpu"), strict=True):
            torch.testing.assert_close(one, other)
    else:
        assert any(read.op == "aten::_local_scalar_dense" for read in machine.data_dependent_reads)


@computed_or_dry
def test_indices_of_nonzero_elements_lie_in_rows(compute):
    with simulate("24GiB", compute=compute):
        assert torch.ones(30, 20, device="cuda").nonzero().stride() == (1, 600)
        rows, columns = torch.where(torch.ones(30, 20, device="cuda") > 0)
        assert rows.is_contiguous()
        assert columns.is_contiguous()


@computed_or_dry
@pytest.mark.parametrize("dtype", [None, torch.float64])
def test_a_matrix_of_a_size_has_no_elements_and_takes_results(dtype, compute):
    with simulate("24GiB", compute=compute):
        for size in ((3, 4), [3, 4], torch.Size([3, 4])):
            empty = torch.sparse_coo_tensor(size, device="cuda", dtype=dtype)
            assert empty.is_cuda
            assert (empty.shape, empty._nnz()) == ((3, 4), 0)
            assert empty.dtype == (dtype or torch.float32)
        assert not torch.sparse_coo_tensor((3, 4)).is_cuda
        if compute:
            matrix = -torch.eye(3, 4, device="cuda", dtype=empty.dtype).to_sparse()
            torch.abs(matrix, out=empty)
            assert empty.is_cuda
            assert torch.equal(empty.to_dense(), torch.eye(3, 4, device="cuda", dtype=empty.dtype))


@computed_or_dry
def test_sparse_gradients_lie_side_by_side_until_they_are_coalesced(compute):
    row = 64 * 4
    with simulate("24GiB", compute=compute):
        table = torch.nn.Embedding(1000, 64, sparse=True).cuda()
        indices = torch.arange(100, device="cuda")
        kept = []
        for count in (100, 200, 300):
            before = torch.cuda.memory_allocated()
            table(indices).sum().backward()
            assert (table.weight.grad._nnz(), table.weight.grad.is_coalesced()) == (count, False)
            kept.append(torch.cuda.memory_allocated() - before)
        sizes = [rounded(count * 8, count * row) for count in (0, 100, 200, 300)]
        assert kept == [after - before for before, after in pairwise(sizes)]
        if compute:
            assert table.weight.grad.coalesce().values().unique().tolist() == [3.0]


@computed_or_dry
def test_sums_of_sparse_tensors_keep_all_elements(compute):
    """``SparseCUDATensorMath.cu``; the CPU merges equal places."""
    with simulate("24GiB", compute=compute):
        positions = torch.tensor([[0, 1], [1, 0]], device="cuda")
        values = torch.tensor([1.0, 2.0], device="cuda")
        matrix = torch.sparse_coo_tensor(positions, values, (2, 3)).coalesce()
        empty = torch.sparse_coo_tensor((2, 3), device="cuda")
        total, difference = matrix + matrix, torch.sub(matrix, matrix, alpha=3)
        matrix += matrix
        for tensor, counts in ((total, 4), (difference, 4), (matrix, 4), (matrix + empty, 4)):
            assert (tensor._nnz(), tensor.is_coalesced(), tensor.is_cuda) == (counts, False, True)
        assert (empty + total.coalesce()).is_coalesced()
        if compute:
            assert total.to_dense().tolist() == [[0.0, 2.0, 0.0], [4.0, 0.0, 0.0]]
            assert difference.to_dense().tolist() == [[0.0, -2.0, 0.0], [-4.0, 0.0, 0.0]]
            assert torch.equal(matrix.to_dense(), total.to_dense())
            many = total + total  # more elements than the matrix has places
            assert (many._nnz(), many.is_coalesced()) == (2, False)
            doubled = total + total.double()
            assert doubled.dtype is torch.float64
            assert torch.equal(doubled.to_dense(), 2 * total.to_dense().double())


def test_truths_at_places_in_order_are_multiplied():
    with simulate("24GiB"):
        first, second = (
            torch.tensor([[*row]], device="cuda") > 0 for row in ([1, 1, 0], [0, 1, 1])
        )
        product = first.to_sparse() * second.to_sparse()
        assert (product.is_cuda, product.is_coalesced()) == (True, True)
        assert product.to_dense().tolist() == [[False, True, False]]


def test_sums_over_two_devices_name_the_operand_on_the_cpu():
    dense = torch.ones(2, 2)
    with simulate("24GiB"):
        sparse = torch.eye(2, device="cuda").to_sparse()
        for add, words in (
            (lambda: dense + sparse, "'self' to be a CUDA tensor, but got a CPU tensor"),
            (lambda: dense.cuda() + sparse.cpu(), "'other' to be a CUDA tensor, but got a CPU"),
            (lambda: sparse + sparse.cpu(), "'other' to be CUDA, but got CPU"),
            (lambda: sparse.cpu() + sparse, "'self' to be CUDA, but got CPU"),
        ):
            with pytest.raises(RuntimeError, match=f"add: expected {words}"):
                add()


@pytest.mark.parametrize("device", ["cpu", "cuda", None])
@pytest.mark.parametrize("of_values", ["cpu", "cuda"])
@pytest.mark.parametrize("of_indices", ["cpu", "cuda"])
def test_indices_and_values_go_to_the_device_that_is_named(of_indices, of_values, device):
    with simulate("24GiB"):
        indices = torch.tensor([[0, 1], [1, 0]], device=of_indices)
        values = torch.ones(2, device=of_values)
        if device is None and of_indices != of_values:
            with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu!"):
                torch.sparse_coo_tensor(indices, values, (2, 2))
            return
        sparse = torch.sparse_coo_tensor(indices, values, (2, 2), device=device)
        assert sparse.device.type == (device or of_values)
        assert sparse.to_dense().tolist() == [[0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize(
    ("dtype", "large"),
    [(torch.float16, 2048), (torch.bfloat16, 256), (torch.complex32, 2048)],
    ids=str,
)
def test_equal_elements_are_added_in_single_precision(dtype, large):
    """The next number after the large one is two away: the CPU's sums stay where they are."""
    with simulate("24GiB"):
        values = torch.tensor([large, *[1] * 100]).to(dtype).cuda()
        tensor = torch.sparse_coo_tensor(torch.zeros(1, 101).long().cuda(), values, (3,))
        merged = tensor.coalesce()
        assert (merged.is_cuda, merged.dtype, merged.is_coalesced()) == (True, dtype, True)
        assert merged.values().cpu().to(torch.complex64).tolist() == [large + 100]


@pytest.mark.parametrize("dims", [0, (0, 2)], ids=str)
def test_a_sum_over_sparse_dimensions_adds_in_single_precision(dims):
    with simulate("24GiB"):
        values = torch.tensor([2048, *[1] * 100]).half().cuda().unsqueeze(1)
        rows = torch.arange(101, device="cuda")
        tensor = torch.sparse_coo_tensor(torch.stack((rows, rows * 0)), values, (101, 2, 1))
        total = tensor.sum(dims)
        assert total.dtype is torch.float16
        assert total.to_dense().flatten().tolist() == [2148, 0]


def test_a_sum_over_sparse_dimensions_takes_what_it_calls():
    """``_sparse_sum`` of ``SparseTensorMath.cpp`` copies the values, and merges equal elements."""

    def hybrid() -> torch.Tensor:
        indices = torch.tensor([[0, 1, 1], [2, 0, 2]]).cuda()
        return torch.sparse_coo_tensor(indices, randn(3, 1000), (2, 3, 1000))

    values, row, sums = 3 * 1000 * 4, 3 * 8, 2 * 1000 * 4
    assert events(lambda x: x.sum(0), hybrid) == [values, row, row, sums, -row, -values]
    assert events(lambda x: x.sum((0, 1)), hybrid) == [values, 1000 * 4, -values]


def test_complex_half_becomes_dense_as_on_cuda():
    with simulate("24GiB"):
        values = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex32).cuda()
        tensor = torch.sparse_coo_tensor(torch.tensor([[2, 0]]).cuda(), values, (3,))
        dense = tensor.to_dense()
        assert (dense.is_cuda, dense.dtype) == (True, torch.complex32)
        assert dense.cpu().to(torch.complex64).tolist() == [3 - 1j, 0, 1 + 2j]
