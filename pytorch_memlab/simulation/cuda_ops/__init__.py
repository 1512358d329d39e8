"""The CUDA path: ops that only CUDA has, and composites that call other ops on CUDA than on a CPU.

C++ sees tensors of the host. Where its choice of an op depends on the device, ``choices.py`` makes
the choice that CUDA makes, above autograd; the op that CUDA runs then stands in the graph, with
the results that its kernels make and what its node saves. ``cuda_only.py`` says how the host
computes such an op, and what shapes it returns.
"""

from __future__ import annotations

from .choices import choice_of, installed
from .cuda_only import compute_of, host_results_of, meta_of

__all__ = ["choice_of", "compute_of", "host_results_of", "installed", "meta_of"]
