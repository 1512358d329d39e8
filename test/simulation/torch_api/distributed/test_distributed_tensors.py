"""DTensors on simulated GPUs: their ops are CUDA's, and shapes propagate as on a GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine import active

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
    before = torch.cuda.memory_allocated()
    layer.to_empty(device="cuda")
    layer.reset_parameters()
    assert torch.cuda.memory_allocated() - before == 512 * 512 * 4 / 4
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


def test_a_gradient_that_is_not_laid_out_as_its_parameter_is_on_the_gpu(mesh):
    whole = torch.randn(64, 64, device="cuda")
    for gradient_of in (
        lambda local: local.sum(),  # expanded
        lambda local: local.t().relu().sum(),  # transposed
        lambda local: (local * local[0]).sum(),
    ):
        parameter = nn.Parameter(tensors.distribute_tensor(whole, mesh, [tensors.Shard(0)]))
        before = torch.cuda.memory_allocated()
        gradient_of(parameter.to_local()).backward()
        assert parameter.grad.device == torch.device("cuda", 0)
        assert parameter.grad.to_local().device == torch.device("cuda", 0)
        assert torch.cuda.memory_allocated() - before == 16 * 64 * 4


def test_a_dtensor_goes_where_its_program_says(mesh):
    part = tensors.distribute_tensor(torch.randn(8, 4, device="cuda"), mesh, [tensors.Shard(0)])
    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    for made, device in (
        (torch.zeros_like(part), gpu),
        (part.new_zeros(4, 4), gpu),
        (torch.full_like(part, 3.0), gpu),
        (part.cpu(), cpu),
        (part.to("cpu"), cpu),
        (torch.zeros_like(part, device="cpu"), cpu),
        (part.new_zeros(4, 4, device="cpu"), cpu),
    ):
        assert made.to_local().device == device


def test_collectives_of_dtensors_take_their_results_alone(mesh):
    machine = active.machine
    assert machine is not None
    shard = tensors.distribute_tensor(
        torch.ones(1024, 1024, device="cuda"), mesh, [tensors.Shard(0)]
    )
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    whole = shard.redistribute(mesh, [tensors.Replicate()])
    assert torch.cuda.max_memory_allocated() - before == whole.to_local().nbytes
    assert torch.cuda.memory_allocated() - before == whole.to_local().nbytes
    assert machine.unmodelled == {}


@pytest.mark.filterwarnings("ignore:TypedStorage", "ignore:.*torch.distributed")
def test_a_checkpoint_has_the_shards_of_this_rank(mesh, tmp_path):
    def state():
        weight = torch.arange(64.0).view(16, 4)
        return {
            "weight": tensors.distribute_tensor(weight, mesh, [tensors.Shard(0)]),
            "whole": torch.arange(6.0, device="cuda"),
        }

    dcp.save(state(), checkpoint_id=tmp_path)
    read = {name: torch.zeros_like(value) for name, value in state().items()}
    dcp.load(read, checkpoint_id=tmp_path)

    assert sorted(path.name for path in tmp_path.iterdir()) == [".metadata", "__0_0.distcp"]
    assert read["weight"].to_local().tolist() == torch.arange(16.0).view(4, 4).tolist()
    assert read["whole"].tolist() == [0, 1, 2, 3, 4, 5]
