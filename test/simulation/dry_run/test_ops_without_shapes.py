"""A dry run refuses ops that have neither values nor shapes, and says what computes them."""

from __future__ import annotations

import re

import pytest
import torch

from pytorch_memlab import simulate
from pytorch_memlab.errors import UnsupportedCUDACallError


@pytest.mark.parametrize("compute", [True, False])
def test_an_op_of_cuda_alone_is_never_said_to_run(compute: bool) -> None:
    message = (
        "aten::_cslt_compress is not covered by the simulated GPU; run this part on a real one"
    )
    with (
        simulate("a100", compute=compute),
        pytest.raises(UnsupportedCUDACallError, match=re.escape(message)),
    ):
        torch._cslt_compress(torch.ones(64, 64, dtype=torch.float16, device="cuda"))
