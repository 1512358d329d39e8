"""Training of GPT-2 with 124 million parameters, from the book's classes to PyTorch's fast ones."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import nn
from torch.nn import functional

from benchmarks.published.inductor_of_2025 import timed_as_published

_LENGTH = 1024
_WIDTH = 768
_HEADS = 12
_DROPOUT = 0.1

Part = Literal["mask", "classes", "attention"]


def train(
    *,
    replaced: list[Part],
    fused: bool = False,
    bfloat16: bool = False,
    compiled: bool = False,
    vocabulary: int = 50257,
    batch: int = 8,
    ranks: int = 1,
) -> dict[str, int]:
    """Three steps, one evaluation after the first, and fifty tokens at the end."""
    torch.manual_seed(123)
    if ranks > 1:
        torch.distributed.init_process_group("nccl")
    model = _model(vocabulary, replaced)
    if compiled:
        model = torch.compile(model)
    model.cuda()
    if bfloat16:
        model.to(torch.bfloat16)
    trained = nn.parallel.DistributedDataParallel(model, device_ids=[0]) if ranks > 1 else model
    optimizer = torch.optim.AdamW(trained.parameters(), lr=5e-4, weight_decay=0.1, fused=fused)
    with timed_as_published() if compiled else nullcontext():
        for step in range(3):
            optimizer.zero_grad()
            _loss(trained, vocabulary, batch).backward()
            optimizer.step()
            if step == 0:
                _evaluate(trained, vocabulary, batch)
        _generate(trained)
    return {"allocated": torch.cuda.memory_allocated()}


def _model(vocabulary: int, replaced: list[Part]) -> Any:
    from llms_from_scratch.ch04 import GPTModel

    model = GPTModel(
        {
            "vocab_size": vocabulary,
            "context_length": _LENGTH,
            "emb_dim": _WIDTH,
            "n_heads": _HEADS,
            "n_layers": 12,
            "drop_rate": _DROPOUT,
            "qkv_bias": False,
        }
    )
    for block in model.trf_blocks:
        if "mask" in replaced:
            _without_stored_mask(block.att)
        if "classes" in replaced:
            block.norm1, block.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
            block.ff.layers[1] = nn.GELU(approximate="tanh")
        if "attention" in replaced:
            block.att = _fused_attention()
    if "classes" in replaced:
        model.final_norm = nn.LayerNorm(_WIDTH)
    return model


def _without_stored_mask(attention: Any) -> None:
    from llms_from_scratch.ch03 import MultiHeadAttention

    class WithoutStoredMask(MultiHeadAttention):  # type: ignore[misc]
        @property
        def mask(self) -> torch.Tensor:
            return torch.triu(torch.ones(_LENGTH, _LENGTH, device="cuda"), diagonal=1)

    del attention.mask
    attention.__class__ = WithoutStoredMask


def _fused_attention() -> Any:
    from llms_from_scratch.ch03 import PyTorchMultiHeadAttention

    return PyTorchMultiHeadAttention(_WIDTH, _WIDTH, _HEADS, _DROPOUT)


def _loss(model: nn.Module, vocabulary: int, batch: int) -> torch.Tensor:
    tokens, labels = (torch.randint(vocabulary, (batch, _LENGTH)).cuda() for _ in range(2))
    scores = model(tokens)
    return functional.cross_entropy(scores.flatten(0, 1), labels.flatten())


def _evaluate(model: nn.Module, vocabulary: int, batch: int) -> None:
    """One batch of each of the two data sets."""
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            _loss(model, vocabulary, batch)
    model.train()


def _generate(model: nn.Module) -> None:
    model.eval()
    tokens = torch.randint(50257, (1, 4)).cuda()
    for _ in range(50):
        with torch.no_grad():
            scores = model(tokens)
        following = scores[:, -1, :].argmax(dim=-1, keepdim=True)
        tokens = torch.cat((tokens, following), dim=1)
    model.train()
