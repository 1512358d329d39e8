"""Shapes without values: the same memory as with arithmetic, none of the host's, and the rules."""

from __future__ import annotations

import copy
import subprocess
import sys

import psutil
import pytest
import torch
from support.dry_run_comparison import events_of
from support.dry_run_programs import PROGRAMS
from torch import nn

from pytorch_memlab import simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UnsupportedCUDACallError


@pytest.fixture
def machine():
    with simulate("8TiB", compute=False) as machine:
        yield machine


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_allocator_sees_what_it_sees_with_arithmetic(program):
    computed = events_of(program, compute=True)
    assert len(computed) > 10
    assert events_of(program, compute=False) == computed


def test_a_large_model_costs_no_memory_of_the_host(machine):
    process = psutil.Process()
    before = process.memory_info().rss
    on_host = nn.Sequential(*(nn.Linear(65536, 65536) for _ in range(4)))
    assert torch.cuda.memory_allocated() == 0
    model = on_host.cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    model(torch.randn(8, 65536, device="cuda")).sum().backward()
    optimizer.step()
    parameters = 4 * (65536 * 65536 + 65536) * 4
    assert torch.cuda.memory_allocated() > 4 * parameters
    assert process.memory_info().rss - before < 100 << 20


def test_one_tensor_may_be_larger_than_the_memory_of_the_host(machine):
    tensor = torch.zeros(2**40, device="cuda")
    other = (tensor + 1).view(2**20, 2**20)
    assert other.shape == (2**20, 2**20)
    assert torch.cuda.memory_allocated() == 2 * 4 * 2**40
    assert tensor.data_ptr() != other.data_ptr()


def test_a_pinned_copy_of_a_tensor_without_values_has_none_and_no_memory_of_the_host(machine):
    large = torch.zeros(2**40)
    pinned = large.pin_memory()
    assert pinned.is_pinned()
    assert not large.is_pinned()
    assert pinned.data_ptr() != large.data_ptr()
    assert pinned.cuda(non_blocking=True).shape == (2**40,)
    assert machine.values.lacks_values(pinned)
    assert torch.arange(4).pin_memory().tolist() == [0, 1, 2, 3]


def test_tensors_of_the_meta_device_stay_there(machine):
    with torch.device("meta"):
        model = torch.nn.Linear(2**10, 2**10)
    assert {each.device.type for each in (*model.parameters(), torch.empty(2, device="meta"))} == {
        "meta"
    }
    assert model.weight.new_zeros(2**20).is_meta
    assert torch.ones(2**20).to("meta").is_meta
    assert torch.cuda.memory_allocated() == 0
    model.to_empty(device="cuda")
    assert torch.cuda.memory_allocated() == 4 * (2**20 + 2**10)


def test_small_tensors_keep_values_that_no_large_one_goes_into(machine):
    lengths = torch.tensor([3, 1, 2], device="cuda")
    mask = torch.arange(4, device="cuda")[None] < lengths[:, None]
    features = torch.randn(3, 4, 2048, device="cuda")
    assert mask.sum().item() == 6
    assert features[mask].shape == (6, 2048)
    assert mask.nonzero().shape == (6, 2)
    assert lengths.cpu().tolist() == [3, 1, 2]
    assert torch.tensor(0.5).cuda().mul(2).item() == 1.0
    assert machine.data_dependent_reads == ()


def test_values_that_are_not_there_follow_the_rules_and_are_counted(machine):
    x = torch.randn(100, 2000, device="cuda")
    assert x.sum().item() == 0.0
    assert not (x > 0).any()
    assert x[0, 0].item() == 0.0
    assert x.nonzero().shape == (200_000, 2)
    assert x[x > 0].shape == (200_000,)
    assert x.masked_select(x > 0).shape == (200_000,)
    assert x.unique().shape == (200_000,)
    assert torch.equal(x, x + 1)
    assert x.long().flatten().bincount(minlength=7).shape == (7,)
    assert x.sum(1).tolist() == [0.0] * 100
    assert x.cpu().numpy().shape == (100, 2000)
    counted = [(read.op, read.count) for read in machine.data_dependent_reads]
    assert counted == [
        ("aten::_local_scalar_dense", 1),
        ("aten::_local_scalar_dense", 1),
        ("aten::_local_scalar_dense", 1),
        ("aten::nonzero", 1),
        ("aten::index", 1),
        ("aten::masked_select", 1),
        ("aten::_unique2", 1),
        ("aten::equal", 1),
        ("aten::bincount", 1),
        ("Tensor.tolist", 1),
        ("Tensor.numpy", 1),
    ]
    assert {read.filename for read in machine.data_dependent_reads} == {__file__}
    lines = [read.line for read in machine.data_dependent_reads]
    assert lines == sorted(set(lines))


