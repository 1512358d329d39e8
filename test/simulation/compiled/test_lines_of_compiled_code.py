"""The line table of compiled functions, whose lines never run as Python."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from support.untimed import untimed_kernels
from torch import nn
from torch.nn import functional

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

Table = dict[str, tuple[int, ...]]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.qkv = nn.Linear(64, 192)
        self.out = nn.Linear(64, 64)
        self.up = nn.Linear(64, 256)
        self.down = nn.Linear(256, 64)

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(x)
        query, key, value = qkv.view(2, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)
        attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attention.transpose(1, 2).reshape(2, 32, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attend(self.norm(x))
        h = self.up(x)
        h = functional.gelu(h)
        return x + self.down(h)


def train(block: Any, x: torch.Tensor) -> None:
    out = block(x)
    loss = out.sum()
    loss.backward()


def table_of(profiler: LineProfiler, function: Any) -> Table:
    """Hits, kept, freed and temporary of each line that has any, by its source."""
    table: Table = {}
    names = ("hits", "kept", "freed", "temporary")
    for one in profiler.display(function, columns=names).report.tables:
        source, first = one.function.source, one.function.first_line
        assert source is not None
        for line, values in one.rows.items():
            table[source[line - first].strip()] = tuple(int(value or 0) for value in values)
    return table


@pytest.mark.skipif(RELEASE < (2, 13), reason="workspaces of older releases are others")
@pytest.mark.parametrize("compute", [True, False])
def test_lines_of_a_block_have_its_forward_and_backward_pass(compute: bool) -> None:
    """The first use of cuBLAS in the backward pass takes its workspace: 16 MiB for each hit."""
    with untimed_kernels(), simulate("h100", compute=compute):
        block, x = Block().cuda(), torch.ones(2, 32, 64, device="cuda")
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        step = torch.compile(block)
        with LineProfiler(Block.forward, Block.attend, train) as profiler:
            train(step, x)
            block.zero_grad()
            train(step, x)
    assert table_of(profiler, train) == {
        "def train(block: Any, x: torch.Tensor) -> None:": (2, 0, 0, 0),
        "out = block(x)": (2, 247808, 0, 0),
        "loss = out.sum()": (2, 512, 0, 0),
        "loss.backward()": (2, 16977920, 231424, 231424),
    }
    forward = table_of(profiler, Block.forward)
    assert forward == {
        "def forward(self, x: torch.Tensor) -> torch.Tensor:": (2, 0, 0, 0),
        "x = x + self.attend(self.norm(x))": (2, 168448, 116736, 198144),
        "h = self.up(x)": (2, 148480, 81920, 65536),
        "h = functional.gelu(h)": (2, 65536, 65536, 0),
        "return x + self.down(h)": (2, 16925184, 65536, 65536),
    }
    assert table_of(profiler, Block.attend) == {
        "def attend(self, x: torch.Tensor) -> torch.Tensor:": (2, 0, 0, 0),
        "qkv = self.qkv(x)": (2, 99328, 65536, 49152),
        "query, key, value = qkv.view(2, 32, 3, 4, 16).permute(2, 0, 3, 1, 4)": (
            *(2, 49152),
            *(32768, 32768),
        ),
        "attention = functional.scaled_dot_product_attention(query, key, value, is_causal=True)": (
            *(2, 66560),
            *(82944, 181760),
        ),
        "return self.out(attention.transpose(1, 2).reshape(2, 32, 64))": (2, 49664, 32768, 16384),
    }
    # What the graphs did is on lines of the model, but for the gradient that backward() made.
    gradient = x.numel() * 4
    by_graphs = sum(kept - freed for _, kept, freed, _ in forward.values())
    assert by_graphs == 247808 + 16977920 - 231424 - gradient


seen: list[torch.Tensor] = []


def inner(x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    return y * 2


def broken(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    seen.append(torch.zeros(3000, device="cuda"))
    torch._dynamo.graph_break()
    return inner(y).cos()


def test_lines_before_and_after_a_graph_break() -> None:
    seen.clear()
    with (
        untimed_kernels(),
        simulate("h100", compute=False),
        LineProfiler(broken, inner) as profiler,
    ):
        step = torch.compile(broken)
        x = torch.ones(1024, device="cuda")
        outs = [step(x) for _ in range(2)]
        assert len(outs) == len(seen) == 2
    assert table_of(profiler, broken) == {
        "def broken(x: torch.Tensor) -> torch.Tensor:": (2, 0, 0, 0),
        "y = x.sin()": (2, 4096, 0, 0),
        'seen.append(torch.zeros(3000, device="cuda"))': (2, 12288, 0, 0),
        "torch._dynamo.graph_break()": (2, 0, 0, 0),
        "return inner(y).cos()": (2, 4096, 0, 0),
    }
    assert table_of(profiler, inner) == {
        "def inner(x: torch.Tensor) -> torch.Tensor:": (2, 0, 0, 0),
        "y = x.exp()": (2, 0, 0, 0),
        "return y * 2": (2, 0, 0, 0),
    }


def sized(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    return y @ x


def test_a_recompiled_function_has_the_hits_of_all_calls() -> None:
    with untimed_kernels(), simulate("h100", compute=False):
        torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
        step = torch.compile(sized)
        step(torch.ones(8, 8, device="cuda"))  # compiled before the profiler is on
        with LineProfiler(sized) as profiler:
            for length in (16, 32, 32):
                step(torch.ones(length, length, device="cuda"))
    assert table_of(profiler, sized) == {
        "def sized(x: torch.Tensor) -> torch.Tensor:": (3, 0, 0, 0),
        "y = x.sin()": (3, 3072, 0, 0),
        "return y @ x": (3, 3072, 3072, 4096),
    }


def test_a_function_added_after_it_was_compiled() -> None:
    with simulate("h100", compute=False):
        step = torch.compile(sized)
        x = torch.ones(16, 16, device="cuda")
        step(x)
        with LineProfiler() as profiler:
            step(x)
            profiler.add_function(sized)
            step(x)
    assert [hits for hits, *_ in table_of(profiler, sized).values()] == [1, 1, 1]


def fused(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    z = y * 3
    return z.cos()


def test_a_fused_buffer_names_its_other_lines() -> None:
    with (
        untimed_kernels(),
        simulate("h100", compute=False),
        LineProfiler(fused) as profiler,
    ):
        out = torch.compile(fused)(torch.ones(1024, device="cuda"))
        holders = profiler.peak_holders()
        del out
    first = fused.__code__.co_firstlineno
    (line,) = [one for one in holders.by_line() if one.function == "fused"]
    assert (line.line, line.size) == (first + 3, 4096)
    file = "test_lines_of_compiled_code.py"
    assert [one.function for one in holders.below(line)] == [
        f"fused with {file}:{first + 1}, {file}:{first + 2}"
    ]


def test_the_compiler_is_not_traced_and_another_tracer_sees_it() -> None:
    traced: list[bool] = []

    def backend(module: Any, inputs: Any) -> Any:
        traced.append(sys.gettrace() is not None)
        return eager(module, inputs)

    eager = torch._dynamo.lookup_backend("eager")
    with pytest.MonkeyPatch.context() as patches, simulate("h100", compute=False):
        from torch._dynamo.backends import registry

        patches.setattr(registry, "lookup_backend", lambda _: backend)
        for outer in (None, lambda *_: None):
            found = sys.gettrace()
            sys.settrace(outer)
            try:
                with LineProfiler(sized):
                    torch.compile(sized, backend=backend)(torch.ones(4, 4, device="cuda"))
                assert sys.gettrace() is outer
            finally:
                sys.settrace(found)
            torch._dynamo.reset()
    assert traced == [False, True]
