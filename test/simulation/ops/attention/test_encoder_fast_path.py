"""Encoder layers and multi-head attention in evaluation: CUDA's fast path, to the byte."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.dry_run_comparison import allocator_events, events_of
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.errors import UnmodelledOpError, UnsupportedCUDACallError
from pytorch_memlab.records import ApproximationKind
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.attention.sdp_backend import cudnn_version
from pytorch_memlab.tensors.lines import recorded_lines

HALF, BFLOAT, SINGLE, DOUBLE = torch.float16, torch.bfloat16, torch.float32, torch.float64
LAYER = "aten._transformer_encoder_layer_fwd.default"
ATTENTION = "aten._native_multi_head_attention.default"
NESTED = "aten._nested_tensor_from_mask.default"
BATCH, LENGTH, SIZE, HEADS, WIDE = 2, 128, 256, 4, 1024
TOKENS = BATCH * LENGTH
PREFERS_CUDNN = cudnn_version() > 91500 and RELEASE >= (2, 11)
RANDOM_STATE = [16, 8] if RELEASE >= (2, 7) else []


@pytest.fixture(autouse=True)
def no_workspace_of_cublaslt(monkeypatch):
    """Releases before 2.9 make one for each product, and give it back."""
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "0")


def layer_of(size=SIZE, heads=HEADS, **options):
    """A layer in evaluation."""
    options = {"dim_feedforward": WIDE, "batch_first": True, **options}
    return nn.TransformerEncoderLayer(size, heads, **options).eval()


def attention_of(size=SIZE, heads=HEADS, **options):
    """Multi-head attention in evaluation."""
    return nn.MultiheadAttention(size, heads, batch_first=True, **options).eval()


def masks(length):
    """A mask of padding at the end, and a causal one."""
    padding = torch.zeros(BATCH, length, dtype=torch.bool)
    padding[1, length - 2 :] = True
    return padding, torch.ones(length, length, dtype=torch.bool).triu(1)


class Seen(TorchDispatchMode):
    """Counts the ops that a program calls, those inside of them not."""

    def __init__(self):
        super().__init__()
        self.ops = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops[str(func)] += 1
        return func(*args, **(kwargs or {}))


def stream(call):
    """The requests of a call: bytes, or ``-n`` where the n-th of these goes back."""
    with allocator_events() as events:
        kept = call()
    numbers = {}
    found = []
    for kind, *event in events:
        if kind == "free":
            found.append(-numbers.pop(event[0]))
        elif event[0]:
            numbers[event[1]] = sum(one > 0 for one in found) + 1
            found.append(event[0])
    del kept
    return found


def warm_up():
    """Make the workspace of cuBLAS."""
    torch.mm(torch.ones(2, 2, device="cuda"), torch.ones(2, 2, device="cuda"))


def sizes(dtype):
    """Bytes of one activation, of the three projections, of the widest, of a norm's statistics."""
    one = TOKENS * SIZE * dtype.itemsize
    return one, 3 * one, TOKENS * WIDE * dtype.itemsize, TOKENS * 4


def layers(dtype, **options):
    """A layer and its input on the simulated GPU."""
    warm_up()
    layer = layer_of(**options).to("cuda", dtype)
    return layer, torch.randn(BATCH, LENGTH, SIZE, dtype=dtype, device="cuda")


def behind_attention(first, one, wide, norm):
    """The requests of a layer that normalizes last, after its attention.

    Args:
        first: number of the attention's result.
        one: bytes of an activation.
        wide: bytes of the widest.
        norm: bytes of a norm's statistics.
    """
    last = first + 6
    return [
        *(one, norm, norm, -(first + 2), -(first + 3), -first),
        *(wide, one, -(first + 4)),
        *(one, norm, norm, -(last + 1), -(last + 2), -(first + 5), -(first + 1)),
    ]


@computed_or_dry
def test_a_layer_of_half_precision_runs_flash_attention_between_two_projections(compute):
    with simulate("a100", compute=compute), torch.no_grad():
        layer, source = layers(HALF)
        one, three, wide, norm = sizes(HALF)
        sums = BATCH * HEADS * LENGTH * 4
        random = RANDOM_STATE
        first = 4 + len(random)
        assert stream(lambda: layer(source)) == [
            *(three, one, sums, *random),
            *(-number for number in range(3, first)),
            *(one, -2, -1),
            *behind_attention(first, one, wide, norm),
        ]


@computed_or_dry
def test_a_layer_of_single_precision_runs_memory_efficient_attention(compute):
    with simulate("a100", compute=compute), torch.no_grad():
        layer, source = layers(SINGLE, activation="gelu")
        one, three, wide, norm = sizes(SINGLE)
        assert stream(lambda: layer(source)) == [
            *(three, one, one, -2, -1),
            *behind_attention(3, one, wide, norm),
        ]


