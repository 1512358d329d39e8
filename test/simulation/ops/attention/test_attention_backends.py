"""The backend of attention that a simulated GPU runs, and why others do not run."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.attention_calls import (
    CUDNN,
    EFFICIENT,
    FLASH,
    MATH,
    NODES,
    node_of,
    tensors,
)
from torch.nn.attention import sdpa_kernel

from pytorch_memlab.errors import UnsupportedCUDACallError
from pytorch_memlab.simulation import simulate
from pytorch_memlab.simulation.hardware.gpu import GPU
from pytorch_memlab.simulation.machine.torch_release import RELEASE
from pytorch_memlab.simulation.ops.attention import reference
from pytorch_memlab.simulation.ops.attention.sdp_backend import (
    AttentionCall,
    SDPBackend,
    against,
    cudnn_version,
)

CHOICES = json.loads((Path(__file__).parents[3] / "data" / "attention_choices.json").read_text())
RECORDED = CHOICES["2.13"] if RELEASE >= (2, 13) else []


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


def call_of(gpu: Any, configuration: Any) -> AttentionCall:
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
    return AttentionCall(
        gpu,
        empty(2, heads[0], queries, sizes[0], grad=trains),
        empty(2, heads[1], keys, sizes[0], grad=trains),
        empty(2, heads[1], keys, sizes[1], grad=trains),
        masks[mask](),
        dropout,
        causal,
        heads[2],
    )


@pytest.mark.skipif(not RECORDED, reason="recorded for torch 2.13")
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
                (against(SDPBackend.FLASH, call) is None)
                + 2 * (against(SDPBackend.EFFICIENT, call) is None)
                + 4 * (against(SDPBackend.CUDNN, call) is None)
            )
            assert usable == int(digit), (capability, configuration)


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


@pytest.mark.parametrize(("offset", "expected"), [(0, EFFICIENT), (1, MATH), (4, EFFICIENT)])
def test_efficient_attention_reads_sixteen_bytes_at_once_of_what_begins_there(offset, expected):
    with simulate("a100"):
        query, key, value = tensors(torch.float32)
        moved = torch.empty(query.numel() + offset, device="cuda")[offset:].view(query.shape)
        backend = expected if RELEASE >= (2, 13) else EFFICIENT
        assert torch._fused_sdp_choice(moved, key, value) == backend.value


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
    dtypes = (
        "Expected query, key and value to all be of dtype: {Half, BFloat16}. Got Query dtype: "
        "float, Key dtype: float, and Value dtype: float instead."
    )
    assert texts == [
        "Memory efficient kernel not used because:",
        "Memory Efficient attention has been runtime disabled.",
        "Flash attention kernel not used because:",
        dtypes,
        "CuDNN attention kernel not used because:",
        "cuDNN attention has been runtime disabled.",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda parts: [part[0] for part in parts], "query, key and value to be 4 dimensional, bu"),
        (lambda parts: [part[:, :, :0] for part in parts], "do not support zero seq_len_q or seq"),
        (lambda parts: [part.mT for part in parts], "dimension of the input to have stride 1. Got"),
        (lambda parts: [part.double() for part in parts], "dtype: double, Key dtype: double, and"),
    ],
)
@pytest.mark.parametrize("backend", [FLASH, EFFICIENT])
def test_warnings_have_the_words_of_pytorch(change, message, backend):
    with simulate("a100"), sdpa_kernel(backend):
        parts = change(tensors())
        with (
            pytest.warns(UserWarning, match=message),
            pytest.raises(RuntimeError, match="No available kernel"),
        ):
            F.scaled_dot_product_attention(*parts)
        parameters = torch.backends.cuda.SDPAParams(*parts, None, 0.0, False, False)
        can_use = {
            FLASH: torch.backends.cuda.can_use_flash_attention,
            EFFICIENT: torch.backends.cuda.can_use_efficient_attention,
        }[backend]
        with pytest.warns(UserWarning, match=message):
            assert not can_use(parameters, debug=True)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert not can_use(parameters)


@pytest.mark.parametrize("compute", [True, False])
def test_wrong_arguments_are_refused_as_anywhere(compute):
    with simulate("a100", compute=compute):
        query, key, value = tensors()
        mask = torch.ones(64, 64, dtype=torch.float64, device="cuda")
        with pytest.raises(RuntimeError, match="Expected attn_mask dtype"):
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        with pytest.raises(RuntimeError, match="same dtype"):
            F.scaled_dot_product_attention(query, key.float(), value)
        mask = torch.zeros(64, 64, device="cuda")
        with pytest.raises(RuntimeError, match="invalid dtype for bias"):
            F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        many = torch.empty(65_536, 1, 1, 8, device="cuda")
        with pytest.raises(RuntimeError, match=r"batch size exceeds \(65535\)"):
            torch.ops.aten._scaled_dot_product_efficient_attention(
                many, many, many, None, False, dropout_p=0.1
            )


def test_autocast_comes_before_the_choice():
    with simulate("a100"), torch.autocast("cuda", torch.bfloat16):
        result = F.scaled_dot_product_attention(*tensors(torch.float32))
        assert (result.dtype, node_of(result)) == (torch.bfloat16, NODES[FLASH])


def test_tensors_of_the_host_are_pytorchs_own():
    with simulate("a100"):
        parts = [torch.randn(2, 8, 16, 64, requires_grad=True) for _ in range(3)]
        result = F.scaled_dot_product_attention(*parts)
        assert "FlashAttentionForCpu" in node_of(result)
        assert torch.cuda.memory_allocated() == 0


@pytest.mark.parametrize(
    ("gpu", "dtype", "size", "options", "expected"),
    [
        ("a100", torch.float16, 64, {}, FLASH),
        ("a100", torch.float32, 64, {}, EFFICIENT),
        ("a100", torch.float64, 64, {}, MATH),
        ("a100", torch.float16, 264, {}, EFFICIENT),
        ("a100", torch.float32, 63, {}, MATH),
        ("a100", torch.float16, 64, {"attn_mask": torch.bool}, EFFICIENT),
        ("t4", torch.float16, 64, {}, EFFICIENT),
        ("t4", torch.float32, 64, {"is_causal": True}, EFFICIENT),
        ("t4", torch.bfloat16, 64, {}, MATH),
    ],
)
@pytest.mark.parametrize("compute", [True, False])
def test_a_program_that_asks_for_the_backend_gets_the_one_that_runs(
    gpu, dtype, size, options, expected, compute
):
    with simulate(gpu, compute=compute):
        options = dict(options)
        if "attn_mask" in options:
            options["attn_mask"] = torch.ones(64, 64, dtype=torch.bool, device="cuda")
        parts = tensors(dtype, sizes=(2, 8, 64, size))
        assert torch._fused_sdp_choice(*parts, **options) == expected.value
        node = node_of(F.scaled_dot_product_attention(*parts, **options))
        assert (node == NODES[expected]) if expected in NODES else ("ScaledDot" not in node)
    parts = [part.detach().cpu() for part in tensors_of_the_host()]
    assert torch._fused_sdp_choice(*parts) == FLASH.value  # as a CPU does


def tensors_of_the_host():
    return [torch.randn(2, 8, 16, 64) for _ in range(3)]


def nested(*lengths):
    rows = [torch.randn(4, length, 16) for length in lengths]
    return rows, torch.nested.nested_tensor(rows, device="cuda")


def test_fused_attention_of_nested_tensors_is_refused_by_name():
    with simulate("a100"):
        _, parts = nested(3, 5)
        for backends in ([FLASH, EFFICIENT, MATH], [FLASH], [EFFICIENT]):
            with (
                sdpa_kernel(backends),
                pytest.raises(UnsupportedCUDACallError, match="fused attention of nested tensors"),
            ):
                F.scaled_dot_product_attention(parts, parts, parts)


def test_a_fused_kernel_that_is_called_by_its_name_refuses_nested_tensors_by_name():
    with simulate("a100"):
        parts = nested(3, 5)[1].half()
        for name in ("flash", "efficient"):
            op = getattr(torch.ops.aten, f"_scaled_dot_product_{name}_attention")
            more = (None, False) if name == "efficient" else ()
            with pytest.raises(UnsupportedCUDACallError, match=f"{name}_attention with nested"):
                op(parts, parts, parts, *more)


def test_attention_of_nested_tensors_by_its_formula_has_values_and_a_mark():
    with simulate("a100") as machine, sdpa_kernel(MATH):
        rows, parts = nested(3, 5)
        result = F.scaled_dot_product_attention(parts, parts, parts)
        assert result.is_cuda
        for one, row in zip(result.unbind(), rows, strict=True):
            expected = F.scaled_dot_product_attention(row, row, row)
            torch.testing.assert_close(one.cpu(), expected)
        assert machine.approximations[0].unmodelled


@pytest.mark.parametrize(
    ("backend", "name"), [(FLASH, "Flash Attention"), (EFFICIENT, "Memory Efficient attention")]
)
@pytest.mark.parametrize("warn_only", [True, False])
def test_a_program_that_asks_for_warnings_of_nondeterminism_gets_them(backend, name, warn_only):
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with simulate("a100"), sdpa_kernel(backend), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = F.scaled_dot_product_attention(*tensors())
            assert not caught
            result.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_warn_always(before)
    found = [text for text in (str(one.message) for one in caught) if "non-deterministic" in text]
    assert [text.partition(" defaults")[0] for text in found] == ([name] if warn_only else [])


@pytest.mark.parametrize(("always", "count"), [(False, 1), (True, 2)])
def test_a_warning_of_nondeterminism_comes_once_or_each_time(
    monkeypatch: pytest.MonkeyPatch, always: bool, count: int
) -> None:
    monkeypatch.setattr(reference, "_warned", set())
    before = torch.is_warn_always_enabled()
    torch.set_warn_always(always)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                reference.warn_of_nondeterminism("Flash Attention")
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_warn_always(before)
    assert len(caught) == count
