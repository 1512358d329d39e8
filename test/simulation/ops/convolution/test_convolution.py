"""Convolutions on a simulated GPU: who convolves, in which format, and what it takes."""

from __future__ import annotations

import pytest
import torch
from support.dry_run_comparison import allocator_events, events_of
from torch import nn
from torch.nn import functional as F

from pytorch_memlab import simulate
from pytorch_memlab.simulation.ops.convolution.conv_backend import (
    ConvolutionBackend,
    convolution_of,
)

CONTIGUOUS, LAST, LAST_3D = torch.contiguous_format, torch.channels_last, torch.channels_last_3d
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64


def images(size, dtype=SINGLE, layout=CONTIGUOUS):
    return torch.randn(size, device="cuda", dtype=dtype).to(memory_format=layout)


@pytest.mark.parametrize(
    ("size", "weight", "options", "backend"),
    [
        ((2, 8, 9, 9), (4, 8, 3, 3), {}, ConvolutionBackend.CUDNN),
        ((2, 8, 9), (4, 8, 3), {}, ConvolutionBackend.CUDNN),
        ((2, 8, 9, 9), (8, 4, 3, 3), {"transposed": True}, ConvolutionBackend.CUDNN),
        (
            (2, 8, 9, 9),
            (8, 4, 3, 3),
            {"transposed": True, "output_padding": (1, 1)},
            ConvolutionBackend.COLUMNS,
        ),
        ((2, 8, 9, 9), (8, 1, 3, 3), {"groups": 8}, ConvolutionBackend.DEPTHWISE),
        ((2, 8, 9, 9), (16, 1, 3, 3), {"groups": 8}, ConvolutionBackend.DEPTHWISE),
        ((2, 8, 9, 9), (8, 1, 3, 3), {"groups": 8, "layout": LAST}, ConvolutionBackend.CUDNN),
        ((2, 64, 9, 9), (64, 1, 3, 3), {"groups": 64, "dtype": HALF}, ConvolutionBackend.CUDNN),
        ((2, 16, 9, 9), (16, 1, 3, 3), {"groups": 16, "dtype": HALF}, ConvolutionBackend.DEPTHWISE),
        ((2, 64, 9, 9), (64, 1, 7, 7), {"groups": 64, "dtype": HALF}, ConvolutionBackend.DEPTHWISE),
        ((2, 8, 9, 9), (4, 4, 3, 3), {"groups": 2}, ConvolutionBackend.CUDNN),
        ((0, 8, 9, 9), (4, 8, 3, 3), {}, ConvolutionBackend.EMPTY),
    ],
)
def test_who_convolves(size, weight, options, backend):
    dtype = options.pop("dtype", SINGLE)
    layout = options.pop("layout", CONTIGUOUS)
    tensor = torch.empty(size, dtype=dtype).to(memory_format=layout)
    given = {"transposed": False, "output_padding": (0,), "groups": 1} | options
    found = convolution_of(tensor, torch.empty(weight, dtype=dtype), (1,), (0,), (1,), **given)
    assert found.backend() is backend


def test_without_cudnn_patches_are_unfolded():
    with torch.backends.cudnn.flags(enabled=False):
        found = convolution_of(
            torch.empty(2, 8, 9, 9), torch.empty(4, 8, 3, 3), (1,), (0,), (1,), False, (0,), 1
        )
        assert found.backend() is ConvolutionBackend.COLUMNS


@pytest.mark.parametrize("of_input", [CONTIGUOUS, LAST])
@pytest.mark.parametrize("of_weight", [CONTIGUOUS, LAST])
@pytest.mark.parametrize("dtype", [SINGLE, DOUBLE])
def test_channels_last_of_either_come_out_last(of_input, of_weight, dtype):
    with simulate("1GiB"):
        layer = nn.Conv2d(8, 16, 3).cuda().to(dtype).to(memory_format=of_weight)
        result = layer(images((2, 8, 9, 9), dtype, of_input))
        is_last = dtype is SINGLE and LAST in (of_input, of_weight)
        assert result.is_contiguous(memory_format=LAST) is is_last
        assert result.is_contiguous() is not is_last


def gradient_layouts(layer, tensor):
    """For each gradient, True if it has its channels last before it is accumulated."""
    result = layer(tensor)
    found = torch.autograd.grad(result.sum(), (tensor, layer.weight))
    return [one.is_contiguous(memory_format=LAST) for one in found]


def test_gradients_have_the_format_that_cudnn_works_in():
    with simulate("1GiB"):
        layer = nn.Conv2d(8, 16, 3).cuda()
        assert gradient_layouts(layer, images((2, 8, 9, 9)).requires_grad_()) == [False, False]
        last = images((2, 8, 9, 9), layout=LAST).requires_grad_()
        assert gradient_layouts(layer, last) == [True, True]


