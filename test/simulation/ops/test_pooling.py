"""Temporaries of pooling of images and volumes."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.op_memory import aten, events, indices, randn, temporaries
from torch.nn import functional

from pytorch_memlab.simulation import simulate

pytestmark = pytest.mark.usefixtures("no_values_in_dry_runs")


def channels_last(*shape):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return randn(*shape).to(memory_format=formats[len(shape)])


@computed_or_dry
def test_the_largest_of_images_that_lie_channels_last_are_written_as_rows_first(compute):
    def pool(x):
        return functional.adaptive_max_pool2d(x, 2, return_indices=True)

    results = [2 * 4 * 4 * 4, 2 * 4 * 4 * 8]
    assert events(pool, lambda: randn(2, 4, 8, 8), compute=compute) == results
    copies = [*results, 2 * 4 * 64 * 4]
    assert events(pool, lambda: channels_last(2, 4, 8, 8), compute=compute) == [
        *results,
        *temporaries(*copies),
    ]
    sliced = events(pool, lambda: randn(2, 4, 8, 16)[..., ::2], compute=compute)
    assert sliced == [*results, *temporaries(2 * 4 * 64 * 4)]
    # A single image is read by its strides.
    assert events(pool, lambda: randn(4, 8, 16)[..., ::2], compute=compute) == [64, 128]


@computed_or_dry
def test_the_gradient_of_the_largest_copies_what_does_not_lie_in_rows(compute):
    def gradient(g, x, i):
        return aten.adaptive_max_pool2d_backward(g, x, i)

    def place():
        return indices(2, 4, 2, 2)

    size, small = 2 * 4 * 64 * 4, 2 * 4 * 4 * 4
    rows = [lambda: randn(2, 4, 2, 2), lambda: randn(2, 4, 8, 8), place]
    assert events(gradient, *rows, compute=compute) == [size]
    apart = [
        lambda: channels_last(2, 4, 2, 2),
        lambda: channels_last(2, 4, 8, 8),
        lambda: place().to(memory_format=torch.channels_last),
    ]
    found = events(gradient, *apart, compute=compute)
    assert found == [size, *temporaries(small, 2 * small, size)]


@computed_or_dry
@pytest.mark.parametrize(
    ("pool", "first"),
    [
        (lambda x: functional.adaptive_avg_pool3d(x, 2), True),
        (lambda x: functional.adaptive_max_pool3d(x, 2, return_indices=True), False),
    ],
)
def test_a_batch_of_volumes_is_copied_and_a_volume_is_not(pool, first, compute):
    results = events(pool, lambda: randn(2, 4, 4, 4, 4), compute=compute)
    copy = 2 * 4 * 64 * 4
    found = events(pool, lambda: channels_last(2, 4, 4, 4, 4), compute=compute)
    assert found == ([copy, *results, -copy] if first else [*results, copy, -copy])
    single = events(pool, lambda: randn(4, 4, 4, 8)[..., ::2], compute=compute)
    assert single == [nbytes // 2 for nbytes in results]


@computed_or_dry
def test_averages_of_volumes_and_their_gradients_copy_what_they_read(compute):
    def pool(x):
        return functional.avg_pool3d(x, 2)

    size, small = 2 * 4 * 64 * 4, 2 * 4 * 8 * 4
    assert events(pool, lambda: randn(2, 4, 4, 4, 4), compute=compute) == [small]
    found = events(pool, lambda: channels_last(2, 4, 4, 4, 4), compute=compute)
    assert found == [small, size, -size]
    gradients = (
        lambda g, x, _: aten.avg_pool3d_backward(g, x, [2], [2], [0], False, True, None),
        lambda g, x, _: aten._adaptive_avg_pool3d_backward(g, x),
        aten.adaptive_max_pool3d_backward,
    )
    others = [lambda: randn(2, 4, 4, 4, 4), lambda: indices(2, 4, 2, 2, 2)]
    for gradient in gradients:
        make = [lambda: channels_last(2, 4, 2, 2, 2), *others]
        assert events(gradient, *make, compute=compute) == [size, small, -small]
        plain = [lambda: randn(2, 4, 2, 2, 2), *others]
        assert events(gradient, *plain, compute=compute) == [size]


@computed_or_dry
def test_unpooling_copies_before_its_result(compute):
    def unpool(x, i):
        return functional.max_unpool2d(x, i, 2)

    result, values, places = 4 * 16 * 4, 4 * 4 * 4, 4 * 4 * 8
    rows = [lambda: randn(1, 4, 2, 2), lambda: indices(1, 4, 2, 2)]
    assert events(unpool, *rows, compute=compute) == [result]
    apart = [lambda: randn(1, 4, 2, 4)[..., ::2], lambda: indices(1, 4, 2, 4)[..., ::2]]
    found = events(unpool, *apart, compute=compute)
    assert found == [values, places, result, -places, -values]


@computed_or_dry
def test_fractional_pools_read_what_they_get(compute):
    def pool(x, samples):
        return functional.fractional_max_pool2d_with_indices(x, 2, 4, _random_samples=samples)

    make = [lambda: randn(2, 4, 8, 16)[..., ::2], lambda: randn(2, 4, 2).sigmoid()]
    assert events(pool, *make, compute=compute) == [2 * 4 * 16 * 4, 2 * 4 * 16 * 8]

    def gradient(g, x, places):
        return aten.fractional_max_pool3d_backward(g, x, [2, 2, 2], [2, 2, 2], places)

    volumes = [lambda: randn(1, 4, 2, 2, 2), lambda: randn(1, 4, 4, 4, 4)]
    places = lambda: indices(1, 4, 2, 2, 2)  # noqa: E731
    assert events(gradient, *volumes, places, compute=compute) == [4 * 64 * 4]


def test_pooling_copies_what_lies_in_no_format():
    pool = lambda x: torch.nn.functional.max_pool2d(x, 2, return_indices=True)  # noqa: E731
    results = [2 * 4 * 4 * 4 * 4, 2 * 4 * 4 * 4 * 8]
    assert events(pool, lambda: randn(2, 4, 8, 8)) == results
    sliced = events(pool, lambda: randn(2, 4, 8, 16)[..., ::2])
    assert sliced == [*results, 2048, -2048]
    last = lambda: randn(2, 4, 8, 8).to(memory_format=torch.channels_last)  # noqa: E731
    assert events(pool, last) == results


@computed_or_dry
def test_blocks_of_an_image_begin_in_as_much_as_the_image_has(compute):
    def unfold(x, **options):
        return functional.unfold(x, 2, **options)

    image = [lambda: randn(2, 3, 5, 5)]  # 600 bytes
    grown = 2 * 12 * 16 * 4
    assert events(unfold, *image, compute=compute) == [600, grown, -600]
    # Blocks that need less keep what they began in.
    assert events(lambda x: unfold(x, stride=2), *image, compute=compute) == [600]
    sliced = [lambda: randn(2, 3, 5, 10)[..., ::2]]
    assert events(unfold, *sliced, compute=compute) == [600, 600, grown, -600, -600]
    folded = events(
        lambda x: functional.fold(x, (5, 5), 2), lambda: randn(2, 12, 16), compute=compute
    )
    assert folded == [grown]


@computed_or_dry
def test_unpooled_images_are_contiguous(compute):
    with simulate("a100", compute=compute):
        for shape, unpool in (
            ((2, 4, 3, 3), functional.max_unpool2d),
            ((2, 4, 3, 3, 3), functional.max_unpool3d),
        ):
            dims = len(shape) - 2
            places = torch.arange(3**dims, device="cuda").mul_(2**dims).view(shape[2:])
            image = channels_last(*shape)
            assert unpool(image, places.expand(shape), 2).is_contiguous()
