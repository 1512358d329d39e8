"""Weight norm on a simulated GPU."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, randn

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


@computed_or_dry
@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm_keeps_its_norms_in_float(dim, compute):
    def norm(v, g):
        return aten._weight_norm_interface(v, g, dim)

    rows, columns = 6, 8
    norms = (rows, 1) if dim == 0 else (1, columns)
    for dtype in (torch.float32, torch.bfloat16):
        make = [
            lambda of=dtype: randn(rows, columns, dtype=of),
            lambda of=dtype: randn(*norms, dtype=of),
        ]
        found = events(norm, *make, compute=compute)
        assert found == [rows * columns * dtype.itemsize, max(norms) * 4]
