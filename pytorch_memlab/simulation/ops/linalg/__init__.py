"""Factorizations, and least squares."""
