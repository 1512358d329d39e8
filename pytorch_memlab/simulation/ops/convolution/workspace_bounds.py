"""The most memory that cuDNN takes to convolve, where its plan is not known."""

from __future__ import annotations

import os
from math import prod
from typing import TYPE_CHECKING, Final

import torch

from ..core.op_call import FLOAT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .conv_backend import Convolution

# Note [Bounds of cuDNN's workspaces]
# cuDNN tells the workspace of a plan only where it runs. Its documentation names the algorithms
# and what each of them stores, and that gives a bound from the sizes of a call: copies of the
# operands in another layout, with channels rounded up and numbers of 32 bits, and the largest of
# what the algorithms work on: the matrix of unfolded patches (GEMM), spectra of images and filters
# (FFT), those of tiles (FFT_TILING), transformed tiles (WINOGRAD_NONFUSED), and the parts of sums
# that blocks of threads share out. The limits of each algorithm (strides, sizes) are those of
# cudnnConvolutionForward in the documentation of cuDNN 8. Two buffers of spectra are counted.
#
# Workspaces that people published lie below: 48.01 GiB for a 1x1 transposed convolution of one
# channel in half precision (pytorch/pytorch#31500), about 21 GiB for 256 filters of 3x3 over 164
# channels of 17x201 (soumith/cudnn.torch#262), 2 GB for 256 filters of 3x3 over 256 channels of
# 48x48 (rosejn/cortex#19), and the six of Note [Winograd workspace].

_CAP: Final = "CUDNN_CONV_WSCAP_DBG"
"""Environment variable of cuDNN: MiB that the workspace of a convolution may have."""

_CHANNELS: Final = 8
"""Channels are rounded up to so many where tensor cores multiply."""

_COMPLEX: Final = 8
_LARGEST_FFT: Final = 256
_LARGEST_TILED: Final = {2: 32, 3: 16}
"""Sides of the tiles of FFT_TILING, and of its largest filters, by spatial dimensions."""

_TRANSFORMED: Final = (torch.float32, torch.float16)
"""Numbers that FFT, FFT_TILING and WINOGRAD_NONFUSED take; their tensors are not channels-last."""

_WINOGRAD_FILTERS: Final = (3, 5)
_WINOGRAD_STEP: Final = 4
"""Elements of the result that a tile of WINOGRAD_NONFUSED gives, in each dimension."""

_SHARED: Final = 160 * 2 * 128 * 1024
"""Bytes of parts of sums: two waves of 128 by 256 floats for each multiprocessor of a B300.

Not those of the simulated GPU: a run of ``fit`` stands for all GPUs that decide alike.
"""


def workspace_bound(
    convolution: Convolution,
    result: torch.Tensor,  # of the forward pass, or the gradient of that
) -> int:
    """Bytes that cuDNN takes at most, in either pass. See Note [Bounds of cuDNN's workspaces]."""
    image, places = convolution.tensor, result
    if convolution.transposed:
        image, places = places, image
    batch, read = image.shape[:2]
    made = places.shape[1]
    size, taps = places.shape[2:], convolution.weight.shape[2:]
    width = max(FLOAT, image.element_size())
    filters = read // convolution.groups * made
    copies = width * (
        batch * _up(read) * prod(image.shape[2:])
        + batch * _up(made) * prod(size)
        + _up(read // convolution.groups) * _up(made) * prod(taps)
    )
    largest = width * batch * read * prod(size) * prod(taps)
    if (
        {*convolution.stride, *convolution.dilation} == {1}
        and image.dtype in _TRANSFORMED
        and convolution.layout == torch.contiguous_format
    ):
        padded = [
            length + 2 * padding
            for length, padding in zip(image.shape[2:], convolution.padding, strict=True)
        ]
        images = batch * (read + made)
        spectra = _spectra(padded, size, taps, images, filters)
        largest = max(largest, spectra, width * _winograd(size, taps, images, filters))
    products = batch * prod(size) * filters * prod(taps)
    shared = min(_SHARED, width * products)
    bound: int = copies + largest + shared
    return min(bound, _cap(bound))


def _spectra(
    padded: Sequence[int], size: Sequence[int], taps: Sequence[int], images: int, filters: int
) -> int:
    """Bytes of the spectra of whole images or of tiles, of which half is stored."""
    largest = 0
    if len(padded) == 2 and max(padded) <= _LARGEST_FFT:
        side = 1 << (max(padded) - 1).bit_length()
        largest = side * (side // 2 + 1) * (images + filters)
    side = _LARGEST_TILED.get(len(padded), 0)
    if max(taps) <= side:
        tiles = prod(-(-length // (side + 1 - tap)) for length, tap in zip(size, taps, strict=True))
        of_tile = side ** (len(padded) - 1) * (side // 2 + 1)
        largest = max(largest, of_tile * (images * tiles + filters))
    return 2 * _COMPLEX * largest


def _winograd(size: Sequence[int], taps: Sequence[int], images: int, filters: int) -> int:
    """Numbers in transformed tiles of images, results and filters."""
    if len(size) != 2 or taps[0] != taps[1] or taps[0] not in _WINOGRAD_FILTERS:
        return 0
    tiles = prod(-(-length // _WINOGRAD_STEP) for length in size)
    side = _WINOGRAD_STEP + taps[0] - 1
    return side**2 * (images * tiles + filters)


def _cap(otherwise: int) -> int:
    cap = os.environ.get(_CAP, "")
    return int(cap) << 20 if cap.isdecimal() else otherwise


def _up(channels: int) -> int:
    return -(-channels // _CHANNELS) * _CHANNELS
