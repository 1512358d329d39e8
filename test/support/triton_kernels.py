"""Triton kernels of tests: in one file, so that it can be imported inside a simulation."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.library import triton_op, wrap_triton
from triton.language.extra import libdevice
from triton.language.extra.libdevice import rsqrt


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    total = tl.load(x + i, mask=inside) + tl.load(y + i, mask=inside)
    tl.store(out + i, total, mask=inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0) * columns
    i = tl.arange(0, BLOCK)
    value = tl.load(x + row + i, mask=i < columns, other=-float("inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, axis=0))
    tl.store(out + row + i, value / tl.sum(value, axis=0), mask=i < columns)


@triton.jit
def positive(x):
    return tl.where(x > 0, x, 0.0)


CONFIGS = [triton.Config({"TILE": tile}, num_warps=4) for tile in (16, 32)]


@triton.autotune(configs=CONFIGS, key=["K"], restore_value=["c"])
@triton.heuristics({"IS_EVEN": lambda arguments: arguments["K"] % arguments["TILE"] == 0})
@triton.jit
def product(a, b, c, M, N, K, TILE: tl.constexpr, IS_EVEN: tl.constexpr):
    tl.static_assert(IS_EVEN)
    row = (tl.program_id(0) * TILE + tl.arange(0, TILE))[:, None]
    column = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    inner = tl.arange(0, TILE)
    left = a + row * K + inner[None, :]
    right = b + inner[:, None] * N + column
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for _ in range(0, K, TILE):
        total = tl.dot(tl.load(left, mask=row < M), tl.load(right, mask=column < N), total)
        left += TILE
        right += TILE * N
    inside = (row < M) & (column < N)
    tl.store(c + row * N + column, positive(total).to(c.dtype.element_ty), mask=inside)


@triton.autotune(configs=CONFIGS, key=["K"])
@triton.jit
def product_without_heuristics(a, b, c, M, N, K, TILE: tl.constexpr):
    row = (tl.program_id(0) * TILE + tl.arange(0, TILE))[:, None]
    column = (tl.program_id(1) * TILE + tl.arange(0, TILE))[None, :]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for inner in range(K):
        left = tl.load(a + row * K + inner, mask=row < M, other=0.0)
        total += left * tl.load(b + inner * N + column, mask=column < N, other=0.0)
    tl.store(c + row * N + column, total, mask=(row < M) & (column < N))


@triton.jit
def activations(x, out, factor, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n, other=1.0)
    tl.store(
        out + i, factor.to(tl.float32) * libdevice.tanh(value) + rsqrt(value * value), mask=i < n
    )


@triton.jit
def arithmetic(x, y, out, total, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = i < n
    a = tl.load(x + i, mask=inside, other=0.0)
    b = tl.load(y + i, mask=inside, other=1.0)
    tl.store(out + i, tl.where(a > b, a + b, a * b), mask=inside)
    tl.store(total, tl.sum(a, axis=0))
    tl.store(total + 1, tl.max(a, axis=0))
    tl.store(total + 2, n.to(tl.bfloat16))


@triton.jit
def moved(x, out):
    value = tl.load(x + tl.arange(0, 16))
    value = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [value], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + tl.arange(0, 16), value)


@triton.jit
def add_atomically(x, out):
    tl.atomic_add(out + tl.arange(0, 16), tl.load(x + tl.arange(0, 16)))


@triton.jit
def gathered(table, offsets, out, BLOCK: tl.constexpr):
    first = tl.load(offsets + tl.program_id(0))
    i = tl.arange(0, BLOCK)
    target = out + tl.program_id(0) * BLOCK
    tl.store(target + i, tl.load(table + first + i))


@triton.jit
def described(x, out, n, BLOCK: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[n], strides=[1], block_shape=[BLOCK])
    target = tl.make_tensor_descriptor(out, shape=[n], strides=[1], block_shape=[BLOCK])
    target.store([0], source.load([0]))


@triton_op("tritonkernels::added", mutates_args={})
def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def added_outside_of_an_op(x, y):
    out = torch.empty_like(x)
    wrap_triton(add)[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def added_by_a_launch(x, y):
    out = torch.empty_like(x)
    add[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out


def scaled_by(factor):
    scale = tl.constexpr(factor)

    @triton.jit
    def multiplied(x, out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + i, tl.load(x + i) * scale)

    return multiplied