LAYERS = {
    "plain": (nn.Conv2d, (8, 16, 3), {}),
    "strided": (nn.Conv2d, (8, 16, 3), {"stride": 2, "padding": 1, "dilation": 2}),
    "depthwise": (nn.Conv2d, (8, 16, 3), {"groups": 8}),
    "in groups": (nn.Conv2d, (8, 16, 3), {"groups": 2, "bias": False}),
    "transposed": (nn.ConvTranspose2d, (8, 16, 3), {"stride": 2, "output_padding": 1}),
    "of one dimension": (nn.Conv1d, (8, 16, 3), {}),
    "of three": (nn.Conv3d, (8, 16, 3), {}),
}


def layer_and_size(name):
    kind, sizes, options = LAYERS[name]
    spatial = int(kind.__name__[-2])
    return kind(*sizes, **options), (2, 8, *(9,) * spatial)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("enabled", [True, False])
def test_values_and_gradients_are_those_of_a_cpu(name, enabled):
    torch.manual_seed(0)
    layer, size = layer_and_size(name)
    layer = layer.double()
    state = {key: value.clone() for key, value in layer.state_dict().items()}
    tensor = torch.randn(size, dtype=DOUBLE, requires_grad=True)
    result = layer(tensor)
    result.sin().sum().backward()
    with simulate("1GiB"), torch.backends.cudnn.flags(enabled=enabled):
        other = layer_and_size(name)[0].double()
        other.load_state_dict(state)
        other = other.cuda()
        leaf = tensor.detach().cuda().requires_grad_()
        found = other(leaf)
        found.sin().sum().backward()
        torch.testing.assert_close(found.detach().cpu(), result.detach())
        torch.testing.assert_close(leaf.grad.cpu(), tensor.grad)
        for one, two in zip(other.parameters(), layer.parameters(), strict=True):
            torch.testing.assert_close(one.grad.cpu(), two.grad)


def sizes_taken(program):
    """Bytes of each allocation that a program makes on a GPU that is on."""
    with allocator_events() as events:
        program()
    return [event[1] for event in events if event[0] == "malloc"]


def test_the_weight_is_copied_into_the_format_of_the_input():
    with simulate("1GiB"):
        layer = nn.Conv2d(64, 128, 3, bias=False).cuda()
        tensor = images((2, 64, 10, 10), layout=LAST)
        assert sizes_taken(lambda: layer(tensor)) == [2 * 128 * 64 * 4, 128 * 64 * 9 * 4]
        last = layer.to(memory_format=LAST)
        assert sizes_taken(lambda: last(tensor)) == [2 * 128 * 64 * 4]


def test_the_input_is_copied_before_the_result_is_made():
    with simulate("1GiB"):
        layer = nn.Conv2d(64, 128, 3).cuda()
        tensor = images((64, 2, 10, 10)).transpose(0, 1)
        assert sizes_taken(lambda: layer(tensor)) == [tensor.nbytes, 2 * 128 * 64 * 4]


def test_a_backward_pass_with_cudnn():
    with simulate("1GiB"):
        layer = nn.Conv2d(64, 128, 3).cuda()
        tensor = images((2, 64, 10, 10)).requires_grad_()
        result = layer(tensor)
        gradient = torch.ones((), device="cuda").expand(result.shape)

        def program():
            torch.autograd.grad(result, (tensor, layer.weight, layer.bias), gradient)

        copy, of_bias = result.nbytes, 128 * 4
        expected = [tensor.nbytes, copy, copy, layer.weight.nbytes, of_bias]
        assert sizes_taken(program)[: len(expected)] == expected


def test_columns_of_one_sample_at_a_time():
    with simulate("a100"), torch.backends.cudnn.flags(enabled=False):
        layer = nn.Conv2d(64, 128, 3, bias=False).cuda()
        tensor = images((4, 64, 10, 10))
        (64 * layer.weight.flatten(1)) @ layer.weight.flatten(1).t()
        columns = 64 * 9 * 8 * 8 * 4
        assert sizes_taken(lambda: layer(tensor)) == [4 * 128 * 64 * 4, columns]
        point = nn.Conv2d(64, 128, 1, bias=False).cuda()
        assert sizes_taken(lambda: point(tensor)) == [4 * 128 * 100 * 4]


def test_cudnns_workspace_is_named_as_unknown():
    with simulate("1GiB") as machine:
        nn.Conv2d(8, 16, 3).cuda()(images((2, 8, 9, 9)))
        approximations = machine.approximations[0]
        assert approximations.uncounted["aten.convolution.default", "cuDNN workspaces"].calls == 1
        assert approximations.estimated == {}


def program_of(name, layout=CONTIGUOUS, dtype=SINGLE, enabled=True, amp=False):
    def program():
        layer, size = layer_and_size(name)
        tensor = images(size, dtype, layout).requires_grad_()
        with (
            torch.backends.cudnn.flags(enabled=enabled),
            torch.autocast("cuda", enabled=amp),
        ):
            result = layer.cuda().to(dtype)(tensor)
            F.relu(result.float()).sum().backward()
            with torch.inference_mode():
                layer(tensor.detach())

    return program


