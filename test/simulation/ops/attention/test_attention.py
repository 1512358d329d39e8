"""Attention on simulated GPUs: which backend runs, what it computes, which memory it takes.

``attention_choices.json`` has what the C++ of two CUDA builds of PyTorch said (torch 2.13.0 with
CUDA 13.0 and cuDNN 9.20, torch 2.4.1 with CUDA 12.1) when their fake tensors met a driver that
told it each compute capability: for each configuration of ``configurations`` one digit, the sum of
1 if flash, 2 if memory-efficient and 4 if cuDNN's attention could be used.
"""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.dry_run_comparison import allocator_events, events_of
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.hardware.gpu import GPU
from pytorch_memlab.simulation.hardware.presets import PRESETS
from pytorch_memlab.simulation.ops.attention.backends import against_cudnn, cudnn_version
from pytorch_memlab.simulation.ops.attention.backward_tiles import tile_of, workspace
from pytorch_memlab.simulation.ops.attention.flash import splits_of
from pytorch_memlab.simulation.ops.attention.rules import (
    RELEASE,
    Call,
    against_efficient,
    against_flash,
)

CHOICES = json.loads((Path(__file__).parents[3] / "data" / "attention_choices.json").read_text())
RECORDED = CHOICES["2.13"] if RELEASE >= (2, 13) else CHOICES["2.4"] if RELEASE < (2, 5) else []
HAS_GROUPS = RELEASE >= (2, 5)
FLASH, EFFICIENT, CUDNN, MATH = (
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.MATH,
)
NODES = {
    FLASH: "ScaledDotProductFlashAttentionBackward0",
    EFFICIENT: "ScaledDotProductEfficientAttentionBackward0",
    CUDNN: "ScaledDotProductCudnnAttentionBackward0",
}
needs_groups = pytest.mark.skipif(not HAS_GROUPS, reason="torch 2.4 has no enable_gqa")
needs_cudnn = pytest.mark.skipif(RELEASE < (2, 5), reason="torch 2.4's cuDNN attention is off")


def configurations() -> Any:
    """Those that were asked about, in order."""
    draw = random.Random(0)
    for _ in range(600):
        yield (
            draw.choice(("float16", "bfloat16", "bfloat16", "float32", "float64")),
            draw.choice(
                (
                    *((64, 64),) * 2,
                    (36, 36),
                    (128, 128),
                    (200, 200),
                    (256, 256),
                    (264, 264),
                    (192, 128),
                    (20, 20),
                )
            ),
            draw.choice((*("none",) * 3, "bool", "float4", "grad", "strided", "float3", "keys")),
            draw.choice(
                (
                    *((64, 64, False),) * 2,
                    (64, 64, True),
                    (64, 32, True),
                    (1, 64, False),
                    (64, 1, False),
                    (130, 100, False),
                )
            ),
            draw.choice((*((8, 8, False),) * 3, (8, 2, True), (8, 1, True), (8, 2, False))),
            draw.choice((0.0, 0.0, 0.1, 0.125)),
            draw.choice((False, True)),
        )


def call_of(gpu: Any, configuration: Any) -> Call:
    """The call that a configuration stands for."""
    name, sizes, mask, (queries, keys, causal), heads, dropout, trains = configuration
    dtype = getattr(torch, name)

    def empty(*shape: int, kind: torch.dtype = dtype, grad: bool = False) -> torch.Tensor:
        return torch.empty(*shape, dtype=kind, requires_grad=grad)

    masks = {
        "none": lambda: None,
        "bool": lambda: empty(queries, keys, kind=torch.bool),
        "float4": lambda: empty(2, 1, queries, keys),
        "grad": lambda: empty(2, heads[0], queries, keys, grad=True),
        "strided": lambda: empty(keys, queries).t(),
        "float3": lambda: empty(heads[0], queries, keys),
        "keys": lambda: empty(1, 1, 1, keys),
    }
    return Call(
        gpu,
        empty(2, heads[0], queries, sizes[0], grad=trains),
        empty(2, heads[1], keys, sizes[0], grad=trains),
        empty(2, heads[1], keys, sizes[1], grad=trains),
        masks[mask](),
        dropout,
        causal,
        heads[2] and HAS_GROUPS,
    )


