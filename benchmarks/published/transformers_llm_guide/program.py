"""Generation with OctoCoder, with its weights in bfloat16."""

from __future__ import annotations

import torch


def generate(prompt: int, new: int) -> None:
    """Tokens after a prompt, with the default settings of ``generate``."""
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = GPTBigCodeConfig(
        vocab_size=49152,
        n_positions=8192,
        n_embd=6144,
        n_layer=40,
        n_head=48,
        n_inner=24576,
        activation_function="gelu_pytorch_tanh",
        multi_query=True,
    )
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = GPTBigCodeForCausalLM(config).eval()
        tokens = torch.randint(49152, (1, prompt))
    torch.cuda.reset_peak_memory_stats()  # an output layer was made and then shared
    model.generate(tokens, max_new_tokens=new, min_new_tokens=new, do_sample=False)
