"""Fits programs to GPUs: runs them without values, and replays their allocations.

Nothing here prints or imports a renderer.
"""