@pytest.mark.skipif(not RECORDED, reason="recorded for torch 2.13 and 2.4")
@pytest.mark.parametrize("recorded", RECORDED, ids=lambda one: ",".join(one["capabilities"]))
def test_a_backend_can_be_used_exactly_where_cudas_own_rules_say_so(recorded):
    for capability in recorded["capabilities"]:
        major, minor = map(int, capability.split("."))
        gpu = GPU(
            "any", "80GiB", (major, minor), 132, 2048, shared_memory_per_multiprocessor="228KiB"
        )
        for configuration, digit in zip(configurations(), recorded["usable"], strict=True):
            call = call_of(gpu, configuration)
            usable = (
                (against_flash(call) is None)
                + 2 * (against_efficient(call) is None)
                + 4 * (against_cudnn(call) is None)
            )
            assert usable == int(digit), (capability, configuration)


def tensors(dtype=torch.float16, sizes=(2, 8, 64, 64), keys=None, heads=None, grad=True):
    """Query, key and value on the simulated GPU."""
    batch, all_heads, queries, size = sizes
    own = (batch, heads or all_heads, keys or queries, size)
    return [
        torch.randn(*shape, dtype=dtype, device="cuda", requires_grad=grad)
        for shape in (sizes, own, own)
    ]


def node_of(result: torch.Tensor) -> str:
    """Name of the node that made a result."""
    return type(result.grad_fn).__name__


FIRST_ON_HOPPER = CUDNN if cudnn_version() > 91500 and RELEASE >= (2, 11) else FLASH


MASKED_ON_HOPPER = CUDNN if FIRST_ON_HOPPER is CUDNN else EFFICIENT


@pytest.mark.parametrize(
    ("gpu", "dtype", "options", "expected"),
    [
        ("a100", torch.bfloat16, {}, FLASH),
        ("l4", torch.float16, {}, FLASH),
        ("rtx5090", torch.float16, {}, FLASH),
        ("h100", torch.bfloat16, {}, FIRST_ON_HOPPER),
        ("b200", torch.float16, {}, FIRST_ON_HOPPER),
        ("h100", torch.float32, {}, EFFICIENT),
        ("a100", torch.float32, {}, EFFICIENT),
        ("t4", torch.float16, {}, EFFICIENT),
        ("v100", torch.float32, {}, EFFICIENT),
        ("t4", torch.bfloat16, {}, MATH),
        ("a100", torch.float64, {}, MATH),
        ("a100", torch.float16, {"is_causal": True}, FLASH),
        ("a100", torch.float16, {"mask": torch.bool}, EFFICIENT),
        ("a100", torch.float16, {"mask": torch.float16}, EFFICIENT),
        ("h100", torch.float16, {"mask": torch.bool}, MASKED_ON_HOPPER),
    ],
)
def test_the_first_backend_that_can_runs(gpu, dtype, options, expected):
    options = dict(options)
    with simulate(gpu):
        mask = options.pop("mask", None)
        if mask is not None:
            options["attn_mask"] = torch.ones(64, 64, dtype=mask, device="cuda")
        result = F.scaled_dot_product_attention(*tensors(dtype), **options)
        assert node_of(result) == NODES.get(expected, node_of(result))
        assert (expected is MATH) == ("ScaledDotProduct" not in node_of(result))


@pytest.mark.skipif(FIRST_ON_HOPPER is FLASH, reason="this release prefers flash attention")
def test_the_environment_and_the_program_set_the_priority(monkeypatch):
    with simulate("h100"):
        parts = tensors()
        order = [EFFICIENT, FLASH]
        with sdpa_kernel(order, set_priority=True):
            assert node_of(F.scaled_dot_product_attention(*parts)) == NODES[EFFICIENT]
        with sdpa_kernel(order):
            assert node_of(F.scaled_dot_product_attention(*parts)) == NODES[FLASH]
        monkeypatch.setenv("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")
        assert node_of(F.scaled_dot_product_attention(*parts)) == NODES[FLASH]


def test_what_is_switched_off_does_not_run():
    with simulate("a100"):
        parts = tensors()
        torch.backends.cuda.enable_flash_sdp(False)
        try:
            assert node_of(F.scaled_dot_product_attention(*parts)) == NODES[EFFICIENT]
        finally:
            torch.backends.cuda.enable_flash_sdp(True)
        with sdpa_kernel(MATH):
            assert "ScaledDotProduct" not in node_of(F.scaled_dot_product_attention(*parts))


