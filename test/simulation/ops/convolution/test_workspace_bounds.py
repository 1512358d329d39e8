"""The most that cuDNN takes to convolve, beside what others measured and what is written down."""

from __future__ import annotations

import pytest
import torch
from support.op_memory import randn
from torch.nn import functional as F

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.ops.convolution.conv_backend import convolution_of
from pytorch_memlab.simulation.ops.convolution.workspace_bounds import workspace_bound

GIB = 1 << 30
PARTS = 40 << 20  # bytes of parts of sums at most


def bound(size, weight, dtype=torch.float32, *, transposed=False, **options):
    """The bound of a convolution of tensors on the meta device."""
    layout = options.pop("memory_format", torch.contiguous_format)
    tensor, filters = (
        torch.empty(one, dtype=dtype, device="meta", memory_format=layout) for one in (size, weight)
    )
    spatial = len(size) - 2
    named = {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0, "groups": 1} | options
    groups = named.pop("groups")
    sizes = {name: (value,) * spatial for name, value in named.items()}
    convolution = convolution_of(
        tensor,
        filters,
        sizes["stride"],
        sizes["padding"],
        sizes["dilation"],
        transposed,
        sizes["output_padding"],
        groups,
    )
    result = torch.ops.aten.convolution.default(
        tensor, filters, None, *sizes_of(sizes), transposed, sizes["output_padding"], groups
    )
    return workspace_bound(convolution, result.unsqueeze(2) if spatial == 1 else result)


def sizes_of(sizes):
    return sizes["stride"], sizes["padding"], sizes["dilation"]


@pytest.mark.parametrize(
    ("published", "call", "options"),
    [
        # https://github.com/pytorch/pytorch/issues/31500
        (
            int(48.01 * GIB),
            ((1024, 1, 1024, 1024), (1, 1, 1, 1), torch.float16),
            {"transposed": True},
        ),
        # https://github.com/soumith/cudnn.torch/issues/262: "about 21 GiB"
        (int(20.5 * GIB), ((1, 164, 17, 201), (256, 164, 3, 3)), {}),
        # https://github.com/rosejn/cortex/issues/19: 2 GB
        (2 * 10**9, ((1, 256, 48, 48), (256, 256, 3, 3)), {"padding": 1}),
    ],
)
def test_workspaces_that_people_published_lie_below(published, call, options):
    assert published <= bound(*call, **options) < 2 * published


@pytest.mark.parametrize(
    ("channels", "recorded"),
    [
        ((30, 16), 82_880),
        ((16, 32), 51_328),
        ((32, 64), 205_056),
        ((64, 32), 204_928),
        ((32, 16), 84_032),
        ((16, 30), 50_168),
    ],
)
@pytest.mark.parametrize("side", [7, 32])
def test_recorded_workspaces_lie_below(channels, recorded, side):
    read, made = channels
    assert recorded <= bound((1, read, side, side), (made, read, 3, 3), padding=1)


def test_with_strides_it_is_copies_unfolded_patches_and_parts_of_sums():
    copies = 4 * (2 * 16 * 8 * 8 + 2 * 24 * 3 * 3 + 16 * 24 * 3 * 3)
    patches = 4 * 2 * 16 * 3 * 3 * (3 * 3)
    sums = 4 * (2 * 3 * 3) * (16 * 24) * (3 * 3)  # fewer than parts of all multiprocessors
    found = bound((2, 16, 8, 8), (24, 16, 3, 3), stride=2)
    assert found == copies + patches + sums


def test_half_precision_is_copied_as_single_with_channels_rounded_up():
    small = bound((64, 3, 32, 32), (5, 3, 4, 4), torch.bfloat16, stride=4)
    copies = 4 * (64 * 8 * 32 * 32 + 64 * 8 * 8 * 8 + 8 * 8 * 4 * 4)
    patches = 4 * 64 * 3 * 8 * 8 * 4 * 4
    assert small == copies + patches + 4 * 64 * 8 * 8 * (3 * 5) * 4 * 4


