"""Pooling, padding and resampling."""
