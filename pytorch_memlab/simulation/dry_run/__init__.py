"""Dry runs: ops give tensors of the right shapes without values, and compute nothing."""