def test_no_backend_left_is_cudas_error_and_says_why():
    with (
        simulate("a100"),
        sdpa_kernel(FLASH),
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        parts = tensors(torch.float32)
        with pytest.raises(RuntimeError, match=r"^No available kernel\. Aborting execution\.$"):
            F.scaled_dot_product_attention(*parts)
    texts = [str(warning.message) for warning in caught]
    assert texts[0] == "Memory-efficient attention not used because: it is switched off"
    assert texts[1] == (
        "Flash attention not used because: it takes torch.float16, torch.bfloat16, not "
        "torch.float32"
    )
    assert texts[2] == "cuDNN attention not used because: it is switched off"


def test_wrong_arguments_are_refused_as_anywhere():
    with simulate("a100"):
        query, key, value = tensors()
        mask = torch.ones(64, 64, dtype=torch.float64, device="cuda")
        with pytest.raises(RuntimeError, match="Expected attn_mask dtype"):
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        with pytest.raises(RuntimeError, match="same dtype"):
            F.scaled_dot_product_attention(query, key.float(), value)
        mask = torch.zeros(64, 64, device="cuda")
        with pytest.raises(RuntimeError, match="invalid dtype for bias"):
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


MASKS = {
    "bool": lambda q, k: torch.rand(q, k) > 0.3,
    "keys": lambda q, k: torch.rand(2, 1, 1, k) > 0.3,
    "float": lambda q, k: torch.randn(2, 8, q, k),
    "column": lambda q, k: torch.randn(q, 1),
    "learnt": lambda q, k: torch.randn(2, 1, q, k, requires_grad=True),
}


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        (FLASH, {}),
        (FLASH, {"size": 36, "causal": True}),
        (FLASH, {"size": 160, "scale": 0.05}),
        (FLASH, {"transposed": True}),
        pytest.param(FLASH, {"heads": 2, "keys": 33}, marks=needs_groups),
        (EFFICIENT, {}),
        (EFFICIENT, {"causal": True, "keys": 33}),
        (EFFICIENT, {"transposed": True}),
        (EFFICIENT, {"value_size": 32}),
        (EFFICIENT, {"size": 192}),
        *((EFFICIENT, {"mask": mask}) for mask in MASKS),
        pytest.param(CUDNN, {"causal": True}, marks=needs_cudnn),
        pytest.param(CUDNN, {"mask": "bool"}, marks=needs_cudnn),
        pytest.param(CUDNN, {"mask": "float", "value_size": 32}, marks=needs_cudnn),
        pytest.param(CUDNN, {"heads": 1, "mask": "keys"}, marks=needs_cudnn),
        (MATH, {"causal": True}),
        (MATH, {"mask": "learnt"}),
        pytest.param(MATH, {"heads": 2}, marks=needs_groups),
    ],
    ids=str,
)
def test_results_and_gradients_are_those_of_math_in_float64(backend, options):
    dtype = torch.float32 if backend in (EFFICIENT, MATH) else torch.float16
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    size, heads = options.get("size", 64), options.get("heads", 8)
    queries, keys = 60, options.get("keys", 60)
    torch.manual_seed(0)
    shapes = [(2, 8, queries, size), (2, heads, keys, size)]
    shapes.append((2, heads, keys, options.get("value_size", size)))
    if options.get("transposed"):
        data = [torch.randn(a, c, b, d).transpose(1, 2) for a, b, c, d in shapes]
    else:
        data = [torch.randn(shape) for shape in shapes]
    data = [one.to(dtype) for one in data]
    mask = MASKS[options["mask"]](queries, keys) if "mask" in options else None
    learnt = mask is not None and mask.requires_grad
    arguments = {"is_causal": options.get("causal", False), "scale": options.get("scale")}
    if heads != 8:
        arguments["enable_gqa"] = True
    gradient = torch.randn(2, 8, queries, shapes[2][-1]).to(dtype)

    def attend(parts: list[torch.Tensor], added: Any, weight: torch.Tensor, chosen: Any) -> Any:
        parts = [part.detach().requires_grad_() for part in parts]
        if learnt:
            added = added.detach().requires_grad_()
        with sdpa_kernel(chosen):
            result = F.scaled_dot_product_attention(*parts, attn_mask=added, **arguments)
        result.backward(weight)
        gradients = [part.grad for part in parts] + ([added.grad] if learnt else [])
        return node_of(result), [result.detach(), *gradients]

    with simulate("h100"):
        on_gpu = None if mask is None else mask.detach().cuda()
        if on_gpu is not None and on_gpu.is_floating_point():
            on_gpu = on_gpu.to(dtype)
        node, made = attend([one.cuda() for one in data], on_gpu, gradient.cuda(), backend)
        assert [one.dtype for one in made] == [dtype] * len(made)
        made = [one.cpu() for one in made]
    if backend is not MATH and size % 8 == 0:
        assert node == NODES[backend]
    wide = None if mask is None else mask.detach()
    if wide is not None and wide.is_floating_point():
        wide = wide.to(dtype).double()
    _, expected = attend([one.double() for one in data], wide, gradient.double(), MATH)
    for one, other in zip(made, expected, strict=True):
        assert torch.allclose(one.double(), other, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, pytest.param(CUDNN, marks=needs_cudnn)])
