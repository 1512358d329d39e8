"""Attention with a softmax in four steps, forward and backward, from the process' first tensor."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch


def softmax(scores: torch.Tensor) -> torch.Tensor:
    largest = scores.max(dim=-1, keepdim=True).values
    exponentials = torch.exp(scores - largest)
    return exponentials / exponentials.sum(dim=-1, keepdim=True)


def attention(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bqd,bkd->bqk", queries, keys)
    scores = scores / math.sqrt(queries.shape[-1])
    weights = softmax(scores)
    return torch.einsum("bqk,bkd->bqd", weights, values)


def run(begin: Callable[[], None], end: Callable[[], None]) -> None:
    begin()
    queries = torch.randn(8, 4096, 16, device="cuda", requires_grad=True)
    keys = torch.randn(8, 4096, 16, device="cuda", requires_grad=True)
    values = torch.randn(8, 4096, 16, device="cuda", requires_grad=True)
    output = attention(queries, keys, values)
    loss = output.sum()
    loss.backward()
    end()
