"""Training of Llama 3 8B with FSDP, as torchtitan does it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_WIDTH, _HIDDEN, _LAYERS = 4096, 14336, 32
_HEADS, _KEY_HEADS, _HEAD = 32, 8, 128
_VOCABULARY = 128_256
_STEPS = 3
_SAVED = {
    torch.ops.aten.mm.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops._c10d_functional.reduce_scatter_tensor.default,
}


class _Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(_WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + 1e-5)
        return (wide * scale).type_as(x) * self.weight


def _rotated(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, : x.shape[1], None]).flatten(3).type_as(x)


def _repeated(x: torch.Tensor) -> torch.Tensor:
    batch, length, heads, size = x.shape
    times = _HEADS // heads
    wide = x[:, :, :, None].expand(batch, length, heads, times, size)
    return wide.reshape(batch, length, _HEADS, size)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(_WIDTH, _HEADS * _HEAD, bias=False)
        self.key = nn.Linear(_WIDTH, _KEY_HEADS * _HEAD, bias=False)
        self.value = nn.Linear(_WIDTH, _KEY_HEADS * _HEAD, bias=False)
        self.output = nn.Linear(_HEADS * _HEAD, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        query, key, value = self.query(x), self.key(x), self.value(x)
        query = query.view(batch, length, -1, _HEAD)
        key = key.view(batch, length, -1, _HEAD)
        value = value.view(batch, length, -1, _HEAD)
        query, key = _rotated(query, turns), _rotated(key, turns)
        keys = _repeated(key)
        values = _repeated(value)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(1, 2), keys.transpose(1, 2), values.transpose(1, 2), is_causal=True
        )
        result: torch.Tensor = self.output(
            mixed.transpose(1, 2).contiguous().view(batch, length, -1)
        )
        return result


class _FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(_WIDTH, _HIDDEN, bias=False)
        self.down = nn.Linear(_HIDDEN, _WIDTH, bias=False)
        self.up = nn.Linear(_WIDTH, _HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return result


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.feed_forward = _Attention(), _FeedForward()
        self.attention_norm, self.feed_forward_norm = _Norm(), _Norm()

    def forward(self, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), turns)
        result: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class _Llama(nn.Module):
    turns: torch.Tensor

    def __init__(self, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        steps = 500_000 ** -(torch.arange(0, _HEAD, 2).float() / _HEAD)
        angles = torch.outer(torch.arange(length).float(), steps)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))
        self.layers = nn.ModuleDict({str(number): _Block() for number in range(_LAYERS)})
        self.norm = _Norm()
        self.output = nn.Linear(_WIDTH, _VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x, self.turns)
        scores: torch.Tensor = self.output(self.norm(x))
        return scores


def _every_second_product() -> Any:
    """Keep the results of attention, of reductions and of every second product."""
    products: Counter[str] = Counter()

    def policy(context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        phase = "again" if context.is_recompute else "forward"
        if op == torch.ops.aten.mm.default:
            products[phase] += 1
        keeps = op in _SAVED and not (op == torch.ops.aten.mm.default and not products[phase] % 2)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _checkpointed(block: nn.Module, number: int, kept: str) -> nn.Module:
    if kept == "products":
        return checkpoint_wrapper(block, context_fn=_every_second_product, preserve_rng_state=False)
    if kept == "inputs" or (kept == "layers" and number % 2):
        return checkpoint_wrapper(block, preserve_rng_state=False)
    return block


def _sharded(length: int, ranks: int, kept: str, compiled: bool) -> _Llama:
    with torch.device("meta"):
        model = _Llama(length)
    mesh = init_device_mesh("cuda", (ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for name, block in list(model.layers.named_children()):
        wrapped = _checkpointed(block, int(name), kept)
        layer: Any = torch.compile(wrapped, fullgraph=True) if compiled else wrapped
        model.layers[name] = layer
    for name, block in model.layers.named_children():
        is_last = int(name) == _LAYERS - 1
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=not is_last)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.trunc_normal_(parameter, std=0.02)
    return model.train()


def _loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, 1).float(), labels.flatten(0, 1))


def train(
    ranks: int,
    batch: int = 1,
    length: int = 8192,
    kept: str = "products",
    compiled: bool = False,
    compiled_loss: bool = False,
    fused: bool = False,
) -> None:
    """Three steps of AdamW with clipped gradients.

    Args:
        ranks: GPUs among which everything is sharded.
        batch: sequences of each GPU.
        length: tokens of a sequence.
        kept: activations that are not computed again: ``all``, every second product and attention
            (``products``), those of every second layer (``layers``), the inputs of layers.
        compiled: each layer is.
        compiled_loss: the loss is.
        fused: the optimizer has one kernel.
    """
    init_process_group("nccl")
    torch.cuda.set_device(0)
    model = _sharded(length, ranks, kept, compiled)
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=3e-4,
        betas=(0.9, 0.95),
        weight_decay=0.1,
        fused=fused,
        foreach=not fused,
    )
    loss_of = torch.compile(_loss) if compiled_loss else _loss
    for _ in range(_STEPS):
        _step(model, optimizer, loss_of, (batch, length))


def _step(model: nn.Module, optimizer: Any, loss_of: Any, shape: Sequence[int]) -> None:
    tokens, labels = (torch.randint(_VOCABULARY, tuple(shape)).cuda() for _ in range(2))
    optimizer.zero_grad()
    scores = model(tokens)
    loss = loss_of(scores, labels)
    del scores
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
    optimizer.step()
