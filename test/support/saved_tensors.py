"""A mark for tests of what autograd saved, which PyTorch tells since ``SavedTensor.data``."""

from __future__ import annotations

import pytest
import torch

knows_saved_tensors = pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"),
    reason="torch 2.6 does not tell what autograd saved",
)
