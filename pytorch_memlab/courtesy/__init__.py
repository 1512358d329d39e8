"""Lending the GPU: all tensors into host memory, and back."""

from __future__ import annotations

from .courtesy import Courtesy

__all__ = ["Courtesy"]
