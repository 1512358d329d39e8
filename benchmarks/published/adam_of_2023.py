"""Adam by lists of tensors, as PyTorch had it until July 2023."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch


class Adam(torch.optim.Optimizer):
    """Adam whose lists take the bytes of the parameters twice, as until July 2023.

    PyTorch 2.0 and nightly releases of 2.1 had it
    (https://github.com/pytorch/pytorch/issues/97712).
    """

    def __init__(self, parameters: Iterable[torch.Tensor], lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all parameters, with lists of tensors."""
        loss = None if closure is None else closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight in weights:
                if not self.state[weight]:
                    zeros = (torch.zeros_like(weight), torch.zeros_like(weight))
                    self.state[weight] = {"mean": zeros[0], "square": zeros[1]}
            gradients = [weight.grad for weight in weights]
            means = [self.state[weight]["mean"] for weight in weights]
            squares = [self.state[weight]["square"] for weight in weights]
            torch._foreach_lerp_(means, gradients, 0.1)
            torch._foreach_mul_(squares, 0.999)
            torch._foreach_addcmul_(squares, gradients, gradients, 0.001)
            roots = torch._foreach_sqrt(squares)
            torch._foreach_div_(roots, 1.0)
            divisors = torch._foreach_add(roots, 1e-8)
            torch._foreach_addcdiv_(weights, means, divisors, -group["lr"])
        return loss
