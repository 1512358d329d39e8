"""Training of Llama 3 8B in bfloat16 with torchtitan, the baseline of torchao's recipes."""

from benchmarks.published.torchtitan.program import train

__all__ = ["train"]
