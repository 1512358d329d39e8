"""Batch, group, layer and RMS norm."""
