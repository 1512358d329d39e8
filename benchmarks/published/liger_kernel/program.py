"""The peaks of Liger-Kernel's memory benchmarks, for the modules that it compares itself with."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from torch import nn
from torch.nn import functional


def _peaks(work: Callable[[], object]) -> dict[str, int]:
    """The median of the peaks of ten runs."""
    peaks = []
    for _ in range(10):
        torch.cuda.reset_peak_memory_stats()
        work()
        peaks.append(torch.cuda.max_memory_allocated())
    return {"median peak": int(median(peaks))}


def cross_entropy(vocabulary: int) -> dict[str, int]:
    scores = torch.randn(8 * 2048, vocabulary, requires_grad=True, device="cuda")
    labels = torch.randint(vocabulary, (8 * 2048, 1), device="cuda").squeeze(1)
    return _peaks(lambda: functional.cross_entropy(scores, labels).backward())


def cross_entropy_kernel(vocabulary: int) -> dict[str, int]:
    """The same with Liger-Kernel's Triton kernel."""
    from liger_kernel.transformers import LigerCrossEntropyLoss

    scores = torch.randn(8 * 2048, vocabulary, requires_grad=True, device="cuda")
    labels = torch.randint(vocabulary, (8 * 2048, 1), device="cuda").squeeze(1)
    loss_of = LigerCrossEntropyLoss()
    return _peaks(lambda: loss_of(scores, labels).backward())


def linear_cross_entropy(tokens: int) -> dict[str, int]:
    """The output layer is made twice: the benchmark holds that of the compared kernel too."""
    width, vocabulary, dtype = 4096, 128256, torch.bfloat16
    layer, _other = (nn.Linear(width, vocabulary, bias=False, dtype=dtype).cuda() for _ in range(2))
    hidden = torch.randn(tokens, width, requires_grad=True, dtype=dtype, device="cuda")
    labels = torch.randint(vocabulary, (tokens, 1), device="cuda").squeeze(1)
    return _peaks(lambda: functional.cross_entropy(layer(hidden), labels).backward())


def gated_mlp(batch: int, length: int, activation: str, measured: str) -> dict[str, int]:
    """The benchmark measures both passes first, then the forward pass, then the backward pass."""
    if measured != "full":
        gated_mlp(batch, length, activation, "full")
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    config = LlamaConfig(hidden_size=4096, intermediate_size=11008, hidden_act=activation)
    dtype = torch.bfloat16
    hidden = torch.randn(batch, length, 4096, device="cuda", dtype=dtype, requires_grad=True)
    layer = LlamaMLP(config).cuda().to(dtype)
    if measured == "forward":
        return _peaks(lambda: layer(hidden))
    if measured == "backward":
        gradient = torch.randn_like(hidden)
        result = layer(hidden)
        return _peaks(lambda: result.backward(gradient, retain_graph=True))

    def step() -> None:
        result = layer(hidden)
        result.backward(torch.randn_like(result), retain_graph=True)

    return _peaks(step)


def _norm_peaks(norms: tuple[nn.Module, nn.Module], inputs: torch.Tensor) -> dict[str, int]:
    norm, _other = norms
    gradient = torch.randn_like(inputs)
    inputs.requires_grad_()
    return _peaks(lambda: norm(inputs).backward(gradient, retain_graph=True))


def layer_norm(width: int) -> dict[str, int]:
    norms = nn.LayerNorm(width, eps=1e-6).cuda(), nn.LayerNorm(width).cuda()
    return _norm_peaks(norms, torch.randn(4096, width, device="cuda"))


def rms_norm(width: int) -> dict[str, int]:
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    norms = LlamaRMSNorm(width).cuda(), LlamaRMSNorm(width).cuda()
    return _norm_peaks(norms, torch.randn(2048, width, dtype=torch.bfloat16, device="cuda"))


def kl_divergence(vocabulary: int) -> dict[str, int]:
    rows = 8 * 2048
    scores = torch.randn(rows, vocabulary, requires_grad=True, device="cuda").log_softmax(-1)
    target = torch.randn(rows, vocabulary, device="cuda").softmax(-1)

    def step() -> None:
        divergence = functional.kl_div(scores, target, reduction="batchmean")
        divergence.backward(retain_graph=True)

    return _peaks(step)
