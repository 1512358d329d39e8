"""Training of a small Qwen3 with FSDP2 or HSDP, as torchtitan does it."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed import init_process_group
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

_WIDTH, _HIDDEN, _LAYERS, _VOCABULARY = 256, 3072, 8, 2048
_HEADS, _KEY_HEADS, _HEAD = 16, 8, 128
_BATCH, _LENGTH, _CONTEXT = 8, 2048, 4096
_CHUNKS = 8
_STEPS = 3
_flex: Any = torch.compile(
    flex_attention,
    options={
        "wrap_inductor_compiled_regions": True,
        "max_autotune": False,
        "coordinate_descent_tuning": False,
        "triton.cudagraphs": False,
    },
)
_block_mask: Any = torch.compile(create_block_mask)


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.projections = nn.Linear(_WIDTH, (_HEADS + 2 * _KEY_HEADS) * _HEAD, bias=False)
        self.query_norm, self.key_norm = nn.RMSNorm(_HEAD, 1e-6), nn.RMSNorm(_HEAD, 1e-6)
        self.output = nn.Linear(_HEADS * _HEAD, _WIDTH, bias=False)

    def forward(self, x: torch.Tensor, mask: Any, places: torch.Tensor, turns: Any) -> torch.Tensor:
        batch, length, _ = x.shape
        queries = _HEADS // _KEY_HEADS
        groups = self.projections(x).view(batch, length, -1, queries + 2, _HEAD)
        parts = torch.split(groups, [queries, 1, 1], dim=-2)
        query, key, value = (part.reshape(batch, length, -1, _HEAD).contiguous() for part in parts)
        query, key = self.query_norm(query), self.key_norm(key)
        query, key = _rotated(query, key, _at(turns, places))
        mixed = _flex(
            query.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            block_mask=mask,
            scale=_HEAD**-0.5,
            enable_gqa=True,
        )
        rows = mixed.transpose(1, 2).contiguous().view(batch, length, -1)
        result: torch.Tensor = self.output(rows)
        return result


def _at(turns: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The cosines and sines at the places of tokens, a copy for each sequence."""
    batch, length = places.shape
    wide = turns[None, :, None, :].expand(batch, -1, -1, -1)
    index = places.view(batch, length, 1, 1).expand(batch, length, 1, 2 * _HEAD)
    return torch.gather(wide, dim=1, index=index)


def _turned(x: torch.Tensor) -> torch.Tensor:
    first, second = x[..., : _HEAD // 2], x[..., _HEAD // 2 :]
    return torch.cat((-second, first), dim=-1)


def _rotated(
    query: torch.Tensor, key: torch.Tensor, turns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    cosine, sine = turns[..., :_HEAD], turns[..., _HEAD:]
    queries, keys = query.float(), key.float()
    rotated = (queries * cosine) + (_turned(queries) * sine)
    keys = (keys * cosine) + (_turned(keys) * sine)
    return rotated.type_as(query), keys.type_as(key)


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
        self.attention_norm, self.feed_forward_norm = (nn.RMSNorm(_WIDTH, 1e-6) for _ in range(2))

    def forward(self, x: torch.Tensor, mask: Any, places: torch.Tensor, turns: Any) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), mask, places, turns)
        result: torch.Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return result


