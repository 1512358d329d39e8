"""Sampling: random numbers drawn first, copies of distributions, and the sort of ``randperm``."""

from __future__ import annotations

from math import ceil, log, log2
from typing import TYPE_CHECKING, Final

import torch

from .. import cub
from ..memory_model import Basis, Entry
from ..reduction_workspace import stage_columns, stage_indices, stage_pairs, stage_sum
from ..reductions.scans import scan_row
from ..sorting.sorting import take_largest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..op_call import Launch

_DUPLICATES: Final = 0.9
"""Least probability that ``randperm`` asks of its keys to be all distinct."""


def multinomial(launch: Launch) -> None:
    """``multinomial``: the largest of random quotients, or with replacement a search in sums.

    The rules are those of ``aten/src/ATen/native/Distributions.cpp``.
    """
    source: torch.Tensor = launch.args[0]
    samples: int = launch.args[1]
    if not launch.result.numel():
        return
    if samples == 1 or not launch.argument(2, "replacement", False):
        _check(launch, source)
        _race(launch, source, samples)
        return
    for _distribution_normalized_and_sums in range(3):
        launch.copy(source)
    if source.dim() == 1 or source.shape[0] == 1:
        scan_row(launch, source.numel(), source.dtype)


def _check(launch: Launch, source: torch.Tensor) -> None:
    """Take the extremes of a distribution, and what is true of them and of its sums."""
    for _smallest_and_largest in range(2):
        launch.borrow(source.element_size())
    stage_pairs(launch, source)
    comparisons = [launch.borrow(1) for _ in range(2)]
    launch.borrow(1)
    for comparison in reversed(comparisons):
        launch.give_back(comparison)
    rows = 1 if source.dim() == 1 else source.shape[0]
    sums = launch.borrow(rows * source.element_size())
    stage_sum(launch, source, None if source.dim() == 1 else 1)
    zeros = launch.borrow(rows)
    if source.dim() > 1:
        launch.borrow(1)
        stage_columns(launch, rows, 1, torch.bool)
        launch.give_back(zeros)
    launch.give_back(sums)
    launch.pass_by(1)


def _race(launch: Launch, source: torch.Tensor, samples: int) -> None:
    """Take the quotients, and what finds the largest of them."""
    launch.copy(source)
    if samples == 1:
        stage_indices(launch, source, source.dim() - 1)
        return
    launch.borrow(launch.result.numel() * source.element_size())
    take_largest(launch, source, source.dim() - 1, samples)


def randperm(launch: Launch) -> None:
    """``randperm``: numbers in order, and random keys that they are sorted by."""
    count: int = launch.args[0]
    width = launch.result.element_size()
    if not count:
        return
    launch.borrow(count * width)
    bits = min(64, ceil(log2(count - (6 * count**2 + 1) / (12 * log(_DUPLICATES)))))
    key = 4 if bits <= 32 else 8
    for _keys_and_sorted_keys in range(2):
        launch.borrow(count * key)
    launch.borrow(cub.radix_sort(launch.gpu.model, count, key, width, bits=bits))


def dirichlet(launch: Launch) -> None:
    """``_sample_dirichlet``: the sums that samples are divided by."""
    samples: torch.Tensor = launch.result
    if samples.numel():
        launch.borrow(samples.numel() // samples.shape[-1] * samples.element_size())
        stage_sum(launch, samples, -1)


def leak(launch: Launch) -> None:
    """``rrelu_with_noise`` of training: contiguous inputs."""
    if launch.argument(4, "training", False):
        launch.contiguous(*launch.args[:2])


_DISTRIBUTIONS: Final = "aten/src/ATen/native/Distributions.cpp, cuda/MultinomialKernel.cu"
_PERMUTATION: Final = "aten/src/ATen/native/cuda/Randperm.cu"

ENTRIES: Final[Mapping[str, Entry]] = {
    "aten::multinomial": Entry(multinomial, _DISTRIBUTIONS, Basis.ESTIMATE),
    "aten::rrelu_with_noise": Entry(
        leak, "aten/src/ATen/native/cuda/RreluWithNoise.cu", Basis.SOURCE
    ),
    "aten::_sample_dirichlet": Entry(
        dirichlet, "aten/src/ATen/native/cuda/Distributions.cpp", Basis.SOURCE
    ),
    "aten::randperm": Entry(randperm, _PERMUTATION, Basis.ESTIMATE),
    "aten::randperm.generator": Entry(randperm, _PERMUTATION, Basis.ESTIMATE),
}
