"""Triton's kernels on simulated GPUs: launched for nothing, or interpreted; `make programs`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.computed_or_dry import computed_or_dry

triton = pytest.importorskip("triton", "3.5", reason="`make programs` has triton 3.5 or later")
kernels = pytest.importorskip("support.triton_kernels")

from pytorch_memlab import LineProfiler, simulate  # noqa: E402
from pytorch_memlab.errors import UnmodelledOpError, UnsupportedCUDACallError  # noqa: E402
from pytorch_memlab.simulation.third_party import triton_source  # noqa: E402

MIB = 1024**2
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


def two(n, dtype=torch.float32):
    return torch.randn(n, device="cuda", dtype=dtype), torch.randn(n, device="cuda", dtype=dtype)


@computed_or_dry
def test_the_driver_is_the_simulated_gpu(compute):
    with simulate("rtx4090", count=2, compute=compute):
        driver = triton.runtime.driver.active
        target = driver.get_current_target()
        assert (target.backend, target.arch, target.warp_size) == ("cuda", 89, 32)
        properties = driver.utils.get_device_properties(0)
        assert properties["multiprocessor_count"] == 128
        assert properties["max_shared_mem"] == 99 * 1024
        torch.cuda.set_device(1)
        assert driver.get_current_device() == 1
        assert driver.get_active_torch_device() == torch.device("cuda:1")
        with torch.cuda.stream(torch.cuda.Stream()) as _:
            assert driver.get_current_stream(1) == torch.cuda.current_stream().cuda_stream != 0
        assert torch.utils._triton.has_triton()
        with pytest.raises(UnsupportedCUDACallError, match=r"driver\.active\.utils\.load_binary"):
            driver.utils.load_binary("kernel", b"", 0, 0)
    assert not torch.utils._triton.has_triton()
    with pytest.raises(RuntimeError, match="0 active drivers"):
        triton.runtime.driver.active.get_current_target()


@computed_or_dry
def test_a_launch_takes_no_memory(compute):
    with simulate("h100", compute=compute, strict=True):
        x, y = two(1000)
        out = torch.empty_like(x)
        torch.cuda.reset_peak_memory_stats()
        for grid in ((4,), lambda options: (triton.cdiv(1000, options["BLOCK"]),)):
            kernels.add[grid](x, y, out, n=1000, BLOCK=256, num_warps=4)
        assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == 3 * 4096
        if compute:
            assert torch.equal(out, x + y)


@DTYPES
def test_softmax_is_computed(dtype):
    with simulate("h100"):
        x = torch.randn(5, 40, device="cuda", dtype=dtype)
        out = torch.empty_like(x)
        kernels.softmax[(5,)](x, out, 40, BLOCK=64)
        torch.testing.assert_close(out, x.softmax(-1))


@computed_or_dry
@DTYPES
def test_autotuning_takes_the_first_and_holds_what_it_measures_with(dtype, compute):
    with simulate("h100", compute=compute):
        a = torch.randn(48, 32, device="cuda", dtype=dtype)
        b = torch.randn(32, 64, device="cuda", dtype=dtype)
        c = torch.zeros(48, 64, device="cuda", dtype=dtype)
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()

        def grid(options):
            return triton.cdiv(48, options["TILE"]), triton.cdiv(64, options["TILE"])

        kernels.product[grid](a, b, c, 48, 64, 32)
        assert kernels.product.best_config is kernels.CONFIGS[0]
        # The buffer that flushes the cache, and the copy of what is restored.
        assert torch.cuda.max_memory_allocated() - before == 256 * MIB + c.nbytes
        assert torch.cuda.memory_allocated() == before
        torch.cuda.reset_peak_memory_stats()
        kernels.product[grid](a, b, c, 48, 64, 32)
        assert torch.cuda.max_memory_allocated() == before
        if compute:
            torch.testing.assert_close(c, (a @ b).relu())
    assert kernels.product.cache == {}


def test_functions_of_libdevice_are_computed():
    with simulate("h100"):
        x = torch.rand(50, device="cuda") + 0.5
        out = torch.empty_like(x)
        kernels.activations[(1,)](x, out, 0.5, 50, BLOCK=64)
        torch.testing.assert_close(out, 0.5 * x.tanh() + (x * x).rsqrt())


def test_bfloat16_is_added_as_numbers():
    with simulate("h100"):
        x, y = two(50, torch.bfloat16)
        out, total = torch.empty_like(x), torch.empty(3, device="cuda", dtype=torch.bfloat16)
        kernels.arithmetic[(1,)](x, y, out, total, 50, BLOCK=64)
        assert torch.equal(out, torch.where(x > y, x + y, x * y))
        assert total.tolist() == [x.sum().item(), x.max().item(), 50]


def test_what_a_kernel_closes_over_is_known_to_the_interpreter():
    with simulate("h100"):
        x = torch.arange(16.0, device="cuda")
        out = torch.empty_like(x)
        kernels.scaled_by(3.0)[(1,)](x, out, BLOCK=16)
        assert torch.equal(out, 3 * x)


def test_the_interpreter_leaves_no_trace():
    names = set(kernels.softmax.fn.__globals__)
    add, exponential = triton.language.core.add, triton.language.exp
    with simulate("h100"):
        x = torch.randn(1, 8, device="cuda")
        kernels.softmax[(1,)](x, torch.empty_like(x), 8, BLOCK=8)
    assert set(kernels.softmax.fn.__globals__) == names
    assert triton.language.core.add is add
    assert triton.language.exp is exponential
    assert not triton.knobs.runtime.interpret
    with pytest.raises(RuntimeError, match="outside of the scope"):
        kernels.positive(1.0)


@pytest.mark.parametrize(
    "call", [kernels.added, kernels.added_outside_of_an_op], ids=["op", "wrap"]
)
@computed_or_dry
def test_kernels_that_pytorch_wraps(call, compute):
    with simulate("h100", compute=compute, strict=True):
        x, y = two(100)
        x.requires_grad_()
        before = torch.cuda.memory_allocated()
        out = call(x, y)
        assert torch.cuda.max_memory_allocated() - before == 512
        if compute:
            assert torch.equal(out, x + y)


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize(
    "call", [kernels.added, kernels.added_outside_of_an_op, kernels.added_by_a_launch], ids=str
)
def test_kernels_in_compiled_code_are_computed_in_the_memory_of_a_dry_run(call, backend):
    peaks = []
    for compute in (True, False):
        torch._dynamo.reset()
        with simulate("h100", compute=compute, strict=True):
            x, y = two(100)
            step = torch.compile(lambda x, y: call(x * 2, y) + 1, backend=backend, fullgraph=True)
            for _ in range(2):
                out = step(x, y)
            peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
            if compute:
                assert torch.equal(out, x * 2 + y + 1)
    assert peaks[0] == peaks[1]


def test_autotuned_kernels_in_compiled_code_take_the_first_configuration():
    def step(a, b):
        c = torch.zeros(48, 64, device="cuda")

        def grid(options):
            return triton.cdiv(48, options["TILE"]), triton.cdiv(64, options["TILE"])

        kernels.product_without_heuristics[grid](a, b, c, 48, 64, 32)
        return c + 1

    peaks = []
    for compute in (True, False):
        torch._dynamo.reset()
        with simulate("h100", compute=compute):
            a, b = torch.randn(48, 32, device="cuda"), torch.randn(32, 64, device="cuda")
            c = torch.compile(step, fullgraph=True)(a, b)
            peaks.append(torch.cuda.max_memory_allocated())
            if compute:
                torch.testing.assert_close(c, a @ b + 1)
    assert peaks[0] == peaks[1]


class AddedInMemory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        [x] = ctx.saved_tensors
        return kernels.added_by_a_launch(gradient.contiguous(), x)


def test_kernels_in_compiled_code_see_the_strides_that_the_program_has():
    """Inductor keeps the tensor channels-last."""
    gradients = []
    for is_compiled in (True, False):
        with simulate("h100"):
            torch.manual_seed(0)
            first, second = torch.nn.Conv2d(3, 72, 3).cuda(), torch.nn.Conv2d(72, 72, 3).cuda()

            def step(x, first=first, second=second):
                return second(AddedInMemory.apply(first(x).relu())).square().mean()

            step = torch.compile(step) if is_compiled else step
            step(torch.randn(2, 3, 9, 9, device="cuda")).backward()
            gradients.append(first.weight.grad.cpu())
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@computed_or_dry
def test_a_launch_checks_its_arguments(compute):
    with simulate("h100", compute=compute):
        x, y = two(16)
        with pytest.raises(
            ValueError, match=r"\(at 1\) cannot be accessed from Triton \(cpu tensor"
        ):
            kernels.add[(1,)](x, y.cpu(), x, 16, BLOCK=16)
        with pytest.raises(TypeError, match="missing a required argument: 'n'"):
            kernels.add[(1,)](x, y, x, BLOCK=16)
        kernels.add[(1,)](x, y.cpu().pin_memory(), x, 16, BLOCK=16)


@computed_or_dry
def test_a_kernel_is_not_compiled_and_says_so(compute):
    with simulate("h100", compute=compute):
        x, y = two(16)
        kernel = kernels.add.warmup(x, y, x, 16, BLOCK=16, grid=(1,))
        with pytest.raises(UnsupportedCUDACallError, match="kernel add: it has no 'n_regs'"):
            kernel.n_regs  # noqa: B018
        with pytest.raises(UnsupportedCUDACallError, match="launch the function itself"):
            kernel[(1,)](x, y, x)


def test_what_the_interpreter_cannot_run_is_refused_by_name():
    with simulate("h100"):
        x, out = two(16)
        with pytest.raises(UnsupportedCUDACallError, match=r"kernel moved cannot .*inline_asm"):
            kernels.moved[(1,)](x, out)
        narrow = x.bfloat16()
        with pytest.raises(UnsupportedCUDACallError, match="atomic operations on bfloat16"):
            kernels.add_atomically[(1,)](narrow, narrow)
        kernels.add_atomically[(1,)](x, out)
        kernels.softmax[(1,)](x, out, 16, BLOCK=16)
        torch.testing.assert_close(out, x.softmax(-1))


def test_a_dry_run_forgets_what_a_kernel_writes_and_nothing_else():
    with simulate("h100", compute=False) as machine:
        table, out = torch.zeros(64, device="cuda"), torch.zeros(32, device="cuda")
        offsets = torch.tensor([0, 16], device="cuda")
        kernels.gathered[(2,)](table, offsets, out, BLOCK=16)
        assert offsets.tolist() == [0, 16]
        assert machine.data_dependent_reads == ()
        out.tolist()
        assert [read.op for read in machine.data_dependent_reads] == ["Tensor.tolist"]


@pytest.mark.parametrize(
    ("kernel", "names"),
    [
        (kernels.add, {"out"}),
        (kernels.softmax, {"out", "columns"}),
        (kernels.product.fn.fn, {"c", "N"}),
        (kernels.add_atomically, {"out"}),
        (kernels.described, {"out", "n", "BLOCK"}),
        (kernels.scaled_by(1.0), {"out"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_which_arguments_a_kernel_writes_to(kernel, names):
    assert triton_source.written(kernel.fn) & {"x", "y", "a", "b", *names} == names


@computed_or_dry
def test_global_scratch_memory_is_marked_where_hardware_needs_it(compute):
    def launch():
        x, out = two(16)
        kernels.described[(1,)](x, out, 16, BLOCK=16)

    for gpu, marked in (("a100", []), ("h100", ["triton.described.default"])):
        with simulate(gpu, compute=compute) as machine, LineProfiler(launch) as profiler:
            launch()
            assert list(machine.unmodelled) == marked
        assert ("not modelled: triton::described (1 call" in str(profiler.display())) == bool(
            marked
        )
    with simulate("h100", strict=True), pytest.raises(UnmodelledOpError, match="described"):
        launch()


def test_a_simulation_inside_another_launches_on_its_own_gpus():
    with simulate("h100"):
        outer = two(16)[0]
        with simulate("t4"):
            x, y = two(16)
            assert triton.runtime.driver.active.get_current_target().arch == 75
            with pytest.raises(ValueError, match="cpu tensor"):
                kernels.add[(1,)](x, outer, y, 16, BLOCK=16)
        assert triton.runtime.driver.active.get_current_target().arch == 90
        kernels.add[(1,)](outer, outer, outer, 16, BLOCK=16)


PROGRAM = """
import sys
from pytorch_memlab import simulate
assert "triton" not in sys.modules
finders = list(sys.meta_path)
with simulate("h100", compute={compute}):
    import torch
    from support import triton_kernels as kernels
    x = torch.ones(16, device="cuda")
    kernels.add[(1,)](x, x, x, 16, BLOCK=16)
    assert not {compute} or x.sum() == 32
assert sys.meta_path == finders
import triton
try:
    triton.runtime.driver.active.get_current_target()
except RuntimeError as error:
    print(error)
"""


@computed_or_dry
@pytest.mark.parametrize("interpret", ["0", "1"], ids=["", "TRITON_INTERPRET"])
def test_triton_imported_inside_a_simulation(compute, interpret, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", interpret)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]), prepend=":")
    program = [sys.executable, "-c", PROGRAM.format(compute=compute)]
    done = subprocess.run(program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("0 active drivers")
