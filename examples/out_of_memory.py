"""Attention that runs out of memory on a GPU of 2 GiB."""

import torch


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Scaled dot-product attention, written out."""
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    return weights @ v


def main() -> None:
    """One forward pass."""
    q, k, v = (torch.randn(8, 4096, 64, device="cuda", requires_grad=True) for _ in range(3))
    attention(q, k, v).sum().backward()


main()
