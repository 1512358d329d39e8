"""Generation with the book's language models: with and without a cache, eager and compiled."""

from __future__ import annotations

import importlib
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.published.inductor_of_2025 import timed_as_published

_NEW_TOKENS = 150


def generate(
    model: str,
    tokens: int,
    *,
    fast: bool = False,
    cached: bool = False,
    compiled: bool = False,
    timed: bool = False,
    batch: int = 1,
) -> None:
    """Generate once; of a compiled model that counts, and later calls take no more.

    Args:
        model: ``llama3`` or ``qwen3``.
        tokens: of the prompt.
        fast: the attention is PyTorch's.
        cached: keys and values are kept.
        compiled: the model is compiled.
        timed: the disk has the timing of the products, which another model has too.
        batch: prompts.
    """
    from llms_from_scratch import llama3, qwen3

    config = {"llama3": llama3.LLAMA32_CONFIG_1B, "qwen3": qwen3.QWEN_CONFIG_06_B}[model]
    package = "llms_from_scratch"
    if cached:
        package += ".kv_cache_batched" if batch > 1 else ".kv_cache"
    classes = importlib.import_module(f"{package}.{model}")
    make = {"llama3": "Llama3Model", "qwen3": "Qwen3Model"}[model]
    with torch.device("cuda"):
        network = getattr(classes, make + "Fast" * fast)(config)
    torch.cuda.reset_peak_memory_stats()
    if compiled:
        torch._inductor.config.shape_padding = not timed  # none of the products is worth it
        network = torch.compile(network)
    with timed_as_published() if compiled else nullcontext():
        _generate(network, config, package, tokens, cached, batch)


def _generate(
    network: Any, config: Any, package: str, tokens: int, cached: bool, batch: int
) -> None:
    prompt = torch.randint(config["vocab_size"], (batch, tokens)).cuda()
    if cached:
        cache = importlib.import_module(f"{package}.generate")
        cache.generate_text_simple(network, prompt, _NEW_TOKENS, config["context_length"])
    elif batch > 1:
        from llms_from_scratch.ch04 import generate_text_simple

        generate_text_simple(network, prompt, _NEW_TOKENS, config["context_length"])
    else:
        from llms_from_scratch.ch05 import generate

        generate(network, prompt, _NEW_TOKENS, config["context_length"], top_k=1)