def test_a_line_that_reads_often_is_counted_often(machine):
    loss = torch.randn(10_000, device="cuda").mean()
    for _ in range(3):
        loss.item()
    (read,) = machine.data_dependent_reads
    assert read.count == 3
    assert str(read) == (
        f"{__file__}:{read.line}: aten::_local_scalar_dense read values that are not there, 3 times"
    )


def test_what_is_not_known_is_finite(machine):
    loss = torch.randn(10_000, device="cuda").mean()
    assert torch.isfinite(loss)
    assert not torch.isnan(loss)


def test_a_small_tensor_written_with_unknown_values_has_none(machine):
    total = torch.zeros((), device="cuda")
    assert total.item() == 0.0
    assert machine.data_dependent_reads == ()
    total += torch.randn(10_000, device="cuda").sum()
    assert total.item() == 0.0
    assert len(machine.data_dependent_reads) == 1


def test_running_statistics_become_unknown_in_training(machine):
    norm = nn.BatchNorm2d(8).cuda()
    assert norm.running_mean.sum().item() == 0.0
    norm(torch.randn(4, 8, 32, 32, device="cuda"))
    assert machine.data_dependent_reads == ()
    norm.running_mean.sum().item()
    assert len(machine.data_dependent_reads) == 1
    assert norm.num_batches_tracked.item() == 1
    assert len(machine.data_dependent_reads) == 1


def test_copies_of_a_model_cost_no_memory_of_the_host(machine):
    model = nn.Linear(65536, 65536).cuda()
    before = psutil.Process().memory_info().rss
    twin = copy.deepcopy(model)
    assert twin.weight.device == torch.device("cuda", 0)
    assert torch.cuda.memory_allocated() == 2 * 4 * (65536 * 65536 + 65536)
    assert psutil.Process().memory_info().rss - before < 10 << 20


def test_wrong_shapes_fail_without_arithmetic_too(machine):
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|same reduction dim"):
        torch.randn(100, 200, device="cuda") @ torch.randn(100, 200, device="cuda")
    with pytest.raises(RuntimeError, match=r"size|broadcast"):
        torch.zeros(10_000, device="cuda").add_(torch.zeros(9_999, device="cuda"))


def test_an_op_whose_shape_nobody_knows_is_named(machine):
    tensor, scale, zero = torch.randn(300, 300), torch.ones(1), torch.zeros(1)
    quantize = torch.ops.aten._fake_quantize_learnable_per_tensor_affine
    with pytest.raises(UnsupportedCUDACallError, match=r"learnable_per_tensor\w+ has no shape"):
        quantize(tensor.cuda(), scale.cuda(), zero.cuda(), 0, 255)


def test_out_of_memory_is_that_of_the_gpu():
    with simulate("1GiB", compute=False), pytest.raises(torch.OutOfMemoryError):
        torch.empty(2**30, device="cuda")


def test_with_arithmetic_no_value_is_missing():
    with simulate("1GiB") as machine:
        assert torch.ones(100_000, device="cuda").sum().item() == 100_000
        assert machine.data_dependent_reads == ()


def test_dry_run(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "def work():\n"
        "    x = torch.randn(2**19, 2**19, device='cuda')\n"
        "    y = x @ x\n"
        "    if y.sum() > 0:\n"
        "        del x\n"
        "work()\n"
    )
    assert main(["run", "--dry-run", "--gpu", "4TiB", str(script)]) in (0, None)
    out = capsys.readouterr().out
    assert "2048.01 GiB" in out
    assert f"Tensor.item at {script}:5 (once, assumed 0)" in out


DEEP = """
import sys, torch
from pytorch_memlab import simulate

def run_in(depth, model, x):
    if depth:
        return run_in(depth - 1, model, x)
    return model(x).sum().backward()

with simulate("1GiB", compute=False):
    model, x = torch.nn.Linear(4, 4).cuda(), torch.randn(2, 4, device="cuda")
    run_in(sys.getrecursionlimit() - 200, model, x)
    print(model.weight.grad.shape)
"""


def test_the_first_product_may_be_deep_in_calls():
    """In a new process: PyTorch's meta kernels import its compiler at their first call."""
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True, check=False)
    assert done.stdout == "torch.Size([4, 4])\n", done.stderr


def test_a_loss_of_zeros_is_a_number(machine):
    logits = torch.randn(64, 5000, device="cuda", requires_grad=True)
    total, count = logits.exp().sum(), (logits > 9).sum()
    mean = total / count
    assert not torch.isnan(mean)
    assert not torch.isnan(torch.zeros((), device="cuda").add_(total).div_(count))
    mean.backward()
    assert logits.grad is not None
    assert not torch.isinf(mean.log() + 1 / mean)
    # The program's own values, and its own infinities, are what they are.
    assert torch.isnan(torch.zeros((), device="cuda") / 0)
    worst = torch.full_like(mean, -torch.inf).clone()
    assert torch.isinf(worst)
    assert torch.maximum(worst, mean) == 0
    assert {read.op for read in machine.data_dependent_reads} == {"aten::_local_scalar_dense"}
