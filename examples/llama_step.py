"""One training step of a Llama in bfloat16: AdamW, activation checkpointing, 1 x 2048 tokens.

It runs on a GPU as it is. Without one, or for a size that no GPU holds, nothing is computed and
the tables are the same, given enough simulated memory:

    pytorch-memlab run --dry-run --gpu 4TiB -f step examples/llama_step.py 405b

It needs ``transformers``; the weights are random.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SIZES = {
    "tiny": {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512,
    },
    "7b": {
        "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000,
    },
    "70b": {
        "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
        "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 32000,
    },
    "405b": {
        "hidden_size": 16384, "intermediate_size": 53248, "num_hidden_layers": 126,
        "num_attention_heads": 128, "num_key_value_heads": 8, "vocab_size": 128256,
    },
}  # fmt: skip


def step(size: str, batch: int, length: int) -> None:
    """Build a model, and train it for one step.

    Args:
        size: a key of ``SIZES``.
        batch: sequences in the batch.
        length: tokens of a sequence.
    """
    config = LlamaConfig(**SIZES[size], use_cache=False, dtype="bfloat16")
    torch.set_default_dtype(torch.bfloat16)
    model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model = model.cuda()
    model.gradient_checkpointing_enable()
    model.train()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, config.vocab_size, (batch, length), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="One training step of a Llama.")
    parser.add_argument("size", nargs="?", default="7b", choices=SIZES)
    parser.add_argument("--batch", type=int, default=1, help="sequences in the batch")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a sequence")
    options = parser.parse_args()
    step(options.size, options.batch, options.length)
    print(f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at most")
