"""Values of attention by backend, with dropout, checkpoints, transforms and modules."""

from __future__ import annotations

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
    taken,
    tensors,
)
from support.dry_run_comparison import events_of
from torch.nn.attention import sdpa_kernel
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from pytorch_memlab.simulation import simulate

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
        (FLASH, {"heads": 2, "keys": 33}),
        (EFFICIENT, {}),
        (EFFICIENT, {"causal": True, "keys": 33}),
        (EFFICIENT, {"transposed": True}),
        (EFFICIENT, {"value_size": 32}),
        (EFFICIENT, {"size": 192}),
        *((EFFICIENT, {"mask": mask}) for mask in MASKS),
        (CUDNN, {"causal": True}),
        (CUDNN, {"mask": "bool"}),
        (CUDNN, {"mask": "float", "value_size": 32}),
        (CUDNN, {"heads": 1, "mask": "keys"}),
        (MATH, {"causal": True}),
        (MATH, {"mask": "learnt"}),
        (MATH, {"heads": 2}),
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


@pytest.mark.parametrize("backend", [FLASH, EFFICIENT, CUDNN])
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
