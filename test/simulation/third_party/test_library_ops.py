"""Ops of other libraries: Python's run op by op, compiled ones by their fake kernels."""

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from torch.library import custom_op, register_fake

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnmodelledOpError, UnsupportedCUDACallError
from pytorch_memlab.simulation.machine.approximations import OpCount

MIB = 1024**2
QUARTER = 2**18  # elements of float32: one MiB


@custom_op("somelib::on_cuda", mutates_args=(), device_types="cuda")
def on_cuda(x: torch.Tensor) -> torch.Tensor:
    return x.repeat(3)[: x.numel()].clone()


@custom_op("somelib::anywhere", mutates_args=())
def anywhere(x: torch.Tensor) -> torch.Tensor:
    return (x + 1) * 2


@custom_op("somelib::of_each", mutates_args=(), device_types="cpu")
def of_each(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@of_each.register_kernel("cuda")
def _of_each_on_cuda(x):
    return x.repeat(2)


@custom_op("somelib::add_one", mutates_args=("x",), device_types="cuda")
def add_one(x: torch.Tensor) -> None:
    x.add_(torch.ones_like(x))


@custom_op("somelib::filled", mutates_args=())
def filled(count: int, device: torch.device) -> torch.Tensor:
    return torch.full((count,), 7.0, device=device)


@custom_op("somelib::moved", mutates_args=())
def moved(x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return x + offsets.to(x.device)


@custom_op("somelib::doubled", mutates_args=(), device_types="cuda")
def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


doubled.register_autograd(lambda ctx, gradient: doubled(gradient))


@custom_op("somelib::of_cpu", mutates_args=(), device_types="cpu")
def of_cpu(x: torch.Tensor) -> torch.Tensor:
    assert x.device.type == "cpu"
    return torch.ones(len(x), device=x.device) + x


of_cpu.register_fake(torch.empty_like)


@custom_op("somelib::of_cpu_in_place", mutates_args=("x",), device_types="cpu")
def of_cpu_in_place(x: torch.Tensor) -> None:
    x += torch.ones(len(x), device=x.device)


library = torch.library.Library("somelib", "FRAGMENT")
library.define("compiled(Tensor x) -> (Tensor, Tensor)")
register_fake("somelib::compiled")(lambda x: (torch.empty_like(x), x.new_empty(2 * x.numel())))
library.define("compiled_in_place(Tensor(a!) x) -> ()")
register_fake("somelib::compiled_in_place")(lambda x: None)
library.define("opaque(Tensor x) -> Tensor")
library.define("rows(Tensor(a) x) -> Tensor(a)")
library.impl("rows", lambda x: x.view(2, -1), "CompositeExplicitAutograd")
library.define("for_both(Tensor x) -> Tensor")
library.impl("for_both", torch.clone, "CPU")
library.impl("for_both", torch.empty_like, "Meta")
library.define("implemented(Tensor x) -> Tensor")
library.impl("implemented", lambda x: x.clone(), "CUDA")
of_torchvision = torch.library.Library("torchvision", "FRAGMENT")
if not hasattr(torch.ops.torchvision, "nms"):  # torchvision itself is not there
    of_torchvision.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    of_torchvision.impl("nms", lambda dets, scores, _: scores.sort(descending=True)[1][:1], "CPU")
compiled, opaque, rows = (
    getattr(torch.ops.somelib, name) for name in ("compiled", "opaque", "rows")
)


def peak_of(call, *args):
    """Bytes above those in use before, while an op runs, and those that it leaves."""
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call(*args)
    kept = torch.cuda.memory_allocated() - before
    return result, torch.cuda.max_memory_allocated() - before, kept


@computed_or_dry
@pytest.mark.parametrize(
    ("op", "peak", "kept"),
    [(on_cuda, 4, 1), (anywhere, 2, 1), (of_each, 2, 2), (torch.ops.somelib.implemented, 1, 1)],
    ids=["on_cuda", "anywhere", "of_each", "implemented"],
)
def test_what_a_python_kernel_makes_on_the_way_is_counted(op, peak, kept, compute):
    with simulate("24GiB", compute=compute) as machine:
        x = torch.randn(QUARTER, device="cuda")
        result, seen, left = peak_of(op, x)
        assert (seen, left) == (peak * MIB, kept * MIB)
        assert result.device == torch.device("cuda:0")
        assert machine.unmodelled == {}


def test_python_kernels_compute_what_they_say():
    with simulate("24GiB"):
        x = torch.randn(5, device="cuda")
        assert torch.equal(on_cuda(x), x)
        assert torch.equal(of_each(x), x.repeat(2))
        assert torch.equal(of_each(x.cpu()), x.cpu())
        assert filled(3, torch.device("cuda")).tolist() == [7, 7, 7]


@computed_or_dry
def test_what_an_op_that_only_writes_takes_is_counted(compute):
    with simulate("24GiB", compute=compute):
        x = torch.zeros(QUARTER, device="cuda")
        _, peak, kept = peak_of(add_one, x)
        assert (peak, kept) == (MIB, 0)
        if compute:
            assert x[0] == 1


@computed_or_dry
def test_an_op_that_takes_a_device_makes_its_result_there(compute):
    with simulate("24GiB", count=2, compute=compute):
        assert filled(3, torch.device("cuda", 1)).device == torch.device("cuda:1")
        assert filled(3, torch.device("cpu")).device == torch.device("cpu")
        assert torch.cuda.memory_allocated(1) == 0


@computed_or_dry
def test_an_op_of_a_library_may_take_tensors_of_the_host_too(compute):
    with simulate("24GiB", compute=compute):
        x = torch.ones(4, device="cuda")
        assert moved(x, torch.ones(4)).tolist() == [2, 2, 2, 2]


@computed_or_dry
def test_gradients_of_a_custom_op(compute):
    with simulate("24GiB", compute=compute) as machine:
        x = torch.ones(QUARTER, device="cuda", requires_grad=True)
        doubled(x).sum().backward()
        assert x.grad.device == torch.device("cuda:0")
        assert machine.unmodelled == {}
        assert torch.cuda.memory_allocated() == 2 * MIB
        if compute:
            assert x.grad[0] == 2


@pytest.mark.parametrize("count", [4, QUARTER], ids=["small", "large"])
def test_a_compiled_op_runs_by_its_fake_kernel_in_a_dry_run(count):
    with simulate("24GiB", compute=False) as machine:
        x = torch.ones(count, device="cuda")
        same, twice = compiled(x)
        assert (same.shape, twice.shape) == ((count,), (2 * count,))
        assert twice.device == torch.device("cuda:0")
        assert machine.unmodelled == {
            "somelib.compiled.default": OpCount(1, 12 * count, None, False)
        }


def test_a_compiled_op_leaves_no_values_where_it_writes():
    with simulate("24GiB", compute=False) as machine:
        x = torch.ones(4, device="cuda")
        assert x.tolist() == [1, 1, 1, 1]
        torch.ops.somelib.compiled_in_place(x)
        assert x.tolist() is not None
        assert [read.op for read in machine.data_dependent_reads] == ["Tensor.tolist"]


@pytest.mark.parametrize("op", [compiled, torch.ops.somelib.compiled_in_place, opaque], ids=str)
def test_what_only_cuda_computes_is_refused_by_name(op):
    with simulate("24GiB"):
        x = torch.ones(4, device="cuda")
        with pytest.raises(
            UnsupportedCUDACallError, match=r"^somelib::.* has a kernel for CUDA only"
        ):
            op(x)


def test_without_any_shape_the_error_says_how_to_give_one():
    with simulate("24GiB", compute=False):
        for count in (4, QUARTER):
            x = torch.ones(count, device="cuda")
            with pytest.raises(
                UnsupportedCUDACallError, match=r"register_fake\('somelib::opaque'\)"
            ):
                opaque(x)


@computed_or_dry
def test_strict_refuses_what_is_compiled_alone(compute):
    with simulate("24GiB", strict=True, compute=compute) as machine:
        x = torch.ones(4, device="cuda")
        assert rows(anywhere(x)).shape == (2, 2)
        assert machine.unmodelled == {}
        with pytest.raises(UnmodelledOpError, match=r"^somelib\.for_both\.default"):
            torch.ops.somelib.for_both(x)


@computed_or_dry
def test_a_python_kernel_of_the_cpu_may_name_its_tensors_device(compute):
    with simulate("24GiB", compute=compute) as machine:
        x = torch.ones(4, device="cuda")
        result = of_cpu(x)
        assert result.device == torch.device("cuda:0")
        assert result.tolist() == [2, 2, 2, 2]
        assert machine.unmodelled == {"somelib.of_cpu.default": OpCount(1, 16, None, False)}
        of_cpu_in_place(x)
        assert x.tolist() == [2, 2, 2, 2]


def test_boxes_without_values_do_not_overlap():
    with simulate("24GiB", compute=False) as machine:
        boxes, scores = torch.randn(2000, 4, device="cuda"), torch.randn(2000, device="cuda")
        kept = torch.ops.torchvision.nms(boxes, scores, 0.5)
        assert (kept.shape, kept.dtype, kept.device.type) == ((2000,), torch.int64, "cuda")
        (read,) = machine.data_dependent_reads
        assert (read.name, read.assumption) == ("torchvision.ops.nms", "every box taken as kept")
        assert machine.unmodelled == {"torchvision.nms.default": OpCount(1, 16_000, None, False)}
        known = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]], device="cuda")
        assert len(torch.ops.torchvision.nms(known, torch.ones(2, device="cuda"), 0.5)) == 1


def test_on_the_host_an_op_runs_as_ever():
    with simulate("24GiB") as machine:
        assert of_each(torch.ones(2)).tolist() == [1, 1]
        with pytest.raises(NotImplementedError, match="CPU"):
            on_cuda(torch.ones(2))
        assert machine.unmodelled == {}
