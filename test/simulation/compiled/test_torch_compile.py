"""``torch.compile``: the memory of Inductor's wrapper, and the values of eager code."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from support.untimed import untimed_kernels
from torch import nn
from torch.nn import functional

from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import PeakScope, simulate
from pytorch_memlab.errors import UnmodelledOpError, UnsupportedCUDACallError
from pytorch_memlab.history.module_paths import ModulePaths
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

Tensors = list[torch.Tensor]


@pytest.fixture(autouse=True)
def _nothing_is_eager() -> Iterator[None]:
    """A run is an error if it is eager: private names of the compiler are gone, or do otherwise."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "torch.compile runs eagerly")
        warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")
        yield


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = self.qkv(self.norm(x)).view(2, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return x + self.out(attention.transpose(1, 2).reshape(2, 32, 64))


def trained(module: nn.Module, *shape: int) -> Tensors:
    module = module.cuda()
    step = torch.compile(lambda x: module(x).square().mean())
    x = torch.randn(*shape, generator=torch.Generator().manual_seed(1)).cuda()
    for _ in range(2):
        loss = step(x)
        loss.backward()
    return [loss, *(one.grad for one in module.parameters())]


def perceptron() -> Tensors:
    return trained(layers(), 32, 64)


def attention() -> Tensors:
    return trained(Attention(), 2, 32, 64)


def convolutions() -> Tensors:
    module = nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Linear(8 * 7 * 7, 5),
    )
    return trained(module, 2, 3, 16, 16)


