"""Tests on a real CUDA GPU: ``make test-gpu``."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _needs_a_gpu():
    if not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA GPU")
