"""The numbers of ranks in a mesh are those of ``init_device_mesh``."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting.mesh import Mesh, read_mesh, read_ranks


def test_ranks_lie_as_init_device_mesh_lays_them():
    mesh = read_mesh("pp=3, dp=4,tp=2", None)
    laid = torch.arange(24).view(3, 4, 2)
    for pp in range(3):
        for dp in range(4):
            for tp in range(2):
                place = {"pp": pp, "dp": dp, "tp": tp}
                assert mesh.rank(place) == laid[pp, dp, tp].item()
                assert mesh.place(mesh.rank(place)) == place
    assert mesh.line({"dp": 1, "tp": 1}) == laid[:, 1, 1].tolist()
    assert (mesh.world_size, mesh.stages, mesh.replicas) == (24, ("pp",), ("dp", "tp"))


def test_without_a_mesh_every_rank_may_differ():
    assert read_mesh(None, "1").world_size == 1
    mesh = read_mesh(None, "4")
    assert mesh.line({}) == [0, 1, 2, 3]
    assert mesh.replicas == ()


@pytest.mark.parametrize(
    ("text", "world_size", "message"),
    [
        (None, None, "--ranks needs the number of ranks"),
        (None, "many", "--ranks needs the number of ranks"),
        ("pp=4,dp", None, "not 'dp'"),
        ("pp=0", None, "not 'pp=0'"),
        ("pp=2,pp=3", None, "--mesh has pp twice"),
        ("pp=4,dp=2", "16", "--mesh pp=4,dp=2 has 8 ranks, and WORLD_SIZE is 16"),
        (None, "512", "512 ranks would run at the same time, 64 is the most"),
        ("pp=128,dp=2", None, "128 ranks would run at the same time"),
    ],
)
def test_what_is_no_mesh_is_refused(text, world_size, message):
    with pytest.raises(UsageError, match=message):
        read_mesh(text, world_size)


def test_some_ranks_are_chosen():
    mesh = Mesh({"dp": 8})
    assert read_ranks("all", mesh) is None
    assert read_ranks("5, 0-2", mesh) == (0, 1, 2, 5)
    for text, message in (
        ("8", "the ranks are 0 to 7"),
        ("3-1", "the ranks are 0 to 7"),
        ("first", "not 'first'"),
        ("", "not ''"),
    ):
        with pytest.raises(UsageError, match=message):
            read_ranks(text, mesh)