def recurrent() -> Tensors:
    """A cell written out: Dynamo breaks the graph at nn.LSTM itself, which runs eagerly."""

    class Cell(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gates, self.again = nn.Linear(8, 64), nn.Linear(16, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = state = x.new_zeros(x.shape[1], 16)
            for step in x:
                given, forgotten, new, shown = (self.gates(step) + self.again(hidden)).chunk(4, 1)
                state = forgotten.sigmoid() * state + given.sigmoid() * new.tanh()
                hidden = shown.sigmoid() * state.tanh()
            return hidden

    return trained(Cell(), 5, 3, 8)


def lengths() -> Tensors:
    step = torch.compile(lambda x: (x.softmax(1) @ x.t()).exp().sum(0))
    return [step(torch.ones(length, 8, device="cuda")) for length in (4, 5, 6, 9)]


def optimizer() -> Tensors:
    module = nn.Linear(8, 16).cuda()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    step = torch.compile(optimizer.step)
    for _ in range(2):
        module(torch.ones(4, 8, device="cuda")).sum().backward()
        step()
        optimizer.zero_grad()
    return list(module.parameters())


def mixed_precision() -> Tensors:
    module = layers().cuda()
    step = torch.compile(module)
    with torch.autocast("cuda", torch.bfloat16):
        loss = step(torch.ones(32, 64, device="cuda")).float().square().mean()
    loss.backward()
    return [loss, *(one.grad for one in module.parameters())]


def mutation() -> Tensors:
    @torch.compile
    def step(x: torch.Tensor, buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
        buffer.add_(x)
        buffer[0] = 5
        return buffer.view(-1)[2:], x.relu_() * 2

    x, buffer = torch.linspace(-1, 1, 16).view(4, 4).cuda(), torch.zeros(4, 4, device="cuda")
    return [*step(x, buffer), x, buffer]


def devices() -> Tensors:
    """A program asks for devices, and names them, as on the GPU."""

    @torch.compile(fullgraph=True)
    def step(x: torch.Tensor) -> torch.Tensor:
        if not x.is_cuda or x.device.type != "cuda" or not torch.cuda.is_available():
            return x
        made = torch.arange(8, device="cuda") + torch.zeros(8, device=x.device)
        moved = torch.ones(8).to(x.device) + torch.ones(8, device="cpu").cuda()
        table = functional.one_hot(torch.arange(8, device=x.device), 8).float()
        return x.to("cuda") + made + moved + table.sum(0) + torch.tensor(2.0, device=x.device)

    result = step(torch.ones(8, device="cuda"))
    assert str(result.device) == "cuda:0"
    return [result]


def breaks() -> Tensors:
    seen = []

    @torch.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        seen.append(y.device)
        torch._dynamo.graph_break()
        return y.cos() + 1

    return [step(torch.ones(8, device="cuda"))]


PROGRAMS = (perceptron, attention, convolutions, lengths, mutation, devices, breaks)
SLOW = (recurrent, optimizer, mixed_precision)
LEAST = {optimizer: 0}  # it writes to what is there
ALL = [*PROGRAMS, *(pytest.param(one, marks=pytest.mark.programs) for one in SLOW)]


@pytest.mark.parametrize("program", ALL)
def test_buffers_are_those_of_the_wrapper(program: Callable[[], Tensors]) -> None:
    with simulate("h100", compute=False), recorded_graphs() as graphs:
        program()
    assert graphs
    assert [graph.differences() for graph in graphs] == [[]] * len(graphs)
    assert sum(graph.length for graph in graphs) >= LEAST.get(program, 1)


def eagerly(program: Callable[[], Tensors]) -> Tensors:
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(torch, "compile", lambda function=None, **_: function or (lambda f: f))
        return program()


@pytest.mark.parametrize("program", ALL)
def test_values_are_those_of_eager_code(program: Callable[[], Tensors]) -> None:
    results = []
    for run in (program, lambda: eagerly(program)):
        with simulate("h100"):
            torch.manual_seed(0)
            results.append([tensor.detach().cpu() for tensor in run()])
    tolerance = 2e-2 if program is mixed_precision else 1e-4
    torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)


def memory_of_step(compute: bool) -> tuple[dict[str, int], int]:
    with simulate("h100", compute=compute):
        perceptron()
        return torch.cuda.memory_stats(), torch.cuda.max_memory_allocated()


def test_memory_is_the_same_with_and_without_values() -> None:
    assert memory_of_step(True) == memory_of_step(False)


def test_fused_intermediates_take_no_memory() -> None:
    """Eagerly GELU's output is kept too, and the backward pass keeps both gradients."""
    kept = []
    for compiles in (False, True):
        with simulate("h100", compute=False):
            module = layers().cuda()
            step = torch.compile(module) if compiles else module
            x = torch.ones(1024, 64, device="cuda")
            functional.linear(x, x, x[:, 0])  # takes the workspaces of cuBLAS
            before = torch.cuda.memory_allocated()
            out = step(x)
            kept.append(torch.cuda.memory_allocated() - before)
            del out
    row, wide, narrow = 1024 * 4, 1024 * 256 * 4, 1024 * 64 * 4
    assert kept[0] - kept[1] == wide
    if RELEASE >= (2, 13):  # before, cuBLASLt has a workspace apart from that of cuBLAS
        assert kept[1] == 2 * wide + 2 * row + narrow


def graphs_made() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_a_module_that_compiles_itself_runs_the_same_graph() -> None:
    kept = []
    for compiles_itself in (False, True):
        with simulate("h100", compute=False):
            step = module = Attention().cuda()
            if compiles_itself:
                module.compile(dynamic=False)
            else:
                step = torch.compile(module, dynamic=False)
            made = graphs_made()
            out = step(torch.ones(2, 32, 64, device="cuda"))
            kept.append(torch.cuda.memory_allocated())
            assert graphs_made() == made + 1
            del out
    assert kept[0] == kept[1]


def test_a_new_shape_compiles_again_as_often_as_on_a_gpu() -> None:
    with simulate("h100", compute=False):
        step = torch.compile(lambda x: x.sin().cos())
        made = []
        for length in (4, 4, 5, 6, 4):
            before = graphs_made()
            step(torch.ones(length, device="cuda"))
            made.append(graphs_made() - before)
        assert made == [1, 0, 1, 0, 0]


def test_layers_that_are_compiled_one_by_one_share_a_graph() -> None:
    with simulate("h100", compute=False):
        made = graphs_made()
        alike = [torch.compile(nn.Linear(8, 8).cuda(), fullgraph=True) for _ in range(12)]
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        for layer in alike:
            x = layer(x)
        assert graphs_made() == made + 1
        other = torch.compile(nn.Linear(8, 8).cuda(), options={"max_fusion_size": 1})
        other(x)
        assert graphs_made() == made + 2


def test_calls_of_modules_that_are_followed_are_one_graph() -> None:
    paths = ModulePaths()
    with simulate("h100", compute=False):
        paths.begin()
        try:
            followed = torch.nn.Module.__call__
            step = torch.compile(layers().cuda(), fullgraph=True)
            before = graphs_made()
            for _ in range(2):
                step(torch.ones(4, 64, device="cuda"))
            assert graphs_made() - before == 1
            assert torch.nn.Module.__call__ is followed
        finally:
            paths.end()


def test_the_program_reads_its_own_peak_while_it_is_measured() -> None:
    with untimed_kernels(), simulate("h100", compute=False):
        x = torch.empty(2**20, dtype=torch.uint8, device="cuda")
        del x
        with PeakScope():
            torch.compile(doubled)(torch.ones(1024, device="cuda"))
            assert torch.cuda.max_memory_allocated() == 2**20


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x.sin() * 2


def test_compiled_before_it_compiles_for_each_simulation_and_for_the_cpu_again() -> None:
    step = torch.compile(doubled, backend="aot_eager")
    x = torch.ones(1024)
    for _ in range(2):
        with simulate("h100"):
            on_gpu = x.cuda()
            before = torch.cuda.memory_allocated()
            result = step(on_gpu)
            assert result.is_cuda
            assert torch.cuda.memory_allocated() - before == 4096
        assert torch.equal(step(x), doubled(x))


def test_a_tensor_of_the_cpu_compiles_again() -> None:
    with simulate("h100") as machine:
        step = torch.compile(doubled, backend="aot_eager")
        x = torch.ones(8)
        devices = [step(one).device.type for one in (x.cuda(), x, x.cuda())]
        assert devices == ["cuda", "cpu", "cuda"]
        assert not machine.approximations[0].uncounted


def test_allocations_are_on_the_lines_of_the_model() -> None:
    from pytorch_memlab._common.frames.call_stacks import call_stacks

    with simulate("h100", compute=False) as machine:
        compiled = torch.compile(doubled)
        result = compiled(torch.ones(1024, device="cuda"))
        block = machine.gpus[0].log.live[result.data_ptr()]
        frames = call_stacks.places(block)
    line = doubled.__code__.co_firstlineno + 1
    assert frames[0] == (__file__, line, "doubled")
    assert (__file__, "test_allocations_are_on_the_lines_of_the_model") in [
        (file, name) for file, _, name in frames
    ]


def test_other_backends_run_eagerly_with_a_mark() -> None:
    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        raise AssertionError("it is not asked")

    with simulate("h100", compute=False) as machine:
        step = torch.compile(doubled, backend=backend)
        with pytest.warns(UserWarning, match="the backend 'backend' is not modelled"):
            result = step(torch.ones(8, device="cuda"))
        step(torch.ones(8, device="cuda"))
        assert result.is_cuda
        (count,) = machine.approximations[0].uncounted.values()
        assert count.calls == 3
        machine.strict = True
        with pytest.raises(UnmodelledOpError, match="the memory of compiled code is not known"):
            step(torch.ones(8, device="cuda"))


@pytest.mark.parametrize("compute", [True, False])
def test_lists_of_numbers_are_indices_whatever_was_in_the_memory(
    compute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel of the CPU that is not run writes them."""
    empty = torch._C._dynamo.guards._empty_strided_cpu

    def dirty(*args: Any) -> torch.Tensor:
        made: torch.Tensor = empty(*args)
        return made.fill_(77)

    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cpu", dirty)
    with simulate("h100", compute=compute) as machine:
        x = torch.arange(25.0, device="cuda").view(5, 5).requires_grad_()
        result = torch.compile(lambda x: x[[0, 2], [1, 3]] * 2)(x)
        result.sum().backward()
        assert not machine.approximations[0].uncounted
        assert x.grad is not None
        if compute:
            assert result.tolist() == [2, 26]
            assert x.grad.nonzero().tolist() == [[0, 1], [2, 3]]


def test_what_inductor_cannot_lower_runs_eagerly_with_a_mark() -> None:
    from torch._inductor.graph import GraphLowering

    def fail(*_: Any) -> None:
        raise RuntimeError("no lowering\nfor this")

    with simulate("h100") as machine, pytest.MonkeyPatch.context() as patches:
        step = torch.compile(doubled)
        patches.setattr(GraphLowering, "run", fail)
        with pytest.warns(UserWarning, match="RuntimeError: no lowering"):
            result = step(torch.ones(8, device="cuda"))
        assert result.tolist() == doubled(torch.ones(8)).tolist()
        assert [op for op, _ in machine.approximations[0].uncounted] == ["torch.compile"]


@pytest.mark.parametrize("compute", [True, False])
def test_a_graph_that_fails_while_it_runs_goes_on_eagerly_with_a_mark(compute: bool) -> None:
    from pytorch_memlab.simulation.compiled import wrapper

    class Failing(wrapper._Allocation):
        def empty_strided(self, size: Any, stride: Any, dtype: Any) -> torch.Tensor:
            made = super().empty_strided(size, stride, dtype)
            if size == (512, 512) and len(failures) < 2:
                failures.append(torch.cuda.memory_allocated())
                raise NotImplementedError("no such kernel")
            return made

    failures: list[int] = []
    gradients = []
    for patched in (True, False):
        with simulate("h100", compute=compute) as machine, pytest.MonkeyPatch.context() as patches:
            if patched:
                patches.setattr(wrapper, "_Allocation", Failing)
            x = torch.linspace(0, 1, 2**18).view(512, 512).cuda().requires_grad_()
            step = torch.compile(doubled)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    x.grad = None
                    loss = step(x)
                    loss.sum().backward()
            names = [str(one.message) for one in caught if "runs eagerly" in str(one.message)]
            assert ["no such kernel" in name for name in names] == [True] * patched
            uncounted = machine.approximations[0].uncounted
            assert [op for op, _ in uncounted] == ["torch.compile"] * patched
            assert x.grad is not None
            if compute:
                gradients.append(x.grad.cpu())
            x.grad = None
            del loss
            assert torch.cuda.memory_allocated() == 2**20
    if compute:
        torch.testing.assert_close(*gradients)
    assert len(failures) == 2


def test_graphs_of_max_autotune_are_estimates() -> None:
    """A real GPU may take other kernels, by their time."""
    with simulate("h100", compute=False) as machine:
        step = torch.compile(doubled, mode="max-autotune-no-cudagraphs")
        step(torch.ones(8, device="cuda"))
        approximations = machine.approximations[0]
        assert (list(approximations.estimated), approximations.uncounted) == (["max-autotune"], {})
        machine.strict = True
        with pytest.raises(UnmodelledOpError, match="max-autotune chooses kernels by their time"):
            step(torch.ones(8, device="cuda"))


def test_packages_of_kernels_are_refused_by_name() -> None:
    layer = nn.Linear(8, 8)
    with simulate("h100", compute=False):
        layer, x = layer.cuda(), torch.ones(4, 8, device="cuda")
        with torch.no_grad():
            program = torch.export.export(layer, (x,))
            assert program.module()(x).is_cuda
            with pytest.raises(UnsupportedCUDACallError, match="aoti_compile_and_package"):
                torch._inductor.aoti_compile_and_package(program)


IMPORTS = """
import sys
import torch
from pytorch_memlab import PeakScope, simulate

for compute in (True, False):
    with simulate("24GiB", compute=compute):
        layer = torch.nn.Linear(4, 4).cuda()
        layer(torch.ones(2, 4, device="cuda")).sum().backward()
print([name for name in ("torch._inductor.compile_fx",) if name in sys.modules])
"""


def test_the_compiler_is_not_imported_before_something_is_compiled() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_a_simulation_inside_of_another_one_says_that_it_does_not_compile() -> None:
    """The outer one compiles as ever once the inner one has ended."""
    with untimed_kernels(), simulate("h100", compute=False) as outer:
        with simulate("a100", compute=False) as inner:
            with pytest.warns(UserWarning, match="inside of another one.*end the outer") as caught:
                compiled = torch.compile(lambda x: x.sin() + 1)
            assert "Error" not in str(caught[0].message)
            compiled(torch.ones(4, device="cuda"))
            assert [op for op, _ in inner.approximations[0].uncounted] == ["torch.compile"]
        torch.cuda.reset_peak_memory_stats()
        x = torch.ones(256, device="cuda")
        torch.compile(lambda x: x.sin() + 1)(x)
        assert torch.cuda.max_memory_allocated() == 2 * 1024  # one buffer: the ops are fused
        assert not outer.approximations[0].uncounted