def test_dropout_drops_the_same_weights_in_both_passes(backend):
    with simulate("h100"), sdpa_kernel(backend):
        torch.manual_seed(0)
        query, key, _ = tensors(sizes=(2, 4, 64, 64))
        value = torch.eye(64, dtype=torch.float16, device="cuda").expand(2, 4, 64, 64)
        value = value.contiguous().requires_grad_()
        weights = F.scaled_dot_product_attention(query, key, value, dropout_p=0.25)
        gradient = torch.randn_like(weights)
        weights.backward(gradient)
        dropped = weights.detach().cpu()
        other = F.scaled_dot_product_attention(query, key, value, dropout_p=0.25).detach().cpu()
        with torch.no_grad():
            whole = F.scaled_dot_product_attention(query, key, value).cpu()
        of_value, gradient = value.grad.cpu(), gradient.cpu()
    assert abs((dropped == 0).float().mean() - 0.25) < 0.02
    kept = dropped != 0
    assert torch.allclose(dropped[kept].float(), whole[kept].float() / 0.75, rtol=2e-2)
    assert not torch.equal(dropped, other)
    wanted = dropped.float().transpose(-2, -1) @ gradient.float()
    assert torch.allclose(of_value.float(), wanted, atol=2e-2)


def test_without_dropout_no_random_number_is_drawn():
    with simulate("a100"):
        parts = tensors()
        before = torch.get_rng_state()
        F.scaled_dot_product_attention(*parts)
        assert torch.equal(torch.get_rng_state(), before)


def taken(call: Any) -> list[int]:
    """Bytes of each allocation that a call makes, in order."""
    with allocator_events() as events:
        call()
    return [event[1] for event in events if event[0] == "malloc" and event[1]]


RANDOM = [16, 8] if RELEASE >= (2, 6) else []


def test_flash_attention_takes_its_result_the_sums_and_the_random_state():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(8, 16, 512, 64))
        results: list[torch.Tensor] = []
        forward = taken(lambda: results.append(F.scaled_dot_product_attention(*parts)))
        assert forward == [8 * 16 * 512 * 64 * 2, 8 * 16 * 512 * 4, *RANDOM]
        assert results[0].stride() == parts[0].stride()
        gradient = torch.ones_like(results[0])
        backward = taken(lambda: results[0].backward(gradient))
        whole = 8 * 16 * 512 * 64 * 2
        # Contiguous copies with the sequence before the heads, three gradients, then the sums of
        # result times gradient and the query's gradient in float32.
        assert backward == [whole] * 5 + [8 * 16 * 512 * 4, 2 * whole]


def test_flash_attention_copies_nothing_that_has_its_sequence_before_its_heads():
    with simulate("a100", compute=False):
        parts = [
            torch.randn(8, 512, 16, 64, dtype=torch.float16, device="cuda", requires_grad=True)
            for _ in range(3)
        ]
        result = F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts))
        flat = result.transpose(1, 2).reshape(8, 512, 1024)
        whole = 8 * 16 * 512 * 64 * 2
        backward = taken(lambda: flat.backward(torch.ones_like(flat)))
        assert backward == [whole] + [whole] * 3 + [8 * 16 * 512 * 4, 2 * whole]


