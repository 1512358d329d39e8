"""Ops whose CUDA kernels are known to take nothing beside their results' memory."""

from __future__ import annotations

from typing import Any, Final

import torch

_TAKE_NOTHING: Final = frozenset(
    {
        "_conj_physical", "_copy_from", "_local_scalar_dense", "_prelu_kernel",
        "_prelu_kernel_backward", "_reshape_alias", "_sparse_coo_tensor_unsafe",
        "_sparse_coo_tensor_with_dims_and_tensors", "_unsafe_view", "_upsample_bicubic2d_aa",
        "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa",
        "_upsample_bilinear2d_aa_backward", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d",
        "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d",
        "_upsample_nearest_exact3d_backward", "arange", "as_strided", "bernoulli",
        "binary_cross_entropy_backward", "block_diag", "cat", "clone", "complex", "constant_pad_nd",
        "contiguous", "detach", "diagonal_backward", "elu_backward", "embedding", "empty",
        "empty_like", "empty_strided", "exponential", "eye", "fill_", "flip", "floor_divide",
        "full", "full_like", "gather", "glu", "glu_backward", "grid_sampler_2d",
        "grid_sampler_2d_backward", "grid_sampler_3d", "grid_sampler_3d_backward",
        "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh_backward",
        "huber_loss_backward", "index_add", "index_copy", "index_fill", "index_select",
        "leaky_relu_backward",
        "lift_fresh", "linalg_cross", "linspace", "log_sigmoid_backward", "log_sigmoid_forward",
        "logspace", "masked_fill", "masked_fill_", "mish_backward", "mse_loss_backward",
        "native_dropout_backward", "new_empty", "new_empty_strided", "new_full", "new_ones",
        "new_zeros", "normal", "normal_", "ones", "ones_like", "pixel_shuffle", "pixel_unshuffle",
        "poisson", "polar", "put", "rand", "rand_like", "randint", "randn", "randn_like", "range",
        "repeat", "resize_", "resize_as_", "roll", "rot90", "rrelu_with_noise", "scalar_tensor",
        "scatter", "scatter_", "scatter_add", "scatter_add_", "select_backward", "set_",
        "slice_backward", "smooth_l1_loss_backward", "softplus_backward", "stack", "take", "tril",
        "tril_", "tril_indices", "triu", "triu_", "triu_indices", "unfold_backward", "uniform_",
        "unsafe_split", "unsafe_split_with_sizes", "upsample_bicubic2d",
        "upsample_bicubic2d_backward", "upsample_bilinear2d", "upsample_bilinear2d_backward",
        "upsample_linear1d", "upsample_linear1d_backward", "upsample_nearest1d",
        "upsample_nearest1d_backward", "upsample_nearest2d", "upsample_nearest2d_backward",
        "upsample_nearest3d", "upsample_nearest3d_backward", "upsample_trilinear3d",
        "upsample_trilinear3d_backward", "zero_", "zeros", "zeros_like",
    }
)  # fmt: skip
"""Ops beside the elementwise ones whose CUDA kernels take nothing but their results' memory."""


def takes_nothing(op: Any) -> bool:
    """Whether an op's kernels are known to take nothing but their results' memory.

    Args:
        op: a ``torch._ops.OpOverload``.

    Returns:
        whether it is a view, elementwise, or one that makes or moves data; one that writes to
        ``out=`` is what the op that makes its result is.
    """
    if _is_out(op):
        packet = op.overloadpacket
        overloads = (getattr(packet, overload) for overload in packet.overloads())
        return any(takes_nothing(one) for one in overloads if not _is_out(one))
    name = op._schema.name.removeprefix("aten::")
    return (
        torch.Tag.pointwise in op.tags
        or name in _TAKE_NOTHING
        or name.startswith("_foreach_")
        or not any(result.alias_info is None for result in op._schema.returns)
    )


def _is_out(op: Any) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)
