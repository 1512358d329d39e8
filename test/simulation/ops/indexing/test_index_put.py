"""Temporaries of indexing and of writing to indices."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import events, indices, peak_beyond_results, randn, temporaries

from pytorch_memlab.simulation import simulate


def test_indices_are_converted_and_laid_out_alike():
    plain = events(lambda x, i: x[i], lambda: randn(50, 50), lambda: indices(9))
    assert plain == [9 * 50 * 4]
    narrow = events(lambda x, i: x[i], lambda: randn(50, 50), lambda: indices(9).int())
    assert narrow == [72, 9 * 50 * 4, -72]
    grid = events(
        lambda x, i, j: x[i, j], lambda: randn(50, 50), lambda: indices(4, 1), lambda: indices(5)
    )
    assert grid == [160, 160, 80, -160, -160]


def test_a_number_goes_to_the_gpu_before_it_is_written():
    def write(x, i):
        x[i] = 1.0

    assert events(write, lambda: randn(50, 50), lambda: indices(9)) == [4, -4]
    narrow = events(write, lambda: randn(50, 50), lambda: indices(9).int())
    assert narrow == [4, 72, -72, -4]
    on_gpu = events(
        lambda x, i, v: x.index_put_((i,), v),
        lambda: randn(50, 50),
        lambda: indices(9),
        lambda: torch.ones((), device="cuda"),
    )
    assert on_gpu == []


@pytest.mark.parametrize(("rows", "passes"), [(256, 1), (257, 2)])
def test_an_accumulating_index_put_sorts_as_many_bits_as_it_must(rows, passes):
    count = 10_000
    tiles = -(-count // (384 * 10)) * 256 * 4
    buffers = 2 * (-(-count * 8 // 256) * 256) if passes > 1 else 0
    storage = passes * 256 * 8 + tiles + buffers + 256 + 255
    found = events(
        lambda x, i, v: x.index_put_((i,), v, accumulate=True),
        lambda: randn(rows, 4),
        lambda: indices(count),
        lambda: randn(count, 4),
    )
    linear = [count * 8, count * 8, -count * 8]
    assert found == [*linear, *temporaries(count * 8, count * 8, count * 8, storage), -count * 8]


def test_an_accumulating_index_put_sorts_its_indices(a100):
    target = torch.zeros(1000, 64, device="cuda")
    values = torch.ones(512, 64, device="cuda")
    indices = torch.zeros(512, dtype=torch.int64, device="cuda")
    plain = peak_beyond_results(lambda: target.index_put_((indices,), values))
    sorting = peak_beyond_results(lambda: target.index_put_((indices,), values, accumulate=True))
    assert plain == 0
    assert sorting == 4 * 512 * 8 + 512  # linear, sorted, their order, a range; the sort's own
    host = indices.cpu()
    assert peak_beyond_results(lambda: target[host]) == 512 * 8


def test_an_in_place_op_without_room_for_its_temporaries_changes_nothing():
    with simulate("96MiB"):
        target = torch.zeros(1000, device="cuda")
        indices = torch.zeros(2**20, dtype=torch.int64, device="cuda")
        values = torch.ones(2**20, device="cuda")
        filling = torch.empty(60 * 2**20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            target.index_put_((indices,), values, accumulate=True)
        assert target.sum().item() == 0
        del filling
        target.index_put_((indices,), values, accumulate=True)
        assert target[0].item() == 2**20


def _writes_ones(rows: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    target = rows.new_zeros(4, 5)
    target[torch.arange(4, device=rows.device).unsqueeze(-1), columns] = 1
    return target


def test_a_number_is_written_for_each_item_of_vmap():
    rows, columns = torch.ones(3, 4), torch.tensor([[[0, 4]], [[1, 1]], [[2, 3]]])
    expected = torch.vmap(_writes_ones)(rows, columns)
    with simulate("1GiB"):
        written = torch.vmap(_writes_ones)(rows.cuda(), columns.cuda())
        twice = torch.vmap(torch.vmap(_writes_ones))(rows.cuda()[None], columns.cuda()[None])
        assert written.device.type == twice.device.type == "cuda"
        assert written.tolist() == expected.tolist() == twice[0].tolist()


def test_an_expanded_number_of_the_cpu_is_not_on_the_gpu():
    with simulate("1GiB"):
        target = torch.zeros(4, device="cuda")
        with pytest.raises(RuntimeError, match="on the same device"):
            target[torch.tensor([0, 2], device="cuda")] = torch.ones(()).expand(2)
