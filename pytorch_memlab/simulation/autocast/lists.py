"""The ops that ``torch.autocast("cuda")`` casts; ``lists.toml`` has those without arguments."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_LISTS: Final[Mapping[str, list[str]]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)

LOWER_PRECISION: Final = frozenset(_LISTS["LOWER_PRECISION"])
FP32: Final = frozenset(_LISTS["FP32"])
FP32_SET_OPT_DTYPE: Final = frozenset(_LISTS["FP32_SET_OPT_DTYPE"])
PROMOTE: Final = frozenset(_LISTS["PROMOTE"])

FP32_APPEND_DTYPE: Final[Mapping[str, str]] = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""Ops replaced by the overload that takes a dtype (float32)."""

RECURRENT: Final = frozenset({"_cudnn_rnn"})
"""cuDNN's recurrent networks, whose weights are cast into one buffer at each call."""

RECURRENT_COMPOSITE: Final = frozenset(
    f"{name}.{overload}"
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for overload in ("input", "data")
)
"""Whole recurrent networks: not cast themselves, but made of ops that are, in inference too."""

BANNED: Final = frozenset({"binary_cross_entropy"})
"""Ops that raise an error."""
