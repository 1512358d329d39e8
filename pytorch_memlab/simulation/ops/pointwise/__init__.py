"""Pointwise and foreach ops, quantization."""
