"""Nested tensors."""