def test_a_layer_that_normalizes_first_keeps_what_it_adds():
    with simulate("a100", compute=False), torch.no_grad():
        layer, source = layers(SINGLE, norm_first=True)
        one, three, wide, norm = sizes(SINGLE)
        assert stream(lambda: layer(source)) == [
            *(one, norm, norm, -2, -3),
            *(three, one, one, -5, -4, -1),
            *(one, norm, norm, -8, -9),
            *(wide, one, -10, -7, -6),
        ]


@computed_or_dry
def test_a_padded_layer_multiplies_matrices_around_a_softmax_in_the_storage_of_the_query(compute):
    with simulate("a100", compute=compute), torch.no_grad():
        layer, source = layers(HALF)
        padding = masks(LENGTH)[0].cuda()
        one, three, wide, norm = sizes(HALF)
        scores = BATCH * HEADS * LENGTH * LENGTH * 2
        # The mask in the layer's type, which is made a bool one again for the softmax.
        assert stream(lambda: layer(source, src_key_padding_mask=padding)) == [
            *(TOKENS * 2, three, three, -2, scores, TOKENS, scores, -4, -5, -6),
            *(one, one, -7, -3),
            *behind_attention(8, one, wide, norm),
            -1,
        ]


@pytest.mark.skipif(not PREFERS_CUDNN, reason="this release prefers flash attention")
def test_a_layer_on_hopper_runs_cudnns_attention():
    with simulate("h100", compute=False), torch.no_grad():
        layer, source = layers(BFLOAT)
        one, three, wide, norm = sizes(BFLOAT)
        assert stream(lambda: layer(source)) == [
            *(three, 8, 8, one, -2, -3, one, -4, -1),
            *behind_attention(5, one, wide, norm),
        ]


@pytest.mark.parametrize("reason", ["math alone", "heads of 12", "none enabled"])
def test_without_a_fused_kernel_the_softmax_is_in_place(reason):
    backends = [] if reason == "none enabled" else [SDPBackend.MATH]
    size, heads = (96, 8) if reason == "heads of 12" else (SIZE, HEADS)
    with simulate("a100", compute=False), torch.no_grad():
        warm_up()
        attention = attention_of(size, heads).cuda()
        source = torch.randn(BATCH, LENGTH, size, device="cuda")
        run = partial(attention, source, source, source, need_weights=False)
        with nullcontext() if reason == "heads of 12" else sdpa_kernel(backends):
            found = stream(run)
    one, scores = TOKENS * size * 4, BATCH * heads * LENGTH * LENGTH * 4
    assert found == [3 * one, 3 * one, -1, scores, -3, one, one, -4, -2]


