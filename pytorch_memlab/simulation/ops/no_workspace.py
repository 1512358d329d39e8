"""Ops whose CUDA kernels are known to take nothing beside their results' memory."""

from __future__ import annotations

from typing import Any, Final

import torch

_TAKE_NOTHING: Final = frozenset(
    {
        "_conj_physical", "_convert_indices_from_coo_to_csr", "_copy_from", "_dirichlet_grad",
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", "_local_scalar_dense",
        "_pdist_forward", "_prelu_kernel", "_prelu_kernel_backward", "_reshape_alias",
        "_sparse_coo_tensor_unsafe", "_sparse_coo_tensor_with_dims_and_tensors", "_standard_gamma",
        "_standard_gamma_grad", "_unsafe_view", "_upsample_bicubic2d_aa",
        "_upsample_bicubic2d_aa_backward", "_upsample_bilinear2d_aa",
        "_upsample_bilinear2d_aa_backward", "_upsample_nearest_exact1d",
        "_upsample_nearest_exact1d_backward", "_upsample_nearest_exact2d",
        "_upsample_nearest_exact2d_backward", "_upsample_nearest_exact3d",
        "_upsample_nearest_exact3d_backward", "_weight_norm_interface",
        "_weight_norm_interface_backward", "addr", "alias_copy", "arange", "as_strided",
        "as_strided_copy", "as_strided_scatter", "bartlett_window", "bernoulli",
        "binary_cross_entropy_backward", "block_diag", "cat", "channel_shuffle", "clone", "complex",
        "constant_pad_nd", "contiguous", "detach", "detach_copy", "diag_embed", "diagonal_backward",
        "diagonal_copy", "diagonal_scatter", "elu_backward", "embedding", "empty", "empty_like",
        "empty_permuted", "empty_strided", "expand_copy", "exponential", "eye",
        "fake_quantize_per_tensor_affine_cachemask", "fill", "fill_", "flip", "floor_divide",
        "fractional_max_pool2d", "fractional_max_pool2d_backward", "fractional_max_pool3d",
        "fractional_max_pool3d_backward", "full", "full_like", "gather", "glu", "glu_backward",
        "grid_sampler_2d", "grid_sampler_2d_backward", "grid_sampler_3d",
        "grid_sampler_3d_backward", "hamming_window", "hann_window", "hardshrink_backward",
        "hardsigmoid_backward", "hardswish", "hardswish_backward", "hardtanh_backward",
        "huber_loss_backward", "index_add", "index_copy", "index_fill", "index_select",
        "leaky_relu_backward", "lift_fresh", "linalg_cross", "linspace", "log_sigmoid_backward",
        "log_sigmoid_forward", "logspace", "masked_fill", "masked_fill_", "mish_backward",
        "mse_loss_backward", "narrow_copy", "native_dropout_backward", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "normal", "normal_", "ones",
        "ones_like", "permute_copy", "pixel_shuffle", "pixel_unshuffle", "poisson", "polar", "put",
        "rand", "rand_like", "randint", "randint_like", "randn", "randn_like", "range", "repeat",
        "resize_", "resize_as_", "roll", "rot90", "rrelu_with_noise_backward", "rsub",
        "scalar_tensor", "scatter", "scatter_", "scatter_add", "scatter_add_", "select_backward",
        "select_copy", "select_scatter", "set_", "slice_backward", "slice_copy", "slice_scatter",
        "smooth_l1_loss_backward", "softplus_backward", "softshrink_backward", "split_copy",
        "squeeze_copy", "stack", "t_copy", "take", "transpose_copy", "tril", "tril_",
        "tril_indices", "triu", "triu_", "triu_indices", "unbind_copy", "unfold_backward",
        "unfold_copy", "uniform_", "unsafe_split", "unsafe_split_with_sizes", "unsqueeze_copy",
        "upsample_bicubic2d", "upsample_bicubic2d_backward", "upsample_bilinear2d",
        "upsample_bilinear2d_backward", "upsample_linear1d", "upsample_linear1d_backward",
        "upsample_nearest1d", "upsample_nearest1d_backward", "upsample_nearest2d",
        "upsample_nearest2d_backward", "upsample_nearest3d", "upsample_nearest3d_backward",
        "upsample_trilinear3d", "upsample_trilinear3d_backward", "view_copy", "zero_", "zeros",
        "zeros_like",
    }
)  # fmt: skip
"""Ops beside the elementwise ones whose CUDA kernels take nothing but their results' memory."""

_COLLECTIVES: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd"})
"""Namespaces of collectives, which take what NCCL keeps for all of them, counted for none."""


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
        or op.namespace in _COLLECTIVES
        or not any(result.alias_info is None for result in op._schema.returns)
    )


def _is_out(op: Any) -> bool:
    return any(argument.is_out for argument in op._schema.arguments)