@pytest.mark.parametrize(
    "program",
    [
        *(program_of(name) for name in LAYERS),
        *(program_of(name, enabled=False) for name in LAYERS),
        *(program_of(name, LAST) for name in list(LAYERS)[:5]),
        program_of("of three", LAST_3D),
        program_of("plain", LAST, HALF),
        program_of("depthwise", dtype=HALF),
        program_of("plain", LAST, amp=True),
    ],
)
def test_the_allocator_sees_the_same_without_arithmetic(program):
    computed = events_of(program, compute=True)
    assert len(computed) > 15
    assert events_of(program, compute=False) == computed


@pytest.mark.parametrize(
    ("size", "weight", "options", "name"),
    [
        ((2, 8, 9), (4, 8, 3), {}, "Cudnn"),
        ((2, 8, 9, 9), (8, 4, 3, 3), {"transposed": True}, "CudnnTranspose"),
        ((2, 8, 9), (8, 1, 3), {"groups": 8}, "CudaDepthwise2d"),
        ((2, 8, 9, 9, 9), (8, 1, 3, 3, 3), {"groups": 8}, "CudaDepthwise3d"),
        ((0, 8, 9, 9), (4, 8, 3, 3), {}, "Empty"),
        ((2, 8, 9, 9), (4, 8, 3, 3), {"cudnn": False}, "Slow2d"),
        ((2, 8, 9, 9), (4, 8, 3, 3), {"cudnn": False, "dilation": 2}, "SlowDilated2d"),
        ((2, 8, 9, 9, 9), (4, 8, 3, 3, 3), {"cudnn": False}, "SlowDilated3d"),
        ((2, 8, 9, 9), (8, 4, 3, 3), {"cudnn": False, "transposed": True}, "SlowTranspose2d"),
        ((2, 8, 9, 9, 9), (8, 4, 3, 3, 3), {"cudnn": False, "transposed": True}, "SlowTranspose3d"),
        ((2, 8, 9, 9), (4, 8, 3, 3), {"dilation": 2}, "Cudnn"),
        ((2, 8, 9, 9), (4, 8, 3, 3), {"deterministic": True}, "Cudnn"),
        ((2, 8, 9, 9), (4, 8, 3, 3), {"deterministic": True, "dilation": 2}, "SlowDilated2d"),
    ],
)
def test_pytorch_names_who_convolves(size, weight, options, name):
    options = dict(options)
    spatial = len(size) - 2
    flags = {"enabled": options.pop("cudnn", True)}
    flags["deterministic"] = options.pop("deterministic", False)
    dilation = [options.get("dilation", 1)] * spatial
    transposed, groups = options.get("transposed", False), options.get("groups", 1)
    rest = ([1] * spatial, [1] * spatial, dilation, transposed, [0] * spatial, groups)
    with simulate("t4"), torch.backends.cudnn.flags(**flags):
        tensor, kernel = images(size), images(weight)
        found = torch._C._select_conv_backend(tensor, kernel, None, *rest)
        assert found.name == name
        layout = torch._C._conv_determine_backend_memory_format(tensor, kernel, found)
        assert layout == CONTIGUOUS
        if name == "Cudnn" and spatial == 2:
            lying = tensor.to(memory_format=LAST)
            layout = torch._C._conv_determine_backend_memory_format(lying, kernel, found)
            assert layout == LAST
        on_cpu = torch._C._select_conv_backend(tensor.cpu(), kernel.cpu(), None, *rest)
        assert "uda" not in on_cpu.name
        assert "udnn" not in on_cpu.name


@pytest.mark.parametrize(
    ("size", "taps", "stride", "is_faster"),
    [
        ((2, 32, 1, 9), 3, 1, True),
        ((2, 32, 9, 6), 3, 1, False),
        ((2, 16, 9, 9), 3, 1, False),
        ((2, 32, 9, 9), 7, 1, False),
        ((2, 32, 9, 9), 3, 1, True),
        ((1, 32, 30, 30), 1, 2, False),
        ((1, 32, 28, 28), 1, 2, True),
        ((1, 32, 30, 30), 3, 2, True),
        ((16, 128, 7, 7), 1, 2, True),
        ((17, 128, 7, 7), 1, 2, False),
        ((16, 127, 7, 7), 1, 2, False),
        ((16, 128, 7, 8), 1, 2, False),
        ((2, 512, 9, 9), 3, 2, True),
        ((2, 511, 9, 9), 3, 2, False),
        ((2, 256, 28, 28), 3, 2, True),
        ((2, 256, 27, 27), 3, 2, False),
        ((2, 255, 28, 28), 3, 2, False),
        ((2, 32, 9, 9), 3, 3, False),
    ],
)
def test_cudnn_takes_the_depthwise_convolutions_that_pytorch_measured_faster(
    size, taps, stride, is_faster
):
    rest = ([stride] * 2, [1] * 2, [1] * 2, False, [0] * 2, size[1])
    with simulate("a100", compute=False):
        tensor, kernel = images(size).half(), images((size[1], 1, taps, taps)).half()
        backend = torch._C._select_conv_backend(tensor, kernel, None, *rest)
    assert backend.name == ("Cudnn" if is_faster else "CudaDepthwise2d")
