"""Elementwise kernels of compiled code that are not timed, so that a test counts its own memory."""

from __future__ import annotations

from contextlib import AbstractContextManager


def untimed_kernels() -> AbstractContextManager[object]:
    """Within: each elementwise kernel has one configuration, of which Inductor takes no time."""
    from torch._inductor import config

    patch: AbstractContextManager[object] = config.patch({"triton.autotune_pointwise": False})
    return patch
