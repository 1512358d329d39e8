"""Data that the program brought: a dry run knows it, and takes the bytes that a run takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.simulation.inspect import active

SIDE = 1500  # more elements than any tensor has whose values were always kept


def _graph():
    """A matrix of floats that is nearly all zeros, made on the CPU."""
    torch.manual_seed(1)
    adjacency = (torch.rand(SIDE, SIDE) < 0.001).float()
    return adjacency + torch.eye(SIDE)


def _mask():
    numbers = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
    return torch.from_numpy(numbers % 1000 == 0)


def _normalised():
    adjacency = _graph()
    scale = torch.diag(adjacency.sum(1).pow(-0.5))
    return scale @ adjacency @ scale


def _counted():
    labels = torch.arange(SIDE * 100) % 77
    return labels.cuda()


PROGRAMS = {
    "nonzero": lambda: _graph().cuda().nonzero(),
    "nonzero of a product": lambda: _normalised().cuda().nonzero(),
    "to_sparse on the GPU": lambda: _graph().cuda().to_sparse(),
    "to_sparse on the CPU": lambda: _graph().to_sparse().to("cuda"),
    "csr": lambda: _graph().cuda().to_sparse_csr(),
    "a mask": lambda: torch.randn(SIDE, SIDE, device="cuda")[_mask().cuda()],
    "masks of masks": lambda: torch.randn(SIDE, SIDE, device="cuda")[
        _mask().cuda() & ~_mask().cuda().T
    ],
    "a mask of rows": lambda: torch.randn(SIDE * 100, 8, device="cuda")[_counted() == 5],
    "masked_select": lambda: torch.randn(SIDE, SIDE, device="cuda").masked_select(_mask().cuda()),
    "where": lambda: torch.where(_mask().to("cuda"))[0],
    "unique": lambda: torch.unique(_counted()),
    "unique with counts": lambda: torch.unique(_counted(), return_counts=True)[1],
    "bincount": lambda: torch.bincount(_counted(), weights=torch.rand(SIDE * 100, device="cuda")),
    "repeat_interleave": lambda: torch.arange(SIDE * 100, device="cuda").repeat_interleave(
        _counted()
    ),
    "sorted": lambda: torch.unique_consecutive(_counted().sort()[0]),
    "the sum of a mask": lambda: torch.empty(int(_mask().cuda().sum()), device="cuda"),
    "copy_": lambda: (
        torch.empty(SIDE, SIDE, dtype=torch.bool, device="cuda").copy_(_mask()).nonzero()
    ),
    "a causal mask": lambda: (
        torch.ones(SIDE, SIDE, dtype=torch.bool, device="cuda").tril().nonzero()
    ),
    "coalesce of one row": lambda: torch.sparse_coo_tensor(
        _counted()[None], torch.ones(SIDE * 100, device="cuda"), (99,)
    ).coalesce(),
    "coalesce on the GPU": lambda: torch.sparse_coo_tensor(
        torch.stack([_counted(), _counted()]), torch.ones(SIDE * 100, device="cuda"), (99, 99)
    ).coalesce(),
    "coalesce": lambda: (
        torch.sparse_coo_tensor(
            torch.stack([_counted(), _counted()]).cpu(), torch.randn(SIDE * 100), (99, 99)
        )
        .coalesce()
        .cuda()
    ),
}


def _taken(program, *, compute):
    with simulate("a100", compute=compute):
        result = program()
        stats = torch.cuda.memory_stats()
        reads = active.machine.data_dependent_reads
        shape = result.shape
        fields = (
            "allocated_bytes.all.current",
            "active_bytes.all.peak",
            "allocation.all.allocated",
        )
        return reads, shape, [stats[name] for name in fields]


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_dry_run_takes_the_bytes_of_a_run_and_assumes_nothing(name):
    _, shape, computed = _taken(PROGRAMS[name], compute=True)
    reads, dry_shape, dry = _taken(PROGRAMS[name], compute=False)
    assert reads == ()
    assert dry_shape == shape
    assert dry == computed


def test_what_was_read_from_a_file_has_values_on_a_gpu(tmp_path):
    torch.save({"w": torch.full((300, 300), 7.0)}, tmp_path / "w.pt")
    np.save(tmp_path / "w.npy", np.full((300, 300), 7.0))
    with simulate("a100", compute=False) as machine:
        loaded = torch.load(tmp_path / "w.pt", map_location="cpu")["w"].cuda()
        array = torch.from_numpy(np.load(tmp_path / "w.npy")).cuda()
        assert loaded[5, 5].item() == array[5, 5].item() == 7
        assert machine.data_dependent_reads == ()


def test_a_write_to_the_original_does_not_change_the_copy():
    with simulate("a100", compute=False):
        array = np.zeros((SIDE, SIDE), dtype=bool)
        copy = torch.from_numpy(array).cuda()
        array[:] = True
        assert copy.nonzero().shape == (0, 2)


def test_what_is_unknown_takes_the_values_away():
    with simulate("a100", compute=False) as machine:
        mask = _mask().cuda()
        mask &= torch.rand(SIDE, SIDE, device="cuda") > 0.5
        assert len(mask.nonzero()) == SIDE * SIDE
        assert [one.name for one in machine.data_dependent_reads] == ["nonzero"]
        assert machine.values.held_bytes == 0


def test_weights_are_not_kept():
    with simulate("a100", compute=False) as machine:
        model = torch.nn.Sequential(*(torch.nn.Linear(1000, 1000) for _ in range(3)))
        for parameter in model.parameters():
            parameter.data.fill_(1)
        before = machine.values.held_bytes
        model.cuda()
        torch.nn.Parameter(torch.ones(1000, 1000)).cuda()
        assert machine.values.held_bytes <= before
        assert not machine.values.is_known(model[0].weight)


def test_the_memory_of_what_is_kept_is_bounded_and_comes_back():
    with simulate("a100", compute=False) as machine:
        kept = [torch.ones(2048, 4095) for _ in range(8)]  # 32 MB each
        assert 96 * 2**20 < machine.values.held_bytes <= 128 * 2**20
        assert [machine.values.is_known(one) for one in kept] == [True] * 4 + [False] * 4
        del kept
        assert machine.values.held_bytes == 0
        assert machine.values.is_known(torch.ones(2048, 4095))
        assert not machine.values.is_known(torch.ones(2049, 4096))
        assert machine.values.is_known(torch.ones(2049, 4096, dtype=torch.int32))
        assert not machine.values.is_known(torch.ones(2000, 2000, device="cuda"))


def test_random_numbers_are_drawn_up_to_a_bound():
    with simulate("a100", compute=False) as machine:
        known = [machine.values.is_known(torch.rand(2000, 4000)) for _ in range(10)]
        assert known == [True] * 8 + [False] * 2


def test_few_numbers_of_kept_data_are_computed_on_a_gpu():
    with simulate("a100", compute=False) as machine:
        data = torch.arange(10_000.0).cuda()
        assert (data.sum().item(), data.max().item()) == (49_995_000, 9_999)
        assert data.view(100, 100).mean(1)[3].item() == 349.5
        assert machine.data_dependent_reads == ()


def test_arithmetic_of_models_on_the_cpu_stays_skipped():
    with simulate("a100", compute=False) as machine:
        images = torch.ones(8, 3, 100, 100)
        assert machine.values.is_known(images)
        assert not machine.values.is_known(torch.nn.Conv2d(3, 3, 3)(images))
        weight = torch.ones(300, 300, requires_grad=True)
        assert not machine.values.is_known(images[0, 0] @ weight[:100])
        assert not machine.values.is_known(torch.linalg.inv(torch.eye(300)))
        assert not machine.values.is_known(images.cuda() * 2)
