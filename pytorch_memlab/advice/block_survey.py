"""Bytes that the repeated blocks of a model keep for the backward pass, and flops of a step.

PyTorch's own formulas count the flops (``torch.utils.flop_counter``): those of matrix products,
convolutions and attentions. Its ``FlopCounterMode`` is not used: it hooks into every module, and
what its hooks keep alive changes the peak of a program that recomputes activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from .._common.torch.optimizer_steps import after_each_step
from ..fitting.change import Change
from .repeated_blocks import BlockModel, BlockModels


class CountedFlops(TorchDispatchMode):
    """Counts while it is on, as often as wanted, and what each optimizer step adds."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._total = self._before = self._last = 0

    @property
    def per_step(self) -> int:
        """Of the last step that added something; without any step, all so far."""
        return self._last or self._total

    def by_step(self) -> AbstractContextManager[None]:
        """Look at the count after each step."""
        return after_each_step(self._after_step)

    def _after_step(self, _optimizer: Any) -> None:
        self._last = self._total - self._before or self._last
        self._before = self._total

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self._total += formula(*args, **(kwargs or {}), out_val=result)
        return result


@dataclass(frozen=True, slots=True)
class Survey:
    """The result for one program."""

    kept: dict[str, int]  # bytes that each block keeps for the backward pass, without its result
    # between two moments at which a block begins or ends its forward pass or begins its backward
    # pass: the highest bytes in use, by the blocks that kept their activations
    phases: dict[tuple[str, ...], int]
    flops: int  # floating point operations of an optimizer step, or of the whole program without


class BlockSurvey(Change):
    """Changes nothing of the program, and looks at its blocks; resets the peaks of the GPU."""

    name = "survey"

    @contextmanager
    def applied(self) -> Iterator[None]:
        self._kept: dict[str, int] = {}
        self._phases: dict[tuple[str, ...], int] = {}
        self._held: dict[str, None] = {}
        self._flops = CountedFlops()
        with self._flops.by_step(), BlockModels(self._look_at).watching(), self._flops:
            yield

    def finding(self) -> Survey:
        self._end_phase()
        return Survey(self._kept, self._phases, self._flops.per_step)

    def _look_at(self, model: BlockModel) -> None:
        for name, (_, block) in zip(model.names(model.blocks), model.blocks, strict=True):
            block.forward = self._measured(name, block)

    def _measured(self, name: str, block: nn.Module) -> Callable[..., Any]:
        original = block.forward

        @wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            self._end_phase()
            before = torch.cuda.memory_allocated()
            result = original(*args, **kwargs)
            kept = torch.cuda.memory_allocated() - before - _bytes(result)
            self._end_phase()
            results = [tensor for tensor in tensors_in(result) if tensor.requires_grad]
            if results:
                self._kept[name] = kept  # the first call may make workspaces too
                self._held[name] = None
                results[0].register_hook(lambda _gradient: self._begin_backward(name))
            return result

        return forward

    def _begin_backward(self, name: str) -> None:
        self._end_phase()
        self._held.pop(name, None)

    def _end_phase(self) -> None:
        peak, held = torch.cuda.max_memory_allocated(), tuple(self._held)
        self._phases[held] = max(peak, self._phases.get(held, 0))
        torch.cuda.reset_peak_memory_stats()


def tensors_in(result: Any) -> list[torch.Tensor]:
    leaves = tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_cuda]


def _bytes(result: Any) -> int:
    """Bytes of the storages of a result on GPUs."""
    storages = [tensor.untyped_storage() for tensor in tensors_in(result)]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
