"""Kernels' own memory: what CUDA's kernels take and give back that no tensor shows."""

from __future__ import annotations

from .cublas import Workspaces
from .entry import Basis, Entry
from .launch import Launch
from .table import entry_of

__all__ = ["Basis", "Entry", "Launch", "Workspaces", "entry_of"]