@computed_or_dry
@pytest.mark.parametrize("averages", [True, False])
def test_weights_are_the_scores_themselves_or_their_mean_over_the_heads(averages, compute):
    with simulate("a100", compute=compute), torch.no_grad():
        warm_up()
        attention = attention_of().cuda()
        source = torch.randn(BATCH, LENGTH, SIZE, device="cuda")
        one, scores = TOKENS * SIZE * 4, BATCH * HEADS * LENGTH * LENGTH * 4
        found = stream(lambda: attention(source, source, source, average_attn_weights=averages))
        mean = [scores // HEADS, -3] if averages else []
        assert found == [3 * one, 3 * one, -1, scores, one, one, -4, *mean, -2]


@pytest.mark.parametrize(("length", "dtype"), [(1024, SINGLE), (1032, HALF), (600, DOUBLE)])
def test_a_masked_softmax_beyond_registers_is_one_of_a_filled_copy(length, dtype):
    with simulate("a100", compute=False), torch.no_grad():
        scores = torch.randn(1, 2, length, length, dtype=dtype, device="cuda")
        mask = torch.zeros(1, 2, length, length, dtype=torch.bool, device="cuda")
        causal = mask[0, 0]

        def softmax(excluded, kind):
            return stream(lambda: torch._masked_softmax(scores, excluded, -1 % 4, kind))

        alone, copied = [scores.nbytes], [scores.nbytes] * 3 + [-1, -2]
        assert softmax(mask, 2) == (alone if length == 1024 else copied)
        assert softmax(causal, 0) == copied


def in_evaluation():
    """Modules and what they take, by name."""
    padding, causal = masks(10)
    both = {"src_mask": causal, "src_key_padding_mask": padding}
    return {
        "layer": (layer_of, {}),
        "gelu": (partial(layer_of, activation="gelu", norm_first=True), {}),
        "heads of 4": (partial(layer_of, 64, 16), {}),
        "padding": (layer_of, {"src_key_padding_mask": padding}),
        "causal": (layer_of, {"src_mask": causal}),
        "both": (layer_of, both),
        "encoder": (lambda: nn.TransformerEncoder(layer_of(), 2), {}),
        "padded encoder": (
            lambda: nn.TransformerEncoder(layer_of(), 2),
            {"src_key_padding_mask": padding},
        ),
        "attention": (attention_of, {}),
        "weights of heads": (attention_of, {"average_attn_weights": False}),
        "no weights": (attention_of, {"need_weights": False}),
        "padded attention": (attention_of, {"key_padding_mask": padding, "need_weights": False}),
    }


def results_of(name, dtype, where):
    """The result of a module in evaluation."""
    make, options = in_evaluation()[name]
    torch.manual_seed(0)
    module = make().eval().to(where, dtype)
    features = next(module.parameters()).shape[-1]
    source = torch.randn(BATCH, 10, features).to(where, dtype)
    options = {
        key: value.to(where) if isinstance(value, torch.Tensor) else value
        for key, value in options.items()
    }
    sources = (source,) * (3 if isinstance(module, nn.MultiheadAttention) else 1)
    with torch.no_grad():
        results = module(*sources, **options)
    return list(results) if isinstance(results, tuple) else [results]


@contextmanager
def slow_path():
    """The program turns the fast path off."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("dtype", [SINGLE, HALF, BFLOAT])
@pytest.mark.parametrize("name", list(in_evaluation()))
def test_results_are_those_of_the_slow_path_on_a_cpu(name, dtype):
    with slow_path():
        expected = results_of(name, SINGLE, "cpu")
    with simulate("a100"):
        with Seen() as seen:
            found = results_of(name, dtype, "cuda")
        assert seen.ops[LAYER] + seen.ops[ATTENTION] == (2 if "encoder" in name else 1)
        tolerance = 1e-5 if dtype == SINGLE else 5e-2
        if name == "gelu":  # the fast path of CUDA approximates it by tanh
            tolerance = max(tolerance, 1e-3)
        for one, other in zip(found, expected, strict=True):
            if other is None:
                assert one is None
                continue
            assert one.dtype == dtype
            assert torch.allclose(one.float().cpu(), other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("name", list(in_evaluation()))
def test_the_allocator_sees_the_same_without_arithmetic(name):
    computed = events_of(lambda: results_of(name, HALF, "cuda"), compute=True)
    assert len(computed) > 15
    assert events_of(lambda: results_of(name, HALF, "cuda"), compute=False) == computed


class Noticing(TorchFunctionMode):
    """A program's own mode."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Marked(torch.Tensor):
    """A program's own class of tensors, whose results are of none."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def marked(tensor):
    """A tensor of that class."""
    return torch.Tensor._make_subclass(Marked, tensor)


REASONS = {
    "a mode": Noticing,
    "a default device": lambda: torch.device("cuda"),
    "recorded lines": recorded_lines,
    "autocast": lambda: torch.autocast("cuda"),
    "gradients": lambda: torch.enable_grad(),
    "turned off": slow_path,
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_turns_the_fast_path_off_on_cuda_turns_it_off_here(reason):
    with simulate("a100", compute=False), torch.no_grad():
        layer, source = layers(SINGLE)
        with Seen() as seen:
            with REASONS[reason]():
                layer(source)
            assert seen.ops[LAYER] == 0
            layer(source)
            assert seen.ops[LAYER] == 1


def test_a_class_of_tensors_that_overrides_functions_turns_it_off_too():
    with simulate("a100"), torch.no_grad():
        layer, source = layers(SINGLE)
        with Seen() as seen:
            found = layer(marked(source))
        assert seen.ops[LAYER] == 0
        assert torch.allclose(found, layer(source), atol=1e-5)


def test_the_fast_path_is_taken_in_inference_mode_in_threads_and_within_another_simulation():
    found = []

    def run():
        with torch.inference_mode():
            layer, source = layers(SINGLE)
            found.append(stream(lambda: layer(source)))

    with simulate("a100", compute=False):
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        with simulate("a100"):
            run()
    assert len(found) == 3
    assert len(found[0]) == 5 + len(behind_attention(3, 1, 1, 1))
    assert found[1:] == found[:1] * 2


def test_modules_on_the_host_take_no_memory_of_the_gpu():
    for compute in (True, False):
        with simulate("a100", compute=compute) as machine, torch.no_grad(), Seen() as seen:
            results_of("padded encoder", SINGLE, "cpu")
            assert seen.ops[LAYER] == 2
            assert torch.cuda.max_memory_allocated() == 0
            assert machine.unmodelled == {}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_scripted_layer_takes_the_fast_path_too():
    with simulate("a100"), torch.no_grad():
        layer, source = layers(SINGLE)
        scripted = torch.jit.script(layer)
        assert torch.equal(scripted(source), layer(source))
        assert stream(lambda: scripted(source)) == stream(lambda: layer(source))


def test_the_question_is_answered_as_ever_after_the_simulation():
    before = torch.overrides.has_torch_function
    scripted = dict(torch.jit._builtins._get_builtin_table())
    with simulate("a100"):
        inside = torch.overrides.has_torch_function
        assert inside is not before
        assert not inside((torch.ones(2),))
        assert inside((marked(torch.ones(2)),))
    assert torch.overrides.has_torch_function is before
    assert torch.jit._builtins._get_builtin_table() == scripted
    assert not inside((torch.ones(2),))
    with Noticing():
        assert inside((torch.ones(2),))


def encoders(**options):
    """An encoder, its input and a mask of padding at the end, on the simulated GPU."""
    warm_up()
    encoder = nn.TransformerEncoder(layer_of(), 2, **options).eval().cuda()
    return encoder, torch.randn(BATCH, LENGTH, SIZE, device="cuda"), masks(LENGTH)[0].cuda()


def test_an_encoder_keeps_its_padding_and_says_so():
    with simulate("a100", compute=False) as machine, torch.no_grad():
        encoder, source, padding = encoders()
        with Seen() as seen:
            encoder(source, src_key_padding_mask=padding)
        assert seen.ops[LAYER] == 2
        assert machine.unmodelled[NESTED].calls == 1
        assert machine.unmodelled[NESTED].nbytes == source.nbytes
        plain, source, padding = encoders(enable_nested_tensor=False)
        plain(source, src_key_padding_mask=padding)
        encoder(source)
        assert machine.unmodelled[NESTED].calls == 1
        with torch.enable_grad():
            encoder(source, src_key_padding_mask=padding)
        assert machine.unmodelled[NESTED].calls == 1


def test_the_line_that_runs_a_padded_encoder_is_marked():
    def work():
        encoder, source, padding = encoders()
        with torch.no_grad():
            return encoder(source, src_key_padding_mask=padding)

    with simulate("a100", compute=False), LineProfiler(work) as profiler:
        work()
    [table] = profiler.records().display(work).report.tables
    first = work.__code__.co_firstlineno
    unmodelled = {
        line - first: [
            approximation.name
            for approximation in approximations
            if approximation.kind is ApproximationKind.UNMODELLED
        ]
        for line, approximations in table.approximations.items()
    }
    assert {line: names for line, names in unmodelled.items() if names} == {
        3: ["_nested_tensor_from_mask"]
    }


def test_strict_refuses_a_padded_encoder():
    with simulate("a100", compute=False, strict=True) as machine, torch.no_grad():
        encoder, source, padding = encoders()
        encoder(source)
        with pytest.raises(UnmodelledOpError, match=r"pass enable_nested_tensor=False"):
            encoder(source, src_key_padding_mask=padding)
        plain, source, padding = encoders(enable_nested_tensor=False)
        plain(source, src_key_padding_mask=padding)
        assert machine.unmodelled == {}


def test_the_check_of_a_padding_mask_takes_what_its_ops_take():
    with simulate("a100") as machine:
        _, source, padding = encoders()
        keys = ~padding
        found = stream(lambda: torch._nested_tensor_from_mask_left_aligned(source, keys))
        assert torch._nested_tensor_from_mask_left_aligned(source, keys)
        assert not torch._nested_tensor_from_mask_left_aligned(source, padding)
        assert machine.unmodelled == {}
    padded, sums = BATCH * (LENGTH + 1), TOKENS * 8
    # A column of zeros, the mask with it, that as int32, indices; sums, of the mask as int64.
    assert found == [
        *(BATCH, padded, padded * 4, BATCH * 8, -3, -2),
        *(sums, sums, -6, -4, -1, -5),
    ]


def test_nested_tensors_are_refused_by_name_and_in_training_by_pytorch():
    with simulate("a100"):
        layer = nn.TransformerEncoderLayer(32, 4, batch_first=True).cuda().eval()
        rows = torch.nested.nested_tensor([torch.randn(n, 32) for n in (3, 5)], device="cuda")
        with torch.no_grad(), pytest.raises(UnsupportedCUDACallError, match="nested tensors"):
            layer(rows)
        with pytest.raises(AssertionError, match="grad is enabled"):
            layer(rows)


def test_an_encoder_of_the_cpu_packs_its_padded_batch_as_without_a_simulation():
    encoder = nn.TransformerEncoder(layer_of(), 2).eval()
    source = torch.randn(2, 4, SIZE)
    padding = torch.tensor([[False] * 4, [False, False, True, True]])
    with torch.no_grad():
        packed = encoder(source, src_key_padding_mask=padding)
        with simulate("1GiB"):
            assert torch.equal(encoder(source, src_key_padding_mask=padding), packed)
    assert (packed[1, 2:] == 0).all()  # what was padding is zero only where a batch was packed