def test_flash_attention_pads_head_dimensions_to_multiples_of_8():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(8, 16, 512, 36))
        results: list[torch.Tensor] = []
        whole = 8 * 16 * 512 * 40 * 2
        forward = taken(lambda: results.append(F.scaled_dot_product_attention(*parts)))
        assert forward == [whole] * 4 + [8 * 16 * 512 * 4, *RANDOM]
        assert results[0].stride(-2) == 40


def test_flash_attention_shares_out_the_keys_when_queries_are_few():
    with simulate("a100", compute=False), torch.no_grad():
        parts = tensors(sizes=(1, 8, 1, 128), keys=4096, grad=False)
        made = taken(lambda: F.scaled_dot_product_attention(*parts))
        # 32 blocks of 128 keys in 16 parts: 8 * 16 blocks use 216 halves of SMs best.
        assert made == [8 * 128 * 2, 8 * 4, 16 * 8 * 4, 16 * 8 * 4 * 128, *RANDOM]


@pytest.mark.parametrize(
    ("blocks", "key_blocks", "expected"), [(8, 32, 16), (173, 32, 1), (172, 2, 1), (1, 1, 1)]
)
def test_the_fewest_parts_that_use_the_gpu_nearly_best(blocks, key_blocks, expected):
    assert splits_of(blocks, 216, key_blocks) == expected


@needs_groups
def test_grouped_queries_need_gradients_of_all_heads():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(2, 8, 512, 64), heads=2)
        result = F.scaled_dot_product_attention(*parts, enable_gqa=True)
        query, group = 2 * 8 * 512 * 64 * 2, 2 * 2 * 512 * 64 * 2
        gradient = torch.ones_like(result)
        assert taken(lambda: result.backward(gradient)) == [
            *(query, query),
            *(query, group, group),
            *(2 * 8 * 512 * 4, 2 * query),
            *(query, query),
        ]


def test_deterministic_flash_attention_accumulates_for_each_split():
    with simulate("a100", compute=False):
        parts = tensors(sizes=(1, 8, 128, 64))
        result = F.scaled_dot_product_attention(*parts)
        gradient = torch.ones_like(result)
        torch.use_deterministic_algorithms(True)
        try:
            made = taken(lambda: result.backward(gradient))
        finally:
            torch.use_deterministic_algorithms(False)
        assert made[-1] == 14 * 8 * 128 * 64 * 4  # 108 SMs for 8 heads


def test_efficient_attention_pads_the_sums_and_the_mask():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, sizes=(2, 8, 60, 64))
        mask = torch.ones(60, 60, dtype=torch.bool, device="cuda")
        results: list[torch.Tensor] = []

        def attend() -> None:
            results.append(F.scaled_dot_product_attention(*parts, attn_mask=mask))

        whole = 2 * 8 * 60 * 64 * 4
        assert taken(attend) == [
            *(4, 4, 60 * 60 * 4),  # minus infinity, zero, the mask to add
            60 * 64 * 4,
            *(whole, 2 * 8 * 64 * 4),
        ]
        assert results[0].stride() == (60 * 8 * 64, 64, 8 * 64, 1)


def test_efficient_attention_keeps_no_sums_without_a_gradient():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, grad=False)
        assert taken(lambda: F.scaled_dot_product_attention(*parts)) == [2 * 8 * 64 * 64 * 4]


def test_efficient_attention_accumulates_wide_heads_in_float32():
    with simulate("a100", compute=False), sdpa_kernel(EFFICIENT), torch.no_grad():
        parts = tensors(sizes=(2, 8, 64, 136), grad=False)
        whole = 2 * 8 * 64 * 136 * 2
        assert taken(lambda: F.scaled_dot_product_attention(*parts)) == [whole, 2 * whole]


