"""Text out of a small Llama with random weights: the cache of keys and values grows by the token.

It runs on a GPU as it is. Without one:

    pytorch-memlab run -f generate examples/generate.py
    pytorch-memlab run --dry-run -f generate examples/generate.py --tokens 64 --sample

It needs ``transformers``; nothing is downloaded.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def generate(tokens: int = 16, sample: bool = False) -> None:
    """Go on with two random texts.

    Args:
        tokens: that each text gets.
        sample: draw them by their probability, in place of the likeliest.
    """
    config = LlamaConfig(
        vocab_size=500, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, eos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config).cuda().eval()
    texts = torch.randint(0, 500, (2, 8), device="cuda")
    longer = model.generate(
        texts,
        attention_mask=torch.ones_like(texts),
        max_new_tokens=tokens,
        do_sample=sample,
        pad_token_id=0,
    )
    print(tuple(longer.shape))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Generate text with a Llama.")
    parser.add_argument("--tokens", type=int, default=16, help="that each text gets")
    parser.add_argument("--sample", action="store_true", help="draw tokens by their probability")
    generate(**vars(parser.parse_args()))
