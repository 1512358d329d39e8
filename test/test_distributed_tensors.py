"""DTensors on simulated GPUs: their ops are CUDA's, and shapes propagate as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pytorch_memlab import simulate

tensors = pytest.importorskip("torch.distributed.tensor")

pytestmark = pytest.mark.filterwarnings("ignore:one rank of")


@pytest.fixture(params=[True, False], ids=["computed", "shapes"])
def mesh(request, monkeypatch) -> Iterator[object]:
    """Four GPUs, of which this process has the first."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with simulate("a100", compute=request.param):
        yield dist.device_mesh.init_device_mesh("cuda", (4,))


def test_layers_are_initialized_once_they_are_sharded(mesh):
    fsdp = pytest.importorskip("torch.distributed.fsdp")
    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    with torch.device("meta"):
        layer = nn.Linear(512, 512, bias=False)
    fsdp.fully_shard(layer, mesh=mesh)
    layer.to_empty(device="cuda")
    layer.reset_parameters()
    assert torch.cuda.memory_allocated() == 512 * 512 * 4 / 4
    local = layer.weight.to_local()
    assert (local.shape, local.device) == ((128, 512), torch.device("cuda", 0))


def test_attention_runs_cudas_op_on_each_ranks_heads(mesh):
    shape = (2, 8, 64, 64)
    whole = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    part = tensors.distribute_tensor(whole, mesh, [tensors.Shard(1)]).requires_grad_()
    result = scaled_dot_product_attention(part, part, part, is_causal=True)
    assert result.placements == (tensors.Shard(1),)
    assert result.to_local().shape == (2, 2, 64, 64)
    assert "FlashAttention" in result.grad_fn.name()
    result.sum().backward()
    assert part.grad.to_local().shape == (2, 2, 64, 64)


def test_attention_gives_what_it_gives_alone(mesh):
    shape = (2, 8, 16, 16)
    whole = torch.randn(shape, device="cuda")
    part = tensors.distribute_tensor(whole, mesh, [tensors.Shard(1)])
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = scaled_dot_product_attention(part, part, part, is_causal=True)
    assert torch.cuda.memory_allocated() - before == whole.nbytes / 4
    alone = scaled_dot_product_attention(*[whole[:, :2]] * 3, is_causal=True)
    assert torch.equal(result.to_local(), alone)
