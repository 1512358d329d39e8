"""Floating point operations of the matrix products, convolutions and attentions that run.

PyTorch's own formulas count them (``torch.utils.flop_counter``). Its ``FlopCounterMode`` is not
used: it hooks into every module, and what its hooks keep alive changes the peak of a program that
recomputes activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry


class CountedFlops(TorchDispatchMode):
    """Counts while it is on; as often as wanted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run an op, and count what it computes."""
        result = func(*args, **(kwargs or {}))
        formula: Callable[..., int] | None = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.total += formula(*args, **(kwargs or {}), out_val=result)
        return result


class StepFlops:
    """The flops that each optimizer step adds to a count."""

    def __init__(self, counted: CountedFlops) -> None:
        self._counted = counted
        self._before = self._last = 0

    @property
    def per_step(self) -> int:
        """Of the last step that added something; without any step, all so far."""
        return self._last or self._counted.total

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Look at the count after each step."""
        hook = register_optimizer_step_post_hook(self._after_step)
        try:
            yield
        finally:
            hook.remove()

    def _after_step(self, *_arguments: Any) -> None:
        total = self._counted.total
        self._last = total - self._before or self._last
        self._before = total
