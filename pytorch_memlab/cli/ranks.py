"""One process of several that ``torchrun`` started: what commands ask of it."""

from pytorch_memlab._common.ranks import path_of_rank, prints

__all__ = ["path_of_rank", "prints"]
