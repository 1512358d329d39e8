"""Fixtures of the memory reporter's tests."""

from __future__ import annotations

import gc

import pytest
from support.small_reports import CUDA

from pytorch_memlab.simulation import simulate


@pytest.fixture(autouse=True)
def searches_end_early(short_search):
    """All tests of this folder search few variables."""


@pytest.fixture
def gpu(monkeypatch):
    # The samples are older than cuBLAS' workspaces in the allocator.
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    gc.collect()
    gc.disable()  # a collection may turn the order of tensors round that one list holds
    try:
        with simulate("24GiB"):
            yield CUDA
    finally:
        gc.enable()
