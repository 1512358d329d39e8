"""Compiled graphs ask the allocator for what Inductor's text says, line by line."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.compiled_graphs import finding, samples
from benchmarks.compiled_programs import PROGRAMS
from benchmarks.wrapper_text import recorded_graphs
from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = [
    pytest.mark.skipif(RELEASE < (2, 13), reason="texts of torch 2.13 are read"),
    pytest.mark.filterwarnings("ignore"),
]

OPERATORS = (
    *("index_fill", "nn.functional.softshrink", "linalg.eig", "fft.rfft", "sort", "scatter_add"),
    *("nn.functional.conv2d", "nn.functional.embedding", "cumsum", "topk"),
    *("linalg.ldl_factor", "linalg.solve"),  # with empty results
)
MODELS = ("unet, evaluated", "resnet, channels last")


@pytest.mark.parametrize("name", MODELS)
def test_requests_of_a_model_are_those_of_the_text(name: str) -> None:
    result = finding(name, PROGRAMS[name])
    assert (result.differences, result.eager) == ([], "")
    assert result.events > 20


def test_requests_of_operators_are_those_of_the_text() -> None:
    programs = dict(samples())
    results = [finding(name, programs[name]) for name in OPERATORS]
    assert [(one.name, one.differences, one.eager) for one in results] == [
        (name, [], "") for name in OPERATORS
    ]
    assert sum(one.events for one in results) > 60


@pytest.mark.programs
@pytest.mark.parametrize("name", PROGRAMS)
def test_requests_of_each_program_are_those_of_the_text(name: str) -> None:
    result = finding(name, PROGRAMS[name])
    assert (result.differences, result.eager) == ([], "")
    assert result.texts


def test_what_differs_from_the_text_is_named() -> None:
    with simulate("h100", compute=False), recorded_graphs() as graphs:
        x = torch.ones(64, 64, device="cuda")
        torch.compile(lambda x: (x.sum(1).sin() @ x).cos() + 1)(x)
    (graph,) = graphs
    assert not graph.differences()
    larger = graph.text.replace(
        "buf0 = empty_strided_cuda((64, )", "buf0 = empty_strided_cuda((65, )"
    )
    kept = graph.text.replace("del buf0", "pass")
    assert len({graph.text, larger, kept}) == 3
    assert "260 bytes" in replace(graph, text=larger).differences()[0]
    assert "too many of" in replace(graph, text=kept).differences()[0]
