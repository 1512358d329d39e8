"""The release of PyTorch that is installed."""

from __future__ import annotations

import re
from typing import Final

import torch

RELEASE: Final = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
"""Its major and minor number."""
