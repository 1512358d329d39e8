"""What the repeated blocks of a model keep for the backward pass, and what a step computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from ..change import Change
from .block_models import BlockModel, BlockModels
from .counted_flops import CountedFlops, StepFlops


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found of a program.

    Args:
        kept: bytes that each block keeps for the backward pass beside its result, at most.
        flops: floating point operations of an optimizer step, or of the whole program without.
    """

    kept: dict[str, int]
    flops: int


class BlockSurvey(Change):
    """Changes nothing, and looks at the blocks."""

    name = "survey"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Look at each block when it has run."""
        self._kept: dict[str, int] = {}
        self._flops = CountedFlops()
        self._steps = StepFlops(self._flops)
        with self._steps.counting(), BlockModels(self._look_at).watching(), self._flops:
            yield

    def finding(self) -> Survey:
        """What was found."""
        return Survey(self._kept, self._steps.per_step)

    def _look_at(self, found: BlockModel) -> None:
        for name, (_, block) in zip(found.names(found.blocks), found.blocks, strict=True):
            block.forward = self._measured(name, block)

    def _measured(self, name: str, block: nn.Module) -> Callable[..., Any]:
        original = block.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            before = torch.cuda.memory_allocated()
            result = original(*args, **kwargs)
            kept = torch.cuda.memory_allocated() - before - _bytes(result)
            self._kept[name] = max(kept, self._kept.get(name, 0))
            return result

        return forward


def _bytes(result: Any) -> int:
    """Bytes of the storages of a result on GPUs."""
    storages = {
        one.untyped_storage()._cdata: one.untyped_storage().nbytes()
        for one in tree_leaves(result)
        if isinstance(one, torch.Tensor) and one.is_cuda
    }
    return sum(storages.values())
