"""The ops that ``torch.autocast("cuda")`` casts: the lists of PyTorch 2.13.

They are those of ``aten/src/ATen/autocast_mode.h`` and ``autocast_mode.cpp``, and of the
documentation's "CUDA Ops that can autocast to float16" and the sections after it. An op that the
installed PyTorch does not have, or does not cast, is left out when the lists are put in force.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

LOWER_PRECISION: Final = frozenset(
    [
        "_convolution",
        "_convolution.deprecated",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_tbc",
        "conv_transpose1d",
        "conv_transpose2d.input",
        "conv_transpose3d.input",
        "convolution",
        "cudnn_convolution",
        "cudnn_convolution_transpose",
        "prelu",
        "addmm",
        "addmv",
        "addr",
        "matmul",
        "einsum",
        "mm",
        "mv",
        "linalg_vecdot",
        "linear",
        "addbmm",
        "baddbmm",
        "bmm",
        "chain_matmul",
        "linalg_multi_dot",
        "_thnn_fused_lstm_cell",
        "_thnn_fused_gru_cell",
        "lstm_cell",
        "gru_cell",
        "rnn_tanh_cell",
        "rnn_relu_cell",
        "_scaled_dot_product_flash_attention",
        "scaled_dot_product_attention",
    ]
)
"""Ops whose operands are cast to autocast's dtype; casts of fp32 leaves are cached."""

FP32: Final = frozenset(
    [
        "acos",
        "asin",
        "cosh",
        "erfinv",
        "exp",
        "expm1",
        "log",
        "log10",
        "log2",
        "log1p",
        "reciprocal",
        "rsqrt",
        "sinh",
        "tan",
        "pow.Tensor_Scalar",
        "pow.Tensor_Tensor",
        "pow.Scalar",
        "softplus",
        "layer_norm",
        "native_layer_norm",
        "rms_norm",
        "group_norm",
        "frobenius_norm.dim",
        "nuclear_norm",
        "nuclear_norm.dim",
        "cosine_similarity",
        "poisson_nll_loss",
        "cosine_embedding_loss",
        "nll_loss",
        "nll_loss2d",
        "hinge_embedding_loss",
        "kl_div",
        "l1_loss",
        "smooth_l1_loss",
        "huber_loss",
        "mse_loss",
        "margin_ranking_loss",
        "multilabel_margin_loss",
        "soft_margin_loss",
        "triplet_margin_loss",
        "multi_margin_loss",
        "binary_cross_entropy_with_logits",
        "dist",
        "pdist",
        "cdist",
        "renorm",
        "logsumexp",
        "upsample_nearest1d",
        "_upsample_nearest_exact1d",
        "upsample_nearest2d",
        "_upsample_nearest_exact2d",
        "upsample_nearest3d",
        "_upsample_nearest_exact3d",
        "upsample_linear1d",
        "upsample_bilinear2d",
        "_upsample_bilinear2d_aa",
        "upsample_trilinear3d",
        "upsample_bicubic2d",
        "_upsample_bicubic2d_aa",
    ]
)
"""Ops whose operands are cast to float32."""

FP32_SET_OPT_DTYPE: Final = frozenset(
    [
        "prod",
        "prod.dim_int",
        "softmax.int",
        "log_softmax.int",
        "cumprod",
        "cumsum",
        "linalg_vector_norm",
        "linalg_matrix_norm",
        "linalg_matrix_norm.str_ord",
        "sum",
        "sum.dim_IntList",
    ]
)
"""Ops that return float32, unless the program names a dtype."""

FP32_APPEND_DTYPE: Final[Mapping[str, str]] = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
}
"""Ops replaced by the overload that takes a dtype (float32)."""

PROMOTE: Final = frozenset(
    [
        "addcdiv",
        "addcmul",
        "atan2",
        "bilinear",
        "cross",
        "dot",
        "vdot",
        "grid_sampler",
        "index_put",
        "tensordot",
        "scatter_add",
    ]
)
"""Ops whose operands are cast to the widest dtype among them."""

RECURRENT: Final = frozenset({"_cudnn_rnn"})
"""cuDNN's recurrent networks, whose weights are cast into one buffer at each call."""

RECURRENT_COMPOSITE: Final = frozenset(
    f"{name}.{overload}"
    for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")
    for overload in ("input", "data")
)
"""Whole recurrent networks: not cast themselves, but made of ops that are, in inference too."""

BANNED: Final = frozenset({"binary_cross_entropy"})
"""Ops that raise an error."""
