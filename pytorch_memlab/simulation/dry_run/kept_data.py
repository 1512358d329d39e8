"""The data of a program that a dry run computes with, although it is large.

See Note [What a dry run assumes].
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from typing import Final

import torch

from ..machine.op_arguments import Args
from ..machine.tensor_values import INTEGERS, TensorValues, is_small
from ..ops.core.meta_results import OutputMeta, TensorMeta, tensors_of
from ..ops.core.op_info import OpInfo

_MOST_BYTES: Final = 32 * 2**20
_MOST_BYTES_OF_INTEGERS: Final = 64 * 2**20
"""Of one tensor; integers and bools are what sizes mostly depend on."""
_MOST_BYTES_IN_ALL: Final = 128 * 2**20
_MOST_BYTES_WITH_ROUTING: Final = 2**30
"""In all, where the experts of tokens have values: each layer saves some for backward."""
_MOST_ON_GPU: Final = 2**24
"""Elements of a tensor on a GPU."""
_MOST_DRAWS: Final = 2**26
"""Random numbers, in all."""
_MOST_PRODUCTS: Final = 2**36
"""Multiplications in products of matrices, in all."""

_COPIES: Final = frozenset(f"aten::{name}" for name in ("_to_copy", "copy_", "clone"))
_PRODUCTS: Final = frozenset(
    f"aten::{name}" for name in ("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot")
)
_EXPENSIVE: Final = tuple(
    f"aten::{name}"
    for name in (
        *("_adaptive", "_addmm_activation", "_embedding_bag", "_fused", "_int_mm", "_linalg"),
        *("_scaled", "_thnn", "_trilinear", "_weight_int", "cholesky", "conv", "geqrf", "gru"),
        *("linalg", "lstm", "lu_", "max_pool", "mkldnn", "ormqr", "rnn", "slow_conv", "svd"),
        *("triangular_solve", "upsample", "_cdist", "_pdist", "cudnn"),
    )
)
"""Beginnings of the names of ops of models and of linear algebra, whose work is not bounded."""


class KeptData:
    """Chooses the ops on large tensors that are computed: Note [What a dry run assumes]."""

    def __init__(self, values: TensorValues) -> None:
        self._values = values
        self._draws = 0
        self._products = 0
        self._lock = threading.Lock()

    def keeps(
        self, info: OpInfo, output: OutputMeta, tensors: Sequence[torch.Tensor], *, on_gpu: bool
    ) -> bool:
        """True if an op whose tensors all have values is computed; its work is then counted."""
        if any(tensor.requires_grad or isinstance(tensor, _PARAMETER) for tensor in tensors):
            return False
        results = list(tensors_of(output.result))
        made = [result for result in results if result.argument < 0]
        if any(output.numel > _most_elements(output.dtype) for output in made):
            return False
        if any(tensor.numel() > _most_elements(tensor.dtype) for tensor in tensors):
            return False
        nbytes = sum(output.numel * output.dtype.itemsize for output in made)
        routing = self._values.routing
        has_choices = routing is not None and routing.choices
        most = _MOST_BYTES_WITH_ROUTING if has_choices else _MOST_BYTES_IN_ALL
        if self._values.held_bytes + nbytes > most:
            return False
        if on_gpu and not _is_cheap_on_gpu(info, results, tensors):
            return False
        if info.name.startswith(_EXPENSIVE):
            return False
        return self._has_budget(info, results, tensors)

    def hold(self, tensors: Iterable[torch.Tensor]) -> None:
        """Count the memory of results until they are freed."""
        for tensor in tensors:
            self._values.hold(tensor.untyped_storage())

    def _has_budget(
        self, info: OpInfo, results: Sequence[TensorMeta], tensors: Sequence[torch.Tensor]
    ) -> bool:
        draws = products = 0
        if info.draws:
            if info.written:
                return False  # the weights of a model
            draws = sum(result.numel for result in results)
        if info.name in _PRODUCTS:
            # The sizes of a matrix and of the other one have the inner length in common.
            products = math.prod(tensors[-1].shape) * max(math.prod(tensors[-2].shape[:-1]), 1)
        with self._lock:
            if self._draws + draws > _MOST_DRAWS or self._products + products > _MOST_PRODUCTS:
                return False
            self._draws += draws
            self._products += products
        return True


_PARAMETER: Final = torch.nn.Parameter


def _most_elements(dtype: torch.dtype) -> int:
    return (_MOST_BYTES_OF_INTEGERS if dtype in INTEGERS else _MOST_BYTES) // dtype.itemsize


def _is_cheap_on_gpu(
    info: OpInfo, results: Sequence[TensorMeta], tensors: Sequence[torch.Tensor]
) -> bool:
    """True for copies, and for ops that make few numbers, or integers, of what is not large."""
    if info.draws or info.name in _PRODUCTS:
        return False
    numels = (*(result.numel for result in results), *(tensor.numel() for tensor in tensors))
    if any(numel > _MOST_ON_GPU for numel in numels):
        return False
    if info.name in _COPIES:
        return True
    written = tensors[:1] if info.mutates_first else ()
    if not written and all(is_small(result.numel, result.dtype) for result in results):
        return True
    dtypes = {result.dtype for result in results} | {tensor.dtype for tensor in written}
    return bool(dtypes) and dtypes <= INTEGERS


def is_overwritten(values: TensorValues, info: OpInfo, args: Args) -> bool:
    """True if ``copy_`` gives a whole storage without values those of a tensor that has them."""
    if info.name != "aten::copy_" or len(args) < 2:
        return False
    target, source = args[:2]
    if target.layout is not torch.strided or source.layout is not torch.strided:
        return False
    if target.is_meta or source.is_meta or target.is_nested or source.is_nested:
        return False
    is_whole = target.numel() * target.element_size() == target.untyped_storage().nbytes()
    return (
        is_whole
        and target.is_contiguous()
        and values.is_known(source)
        and not values.is_known(target)
    )
