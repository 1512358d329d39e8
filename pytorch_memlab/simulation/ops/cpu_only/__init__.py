"""Ops that PyTorch has for the CPU only."""
