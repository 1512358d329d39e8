"""The text of a graph's wrapper: PyTorch's helpers have it, and ``TORCH_LOGS=output_code``."""

from __future__ import annotations

import logging
from unittest import TestCase

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.simulation.machine.torch_release import RELEASE

pytestmark = pytest.mark.skipif(RELEASE < (2, 9), reason="compiled from torch 2.9 on")

_ALLOCATION = "buf0 = empty_strided_cuda((8, 4), (4, 1), torch.float32)"


def text_of_a_graph() -> str:
    from torch._inductor.utils import run_and_get_code

    with simulate("h100", compute=False):
        x = torch.ones(8, 4, device="cuda")
        result, texts = run_and_get_code(torch.compile(lambda x: x.sin() + 1), x)
        assert result.shape == (8, 4)
    (text,) = texts
    return str(text)


def test_helpers_of_pytorch_have_the_text_of_a_graph_also_of_one_that_was_kept() -> None:
    lowered, kept = text_of_a_graph(), text_of_a_graph()
    assert lowered.count(_ALLOCATION) == 1
    assert kept == lowered


def test_the_log_of_output_code_has_the_text() -> None:
    from torch._inductor.codecache import output_code_log

    with TestCase().assertLogs(output_code_log, logging.DEBUG) as logs:
        texts = [text_of_a_graph() for _ in range(2)]
    logged = [record.getMessage().partition("\n")[2] for record in logs.records]
    assert [text for text in logged if _ALLOCATION in text] == texts