def test_efficient_attention_backward_takes_the_workspace_of_its_kernel():
    with simulate("a100", compute=False), sdpa_kernel(EFFICIENT):
        parts = tensors(sizes=(2, 8, 60, 64))
        result = F.scaled_dot_product_attention(*parts)
        gradient = torch.ones_like(result)
        whole = 2 * 8 * 60 * 64 * 2
        # One block of 64 queries by 64 columns in each head: 4096 floats and a lock of 16 bytes.
        assert taken(lambda: result.backward(gradient)) == [
            *(whole,) * 3,
            2 * 8 * 60 * 4,
            2 * 8 * (4096 * 4 + 16),
            *(whole,) * 3,  # clones in the layout of the leaves
        ]


def test_efficient_attention_backward_in_float32_sums_products_itself():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, sizes=(2, 8, 60, 64))
        result = F.scaled_dot_product_attention(*parts)
        gradient = torch.ones_like(result)
        whole = 2 * 8 * 60 * 64 * 4
        assert taken(lambda: result.backward(gradient)) == [
            *(whole,) * 3,
            *(whole, 2 * 8 * 60 * 4, 2 * 8 * 60 * 4),
            2 * 8 * (4096 * 4 + 16),
            *(whole,) * 3,
        ]


def test_a_learnt_masks_gradient_has_aligned_rows():
    with simulate("a100", compute=False):
        parts = tensors(torch.float32, sizes=(2, 8, 60, 32), grad=False)
        mask = torch.zeros(2, 8, 60, 60, device="cuda", requires_grad=True)
        result = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        gradient = torch.ones_like(result)
        made = taken(lambda: result.backward(gradient))
        assert made[:4] == [*(2 * 8 * 60 * 32 * 4,) * 3, 2 * 8 * 60 * 64 * 4]


@pytest.mark.parametrize(
    ("gpu", "dtype", "size", "dropout", "expected"),
    [
        ("a100", torch.float16, 128, False, (128, 128, False)),
        ("l4", torch.float16, 128, False, (64, 64, True)),
        ("l4", torch.float16, 96, False, (128, 64, False)),
        ("l4", torch.float16, 96, True, (64, 64, True)),
        ("rtx5090", torch.float16, 96, False, (64, 64, True)),
        ("t4", torch.float16, 128, False, (128, 64, False)),
        ("a100", torch.float16, 136, False, (128, 64, True)),
        ("a100", torch.float32, 128, False, (128, 64, False)),
        ("l4", torch.float32, 128, False, (64, 64, False)),
        ("v100", torch.float32, 256, False, (64, 64, False)),
    ],
)
def test_the_kernel_depends_on_the_shared_memory(gpu, dtype, size, dropout, expected):
    tile = tile_of(PRESETS[gpu], dtype, size, dropout)
    assert (tile.queries, tile.keys, tile.accumulates) == expected


def test_accumulated_keys_are_split_unless_algorithms_are_deterministic():
    tile = tile_of(PRESETS["a100"], torch.float16, 256, False)
    # 2 blocks of 128 queries by 4 of 64 columns; 8 splits of 64 keys by 256 columns, twice
    query = 2 * 4 * (4 + 128 * 64)
    assert workspace(tile, (2, 4, 256, 512), (256, 256), True) == 8 * 4 * (query + 2 * 8 * 64 * 256)
    assert workspace(tile, (2, 4, 256, 512), (256, 256), False) == 8 * 4 * (query + 2 * 64 * 256)
    assert workspace(tile, (32, 4, 256, 512), (256, 256), True) == 128 * 4 * (query + 2 * 64 * 256)


@needs_cudnn
def test_cudnns_own_workspace_is_named_as_unknown():
    with simulate("h100", compute=False) as machine, sdpa_kernel(CUDNN):
        parts = tensors(sizes=(2, 8, 64, 64))
        results: list[torch.Tensor] = []
        whole, sums = 2 * 8 * 64 * 64 * 2, 2 * 8 * 64 * 4
        forward = taken(lambda: results.append(F.scaled_dot_product_attention(*parts)))
        assert forward == [8, 8, whole, sums]
        gradient = torch.ones_like(results[0])
        backward = taken(lambda: results[0].backward(gradient))
        assert backward == [whole] * 3 + [2 * whole + sums]
        forward_op, backward_op = (
            f"aten._scaled_dot_product_cudnn_attention{name}.default" for name in ("", "_backward")
        )
        assert set(machine.approximations[0].uncounted) == {
            (forward_op, "cuDNN workspaces"),
            (backward_op, "cuDNN workspaces"),
        }
        assert set(machine.approximations[0].estimated) == {backward_op}
        with torch.no_grad():
            forward = taken(lambda: F.scaled_dot_product_attention(*parts))
        assert forward == [8, 8, whole]