class _Qwen(nn.Module):
    turns: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        steps = 1_000_000.0 ** -(torch.arange(0, _HEAD, 2).float() / _HEAD)
        angles = torch.outer(torch.arange(_CONTEXT).float(), steps).repeat(1, 2)
        self.register_buffer("turns", torch.cat([angles.cos(), angles.sin()], dim=-1))
        self.layers = nn.ModuleDict({str(number): _Block() for number in range(_LAYERS)})
        self.norm = nn.RMSNorm(_WIDTH, 1e-6)
        self.head = nn.Linear(_WIDTH, _VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor, mask: Any, places: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers.values():
            x = layer(x, mask, places, self.turns)
        result: torch.Tensor = self.norm(x)
        if isinstance(result, DTensor):  # its gradient is the sum of those of the head's shares
            whole = result.redistribute(placements=[Replicate()])
            result = whole.to_local(grad_placements=[Partial()])
        return result


def _kept() -> set[Any]:
    """Operators whose results a checkpoint keeps."""
    from torch._functorch.partitioners import get_default_op_list

    products: list[Any] = list(get_default_op_list().compute_intensive_ops)
    kept = {op.default for op in products}
    higher: Any = torch._higher_order_ops
    more = (
        torch.ops.aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.aten.max.default,
        torch.ops.aten.linear.default,
        torch.ops.aten.topk.default,
        torch.ops._c10d_functional.reduce_scatter_tensor.default,
        higher.flex_attention,
        higher.inductor_compiled_code,
    )
    return {*kept, *more}


def _every_second_product() -> Any:
    """Keep the results of attention, of reductions and of every second product."""
    products: Counter[str] = Counter()
    kept = _kept()
    product = (torch.ops.aten.mm.default, torch.ops.aten.linear.default)

    def policy(context: Any, op: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        phase = "again" if context.is_recompute else "forward"
        products[phase] += op in product
        keeps = op in kept and not (op in product and products[phase] % 2 == 0)
        return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _in_shares(model: _Qwen, mesh: DeviceMesh) -> None:
    """Share each layer among GPUs, and the tokens of what lies between the shared products."""
    whole = (Replicate(), None, None, None)
    layer = {
        "attention_norm": SequenceParallel(),
        "attention": PrepareModuleInput(
            input_layouts=(Shard(1), None, None, None), desired_input_layouts=whole
        ),
        "attention.projections": ColwiseParallel(),
        "attention.query_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        "attention.key_norm": SequenceParallel(sequence_dim=2, use_local_output=True),
        "attention.output": RowwiseParallel(output_layouts=Shard(1)),
        "feed_forward_norm": SequenceParallel(),
        "feed_forward": PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "feed_forward.gate": ColwiseParallel(),
        "feed_forward.up": ColwiseParallel(),
        "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
    }
    for block in model.layers.values():
        parallelize_module(block, mesh, layer)
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)
    model.head.weight = model.embedding.weight


def _sharded(replicas: int, shards: int, shares: int) -> _Qwen:
    with torch.device("meta"):
        model = _Qwen()
    sizes = {"replicate": replicas, "shard": shards, "share": shares}
    sizes = {name: size for name, size in sizes.items() if size > 1}
    mesh = init_device_mesh("cuda", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
    if shares > 1:
        _in_shares(model, mesh["share"])
        mesh = mesh[tuple(name for name in sizes if name != "share")]
    policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
    settings: dict[str, Any] = {"mesh": mesh, "mp_policy": policy}
    for name, block in list(model.layers.named_children()):
        model.layers[name] = checkpoint_wrapper(
            block, context_fn=_every_second_product, early_stop=False
        )
    fully_shard([model.embedding, model.norm, model.head], **settings, reshard_after_forward=False)
    for block in model.layers.values():
        fully_shard(block, **settings)
    fully_shard(model, **settings)
    for module in model.modules():
        if isinstance(module, torch.distributed.fsdp.FSDPModule):
            module.set_gradient_divide_factor(1.0)
    model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.02)
    return model.train()


class _Backward(torch.autograd.Function):
    """Hands the gradient, which the loss of chunks has computed, to the layers."""

    @staticmethod
    def forward(ctx: Any, _x: Any, gradient: torch.Tensor, loss: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gradient)
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, _gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient, None, None


def _loss_in_chunks(head: Any, x: torch.Tensor, labels: torch.Tensor, groups: int) -> torch.Tensor:
    """The loss of one eighth of each sequence at a time, with the gradients of the scores.

    Args:
        head: makes the scores.
        x: what it takes.
        labels: of the tokens.
        groups: GPUs, or groups of them, with sequences of their own.
    """
    chunks = [
        chunk.contiguous().detach().requires_grad_() for chunk in x.split(_LENGTH // _CHUNKS, dim=1)
    ]
    label_chunks = [chunk.contiguous() for chunk in labels.split(_LENGTH // _CHUNKS, dim=1)]
    gradient = torch.zeros_like(x, dtype=torch.float32)
    total = x.new_zeros((), dtype=torch.float32)
    head.set_reshard_after_forward(False)
    head.set_reshard_after_backward(False)
    head.set_requires_gradient_sync(False, recurse=False)
    for number, (chunk, wanted) in enumerate(zip(chunks, label_chunks, strict=True)):
        if number == _CHUNKS - 1:
            head.set_requires_gradient_sync(True, recurse=False)
        scores = head(chunk)
        with loss_parallel() if isinstance(scores, DTensor) else nullcontext():
            loss = functional.cross_entropy(
                scores.flatten(0, 1).float(), wanted.flatten(0, 1), reduction="sum"
            )
            loss = loss / (groups * _BATCH * _LENGTH)
            whole = loss.full_tensor() if isinstance(loss, DTensor) else loss
            total = total + whole.detach()
            loss.backward()
        rows = slice(number * _LENGTH // _CHUNKS, (number + 1) * _LENGTH // _CHUNKS)
        gradient[:, rows] = chunk.grad.float()
        chunk.grad = None
    head.set_reshard_after_forward(True)
    head.set_reshard_after_backward(True)
    head.reshard()
    return _Backward.apply(x, gradient.to(x.dtype), total)  # type: ignore[no-any-return,no-untyped-call]


def train(replicas: int, shards: int, shares: int = 1) -> None:
    """Three steps of AdamW with clipped gradients.

    Args:
        replicas: groups of GPUs of which each has the whole model.
        shards: GPUs of a group, or groups of them, among which the model is sharded.
        shares: GPUs among which each layer is shared.
    """
    init_process_group("nccl")
    torch.cuda.set_device(0)
    torch.use_deterministic_algorithms(True)
    model = _sharded(replicas, shards, shares)
    rule = torch.optim.AdamW(model.parameters(), 8e-4, (0.9, 0.95), 1e-8, 0.1, fused=True)
    for _ in range(_STEPS):
        tokens, labels = (torch.randint(_VOCABULARY, (_BATCH, _LENGTH)).cuda() for _ in range(2))
        places = torch.arange(_LENGTH).repeat(_BATCH, 1).cuda()
        rule.zero_grad()
        x = model(tokens, _mask(places), places)
        loss = _loss_in_chunks(model.head, x, labels, replicas * shards)
        del x
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        rule.step()


def _mask(places: torch.Tensor) -> Any:
    """The mask of texts in a sequence: a token sees those before it in its text."""
    text = (places == 0).cumsum(1)

    def sees(batch: Any, _head: Any, query: Any, key: Any) -> Any:
        return (query >= key) & (text[batch, query] == text[batch, key])

    return _block_mask(sees, _BATCH, None, _LENGTH, _LENGTH, device=places.device)
