"""Lending the GPU: everything into host memory, and back."""

from __future__ import annotations

from .courtesy import Courtesy

__all__ = ["Courtesy"]
