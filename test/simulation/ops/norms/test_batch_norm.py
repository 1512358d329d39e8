"""Batch norm on a simulated GPU: who normalizes, what it keeps, and what it computes."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import events_of
from support.op_memory import aten, events, randn, temporaries
from torch import nn
from torch.nn import functional as F

from pytorch_memlab import simulate
from pytorch_memlab.simulation.ops.norms.batch_norm import staging_rows

HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
IMAGES = (4, 8, 6, 6)


def node_of(size, dtype=SINGLE, weights=SINGLE, **options):
    norm = (nn.BatchNorm1d if len(size) < 4 else nn.BatchNorm2d)(size[1], **options)
    tensor = torch.randn(size, device="cuda", dtype=dtype, requires_grad=True)
    return type(norm.cuda().to(weights)(tensor).grad_fn).__name__


@pytest.mark.parametrize(
    ("size", "options", "node"),
    [
        (IMAGES, {}, "CudnnBatchNormBackward0"),
        (IMAGES, {"track_running_stats": False}, "CudnnBatchNormBackward0"),
        (IMAGES, {"dtype": HALF}, "CudnnBatchNormBackward0"),
        (IMAGES, {"dtype": DOUBLE, "weights": DOUBLE}, "CudnnBatchNormBackward0"),
        ((4, 8, 6), {}, "CudnnBatchNormBackward0"),
        ((4, 8), {}, "NativeBatchNormBackward0"),
        (IMAGES, {"affine": False}, "NativeBatchNormBackward0"),
        (IMAGES, {"dtype": HALF, "weights": HALF}, "NativeBatchNormBackward0"),
        (IMAGES, {"dtype": BFLOAT}, "NativeBatchNormBackward0"),
        (IMAGES, {"dtype": BFLOAT, "weights": BFLOAT}, "NativeBatchNormBackward0"),
    ],
)
def test_who_normalizes(size, options, node):
    with simulate("1GiB"):
        assert node_of(size, **options) == node


def test_without_cudnn_pytorch_does():
    with simulate("1GiB"), torch.backends.cudnn.flags(enabled=False):
        assert node_of(IMAGES) == "NativeBatchNormBackward0"


def test_large_batches_are_not_for_cudnn():
    with simulate("1GiB", compute=False):
        norm = nn.BatchNorm1d(1).cuda()
        tensor = torch.ones(65_536, 1, 2, device="cuda", requires_grad=True)
        assert type(norm(tensor).grad_fn).__name__ == "CudnnBatchNormBackward0"
        assert type(norm.eval()(tensor).grad_fn).__name__ == "NativeBatchNormBackward0"


@pytest.mark.parametrize(
    ("dtype", "weights", "training", "statistics"),
    [
        (SINGLE, SINGLE, True, 4),
        (SINGLE, SINGLE, False, 0),
        (HALF, SINGLE, True, 4),
        (BFLOAT, BFLOAT, True, 4),
        (BFLOAT, BFLOAT, False, 4),
    ],
)
def test_statistics_are_kept_in_the_dtype_that_cuda_keeps(dtype, weights, training, statistics):
    channels = 1024
    with simulate("1GiB"):
        norm = nn.BatchNorm2d(channels).cuda().to(weights).train(training)
        tensor = torch.randn(2, channels, 4, 4, device="cuda", dtype=dtype, requires_grad=True)
        norm(tensor)
        before = torch.cuda.memory_allocated()
        result = norm(tensor)
        taken = torch.cuda.memory_allocated() - before
        assert taken == result.nbytes + 2 * channels * statistics


def reference(dtype, tensor, training, state, **options):
    norm = nn.BatchNorm2d(8, **options).to(dtype).train(training)
    norm.load_state_dict(state)
    tensor = tensor.detach().to(dtype).requires_grad_()
    result = norm(tensor)
    result.sin().sum().backward()
    return norm, tensor, result


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("enabled", [True, False])
def test_what_it_computes(training, layout, enabled):
    torch.manual_seed(0)
    state = nn.BatchNorm2d(8).state_dict()
    state = {name: torch.rand_like(value.double()) + 0.5 for name, value in state.items()}
    tensor = torch.randn(IMAGES, dtype=DOUBLE)
    norm, leaf, result = reference(DOUBLE, tensor, training, state)
    with simulate("1GiB"), torch.backends.cudnn.flags(enabled=enabled):
        other = nn.BatchNorm2d(8).double().train(training)
        other.load_state_dict(state)
        other = other.cuda()
        images = tensor.cuda().to(memory_format=layout).requires_grad_()
        found = other(images)
        assert found.is_contiguous(memory_format=layout)
        found.sin().sum().backward()
        torch.testing.assert_close(found.detach().cpu(), result.detach())
        torch.testing.assert_close(images.grad.cpu(), leaf.grad)
        for name in ("weight", "bias"):
            gradient = getattr(norm, name).grad
            torch.testing.assert_close(getattr(other, name).grad.cpu(), gradient)
        torch.testing.assert_close(other.running_mean.cpu(), norm.running_mean)
        torch.testing.assert_close(other.running_var.cpu(), norm.running_var)


def test_bfloat16_is_normalized_in_float32():
    torch.manual_seed(0)
    tensor = torch.randn(IMAGES) + 100
    norm = nn.BatchNorm2d(8)
    expected = norm(tensor.bfloat16().float())
    with simulate("1GiB"):
        found = nn.BatchNorm2d(8).bfloat16().cuda()(tensor.bfloat16().cuda())
        torch.testing.assert_close(found.cpu().float(), expected, atol=0.02, rtol=0.02)


def test_an_instance_norm_is_a_batch_norm_of_all_instances():
    with simulate("1GiB"):
        norm = nn.InstanceNorm2d(8, affine=True).cuda()
        tensor = torch.randn(IMAGES, device="cuda", requires_grad=True)
        names = []
        found = norm(tensor).grad_fn
        while found is not None:
            names.append(type(found).__name__)
            found = found.next_functions[0][0] if found.next_functions else None
        assert "CudnnBatchNormBackward0" in names


@computed_or_dry
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_pytorchs_gradient_of_the_input_lies_as_the_input(layout, compute):
    with simulate("1GiB", compute=compute), torch.backends.cudnn.flags(enabled=False):
        images = torch.ones(4, 8, 32, 32, device="cuda").to(memory_format=layout).requires_grad_()
        normed = F.batch_norm(images, None, None, training=True)
        columns = torch.ones(4, 8, 32, 32, device="cuda").transpose(2, 3)
        (gradient,) = torch.autograd.grad(normed, images, columns)
        assert gradient.stride() == images.stride()


@computed_or_dry
def test_the_gradient_of_the_input_alone_needs_no_sums_if_no_statistics_are_made(compute):
    def gradient(images, statistics):
        others = (None, statistics, statistics, None, None, False, 1e-5, [True, False, False])
        return aten.native_batch_norm_backward(images, images, *others)

    def images():
        return randn(2, 4, 3, 3).to(memory_format=torch.channels_last)

    made = (images, lambda: torch.ones(4, device="cuda"))
    assert events(gradient, *made, compute=compute) == [2 * 4 * 3 * 3 * 4]


def test_blocks_of_threads_that_share_a_channel():
    assert staging_rows(64, 10) == (1, 2)
    assert staging_rows(8 * 16 * 16, 32) == (8, 1)
    assert staging_rows(1_000_000, 64) == (128, 2)


def test_statistics_of_channels_that_lie_last_are_staged():
    with simulate("1GiB"):
        tensor = torch.randn(8 * 16 * 16, 32, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        F.batch_norm(tensor, None, None, training=True)
        beyond = torch.cuda.max_memory_allocated() - before - tensor.nbytes
        assert beyond == 2 * 512 + 4 * 32 * 8 * 4 + 512


def test_cudnns_workspace_is_named_as_unknown():
    with simulate("1GiB") as machine:
        nn.BatchNorm2d(8).cuda()(torch.randn(IMAGES, device="cuda"))
        approximations = machine.approximations[0]
        assert (
            approximations.uncounted["aten.cudnn_batch_norm.default", "cuDNN workspaces"].calls == 1
        )
        assert approximations.estimated == {}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [SINGLE, HALF, BFLOAT])
@pytest.mark.parametrize("training", [True, False])
def test_the_allocator_sees_the_same_without_arithmetic(layout, dtype, training):
    def program():
        norm = nn.BatchNorm2d(8).cuda().train(training)
        tensor = torch.randn(IMAGES, device="cuda", dtype=dtype).to(memory_format=layout)
        norm(tensor.requires_grad_()).float().pow(2).sum().backward()
        with torch.inference_mode():
            norm(tensor.detach())

    computed = events_of(program, compute=True)
    assert len(computed) > 15
    assert events_of(program, compute=False) == computed


def test_the_result_of_a_synchronized_batch_norm_is_contiguous():
    with simulate("1GiB"):
        tensor = torch.randn(7, 5, 8, 3, device="cuda").permute(3, 2, 1, 0)
        mean, invstd = torch.batch_norm_stats(tensor, 1e-5)
        result = torch.batch_norm_elemt(tensor, None, None, mean, invstd, 1e-5)
        assert result.is_contiguous()


@computed_or_dry
def test_functional_batch_norms_return_statistics_when_they_do_not_train_too(compute):
    def norm(x, weight, bias, mean, var):
        return aten._native_batch_norm_legit(x, weight, bias, mean, var, False, 0.1, 1e-5)

    channels = [lambda: randn(4)] * 4
    kept = [2 * 4 * 9 * 4, 16, 16]
    assert events(norm, lambda: randn(2, 4, 3, 3), *channels, compute=compute) == kept
    assert (
        events(
            lambda x: aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.1, 1e-5),
            lambda: randn(2, 4, 3, 3),
            compute=compute,
        )
        == kept
    )


ELEMENTS = 8 * 16 * 32 * 32
STAGED = 16 * 16 * 4
"""Bytes of one value for each of 16 channels in 16 rows of blocks of threads."""


@computed_or_dry
@pytest.mark.parametrize(
    ("dtype", "weights", "layout", "forward", "backward"),
    [
        (
            *(SINGLE, SINGLE, torch.contiguous_format),
            *([ELEMENTS * 4, 64, 64], [ELEMENTS * 4, 64, 64]),
        ),
        (HALF, SINGLE, torch.channels_last, [ELEMENTS * 2, 64, 64], [ELEMENTS * 2, 64, 64]),
        (HALF, HALF, torch.contiguous_format, [ELEMENTS * 2, 64, 64], [ELEMENTS * 2, 32, 32]),
        (BFLOAT, BFLOAT, torch.contiguous_format, [ELEMENTS * 2, 64, 64], [ELEMENTS * 2, 32, 32]),
        (
            *(BFLOAT, BFLOAT, torch.channels_last),
            [ELEMENTS * 2, 64, 64, *temporaries(4 * STAGED, 4)],
            [64, 64, 32, 32, *temporaries(2 * STAGED, 4), ELEMENTS * 2, -64, -64],
        ),
    ],
)
def test_a_batch_norm_that_updates_has_the_memory_of_the_kernels_that_run(
    dtype, weights, layout, forward, backward, compute
):
    def updated(tensor, *of_channels):
        return aten._batch_norm_with_update(tensor, *of_channels, 0.1, 1e-5)

    def gradients(result, gradient, tensor, weight):
        others = (None, None, *result[1:3], True, 1e-5, [True] * 3, result[3])
        return aten.batch_norm_backward(gradient, tensor, weight, *others)

    def images():
        return randn(8, 16, 32, 32, dtype=dtype).to(memory_format=layout)

    def channels():
        return torch.ones(16, device="cuda", dtype=weights)

    assert events(updated, images, *[channels] * 4, compute=compute) == forward
    assert (
        events(
            gradients,
            lambda: updated(images(), *(channels() for _ in range(4))),
            *(images, images, channels),
            compute=compute,
        )
        == backward
    )


@pytest.mark.parametrize("size", [IMAGES, (4, 8)])
def test_a_batch_norm_that_updates_computes_what_a_cpu_does(size):
    torch.manual_seed(0)
    made = (torch.randn(size, dtype=DOUBLE), *torch.rand(4, 8, dtype=DOUBLE))
    outs = [torch.empty(0, dtype=dtype) for dtype in (DOUBLE, DOUBLE, DOUBLE, torch.uint8)]

    def run(device):
        tensor, weight, bias, mean, var = (one.to(device, copy=True) for one in made)
        into = [out.to(device, copy=True) for out in outs]
        statistics = mean.clone(), var.clone()
        written = aten._batch_norm_with_update.out(
            *(tensor, weight, bias, *statistics, 0.1, 1e-5),
            **dict(zip(("out", "save_mean", "save_invstd", "reserve"), into, strict=True)),
        )
        leaves = [one.clone().requires_grad_() for one in (tensor, weight, bias)]
        result = aten._batch_norm_with_update(*leaves, mean, var, 0.1, 1e-5)
        result[0].sin().sum().backward()
        found = (*written, *into, *statistics, *result, mean, var, *(leaf.grad for leaf in leaves))
        return [one.detach().cpu() for one in found]

    expected = run("cpu")
    with simulate("1GiB"):
        torch.testing.assert_close(run("cuda"), expected)


@computed_or_dry
@pytest.mark.parametrize("size", [(64, 8, 32, 32), (8192, 8)])
def test_a_batch_norm_that_updates_writes_into_tensors_as_large_as_its_results(size, compute):
    with simulate("1GiB", compute=compute):
        tensor, *of_channels = (randn(*shape) for shape in (size, *[(8,)] * 4))
        outs = [randn(0) for _output in range(3)]
        reserve = torch.empty(0, device="cuda", dtype=torch.uint8)
        named = dict(zip(("out", "save_mean", "save_invstd"), outs, strict=True))
        aten._batch_norm_with_update.out(tensor, *of_channels, 0.1, 1e-5, **named, reserve=reserve)
        assert [out.shape for out in outs] == [size, (8,), (8,)]


@computed_or_dry
@pytest.mark.parametrize(
    ("size", "channels_last", "is_refused"),
    [(IMAGES, False, True), (IMAGES, True, False), ((4, 8), False, False)],
)
def test_half_weights_with_single_statistics_have_no_gradients(
    size, channels_last, is_refused, compute
):
    """PyTorch's test of FSDP2 with batch norm and mixed precision."""
    with simulate("1GiB", compute=compute):
        norm = (nn.BatchNorm2d if len(size) == 4 else nn.BatchNorm1d)(8, device="cuda")
        norm.weight.data, norm.bias.data = norm.weight.data.half(), norm.bias.data.half()
        tensor = torch.randn(size, device="cuda", dtype=HALF, requires_grad=True)
        images = tensor.to(memory_format=torch.channels_last) if channels_last else tensor
        loss = norm(images).float().sum()
        if is_refused:
            with pytest.raises(RuntimeError, match="running_mean to have type Half but got Float"):
                loss.backward()
        else:
            loss.backward()
        norm.float()
        norm(images).float().sum().backward()
        norm.half()
        norm(images).float().sum().backward()