def test_spectra_of_images_are_those_of_the_next_power_of_two():
    size, weight = (1, 64, 20, 20), (64, 64, 3, 3)
    copies = 4 * (64 * 20 * 20 + 64 * 18 * 18 + 64 * 64 * 9)
    spectra = 2 * 8 * 32 * 17 * (64 + 64 + 64 * 64)
    sums = PARTS
    assert bound(size, weight) == copies + spectra + sums
    last = bound(size, weight, memory_format=torch.channels_last)
    assert last == copies + 4 * 64 * 9 * 18 * 18 + sums  # no spectra: unfolded patches


def test_large_images_are_transformed_in_tiles():
    size, weight = (1, 8, 300, 300), (8, 8, 3, 3)
    tiles = 10 * 10  # 298 elements of a side, 30 from each tile of 32
    spectra = 2 * 8 * 32 * 17 * (tiles * 16 + 64)
    copies = 4 * (8 * 300 * 300 + 8 * 298 * 298 + 8 * 8 * 9)
    patches = 4 * 8 * 9 * 298 * 298
    assert patches > spectra
    assert bound(size, weight) == copies + patches + PARTS
    with_depth = bound((1, 64, 8, 64, 64), (64, 64, 3, 3, 3))
    tiles = 1 * 5 * 5  # 6 by 62 by 62 elements, 14 from each side of a tile of 16
    spectra = 2 * 8 * 16 * 16 * 9 * (tiles * 128 + 64 * 64)
    copies = 4 * (64 * 8 * 64 * 64 + 64 * 6 * 62 * 62 + 64 * 64 * 27)
    assert with_depth == copies + spectra + PARTS


def test_a_line_of_elements_is_a_plane_of_one_row():
    assert bound((2, 16, 64), (16, 16, 3)) == bound((2, 16, 1, 64), (16, 16, 1, 3))


def test_the_cap_of_cudnn_holds(monkeypatch):
    monkeypatch.setenv("CUDNN_CONV_WSCAP_DBG", "64")
    assert bound((1, 256, 48, 48), (256, 256, 3, 3), padding=1) == 64 << 20
    monkeypatch.setenv("CUDNN_CONV_WSCAP_DBG", "much")
    assert bound((1, 256, 48, 48), (256, 256, 3, 3), padding=1) > 2 * 10**9


def test_the_peak_is_at_most_what_is_in_use_with_the_workspace():
    with simulate("a100", compute=False) as machine:
        image, weight = randn(32, 64, 56, 56), randn(128, 64, 3, 3)
        made = F.conv2d(image, weight)
        active = torch.cuda.memory_stats()["active_bytes.all.current"]
        most = bound(image.shape, weight.shape)
        del made
        [gpu] = machine.gpus
        assert gpu.peak_share()[0] == active
        assert gpu.peak_at_most() == active + most
        [count] = machine.approximations[0].uncounted.values()
        assert (count.calls, count.at_most, count.gives_way) == (1, most, True)


def test_no_workspace_is_larger_than_the_room():
    with simulate("1GiB", compute=False) as machine:
        F.conv2d(randn(8, 256, 48, 48), randn(256, 256, 3, 3), padding=1)
        [gpu] = machine.gpus
        assert gpu.peak_at_most() == 1 << 30


@pytest.mark.parametrize(
    ("options", "is_known"),
    [
        ({}, True),
        ({"padding": 1}, False),
        ({"stride": 2}, False),
        ({"groups": 2}, False),
        ({"dtype": torch.float16}, False),
    ],
)
def test_a_convolution_that_is_a_product_takes_none(options, is_known):
    dtype = options.pop("dtype", torch.float32)
    groups = options.get("groups", 1)
    with simulate("a100", compute=False) as machine:
        F.conv2d(
            randn(4, 16, 8, 8, dtype=dtype), randn(32, 16 // groups, 1, 1, dtype=dtype), **options
        )
        assert (not machine.approximations[0].uncounted) is is_known