def attend_in_many_ways() -> None:
    """A program that takes each path, in training and without."""
    for dtype, sizes, options in (
        (torch.float16, (2, 8, 256, 64), {}),
        (torch.float16, (2, 8, 256, 36), {"is_causal": True}),
        (torch.float16, (2, 8, 256, 64), {"dropout_p": 0.25}),
        (torch.float32, (2, 8, 256, 64), {"is_causal": True}),
        (torch.float16, (2, 8, 250, 64), {"mask": True}),
        (torch.float64, (2, 8, 128, 64), {}),
        (torch.float16, (1, 8, 1, 264), {"keys": 1024}),
    ):
        options = dict(options)
        parts = tensors(dtype, sizes, keys=options.pop("keys", None))
        if options.pop("mask", False):
            options["attn_mask"] = torch.zeros(
                sizes[2], sizes[2], dtype=dtype, device="cuda", requires_grad=True
            )
        F.scaled_dot_product_attention(*parts, **options).sum().backward()
        with torch.no_grad():
            F.scaled_dot_product_attention(*parts, **options)
        if "attn_mask" not in options:
            with torch.inference_mode():
                F.scaled_dot_product_attention(*parts, **options)


def test_shapes_alone_take_the_same_memory():
    computed, shaped = (events_of(attend_in_many_ways, compute) for compute in (True, False))
    assert len(computed) > 100
    assert computed == shaped


def test_inference_mode_takes_the_same_path():
    with simulate("a100"):
        parts = tensors(sizes=(2, 8, 512, 64), grad=False)
        with torch.no_grad():
            expected = taken(lambda: F.scaled_dot_product_attention(*parts))
        with torch.inference_mode():
            assert taken(lambda: F.scaled_dot_product_attention(*parts)) == expected


def test_autocast_comes_before_the_choice():
    with simulate("a100"), torch.autocast("cuda", torch.bfloat16):
        result = F.scaled_dot_product_attention(*tensors(torch.float32))
        assert (result.dtype, node_of(result)) == (torch.bfloat16, NODES[FLASH])


def test_checkpointed_dropout_is_the_same_when_recomputed():
    with simulate("a100"):
        query, key, value = tensors(sizes=(2, 4, 64, 64))
        drawn: list[torch.Tensor] = []

        def attend(*parts: torch.Tensor) -> torch.Tensor:
            drawn.append(F.scaled_dot_product_attention(*parts, dropout_p=0.5))
            return drawn[-1]

        with set_checkpoint_early_stop(False):
            checkpoint(attend, query, key, value, use_reentrant=False).sum().backward()
        assert len(drawn) == 2
        assert torch.equal(*(one.detach().cpu() for one in drawn))


def test_transforms_of_functions_are_left_to_pytorch():
    with simulate("a100"):
        parts = tensors(torch.float32, sizes=(3, 2, 8, 16), grad=False)
        expected = F.scaled_dot_product_attention(*parts)
        mapped = torch.vmap(F.scaled_dot_product_attention)(*parts)
        assert torch.allclose(mapped.cpu(), expected.cpu(), atol=1e-6)


def test_modules_train_with_the_fused_kernels():
    with simulate("a100"):
        layer = torch.nn.TransformerEncoderLayer(
            64, 4, 128, dropout=0.0, batch_first=True, device="cuda", dtype=torch.float16
        )
        inputs = torch.randn(2, 16, 64, device="cuda", dtype=torch.float16)
        names: set[str] = set()
        waiting: list[Any] = [layer(inputs).grad_fn]
        while waiting:
            node = waiting.pop()
            names.add(type(node).__name__)
            waiting += [following for following, _ in node.next_functions if following is not None]
        assert NODES[FLASH] in names


def test_tensors_of_the_host_are_pytorchs_own():
    with simulate("a100"):
        parts = [torch.randn(2, 8, 16, 64, requires_grad=True) for _ in range(3)]
        result = F.scaled_dot_product_attention(*parts)
        assert "FlashAttentionForCpu" in node_of(result)
        assert torch.cuda.memory_allocated() == 0
