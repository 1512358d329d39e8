"""Cross-entropy over the vocabulary of Gemma 2: the loss, its gradients, and both."""

from __future__ import annotations

import gc

import torch
from torch.nn import functional

_TOKENS = 8192
_WIDTH = 2304
_VOCABULARY = 256_000
_CAP = 30.0  # of the scores of Gemma 2


def measure(method: str, forward: bool, backward: bool) -> dict[str, int]:
    """Measure what the second of two rounds takes above what was there before it.

    Args:
        method: ``baseline``, or an implementation of the package.
        forward: the loss counts.
        backward: the gradients count.
    """
    hidden, classifier = (
        torch.randn(rows, _WIDTH, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for rows in (_TOKENS, _VOCABULARY)
    )
    labels = torch.randint(_VOCABULARY, (_TOKENS,), device="cuda")
    for _ in range(2):
        peak = _round(method, forward, backward, hidden, classifier, labels)
    return {"peak": peak}


def _round(
    method: str,
    forward: bool,
    backward: bool,
    hidden: torch.Tensor,
    classifier: torch.Tensor,
    labels: torch.Tensor,
) -> int:
    hidden.grad = classifier.grad = None
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.max_memory_allocated()
    loss = _loss(method, hidden, classifier, labels)
    if backward and not forward:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.max_memory_allocated()
    if backward:
        loss.backward()
    return torch.cuda.max_memory_allocated() - before


def _compile_as_published() -> None:
    """Set what later releases than 2.4.1 set otherwise.

    They take the cap as a number that may change (pytorch/pytorch#149564), fuse what spreads the
    loss over the vocabulary (#129043), and overwrite saved tensors in the backward pass (#140113).
    """
    import torch._dynamo
    import torch._functorch.config
    import torch._inductor.config

    torch._dynamo.config.specialize_float = True
    torch._inductor.config.optimize_scatter_upon_const_tensor = False
    torch._functorch.config.donated_buffer = False


def _loss(
    method: str, hidden: torch.Tensor, classifier: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    if method == "baseline":
        scores = hidden @ classifier.T
        scores = torch.tanh(scores / _CAP) * _CAP
        return functional.cross_entropy(scores.float(), labels)
    from cut_cross_entropy import linear_cross_entropy

    if method == "torch_compile":
        _compile_as_published()
    loss: torch.Tensor = linear_cross_entropy(hidden, classifier, labels, softcap=_CAP, impl=method)
    return loss
