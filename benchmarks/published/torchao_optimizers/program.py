"""Fine-tuning of vision transformers with low-bit optimizers, and with one in host memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

_CLASSES, _PATCH, _SIDE = 45, 14, 224
_STEPS = 3
_SMALLEST = 4096  # elements of a parameter that is offloaded


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.output = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        packed = self.inputs(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        result: torch.Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class _GatedLinear(nn.Module):
    """Two linear layers; half of what is between them opens the other half."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, hidden), nn.Linear(hidden // 2, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, wide = self.first(x).chunk(2, dim=-1)
        result: torch.Tensor = self.second(functional.silu(gate) * wide)
        return result


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class _Block(nn.Module):
    def __init__(self, width: int, heads: int, gated: bool) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width, eps=1e-6) for _ in range(2))
        self.attention = _Attention(width, heads)
        hidden = 4 * width
        mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))
        self.mlp = _GatedLinear(width, int(width * 2.66667 * 2)) if gated else mlp
        self.scales = nn.ModuleList(_Scale(width) if gated else nn.Identity() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.scales[0](self.attention(self.norms[0](x)))
        result: torch.Tensor = x + self.scales[1](self.mlp(self.norms[1](x)))
        return result


class _VisionTransformer(nn.Module):
    def __init__(
        self, width: int, depth: int, heads: int, gated: bool, checkpointing: bool
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, _PATCH, _PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, (_SIDE // _PATCH) ** 2 + 1, width))
        self.layers = nn.ModuleList(_Block(width, heads, gated) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, _CLASSES)
        self.checkpointing = checkpointing

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(images), -1, -1), patches], dim=1) + self.positions
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=True) if self.checkpointing else layer(x)
        return self.head(self.norm(x)[:, 0])  # type: ignore[no-any-return]


_MODELS = {
    "huge": {"width": 1280, "depth": 32, "heads": 16, "gated": False},
    "giant": {"width": 1536, "depth": 40, "heads": 24, "gated": True},
}


class _Offloaded:
    """AdamW of torchao's ``CPUOffloadOptimizer``, as far as it takes memory of the GPU.

    Gradients of large parameters go to the host on a stream of their own; the small ones stay.
    """

    def __init__(self, model: nn.Module, frees_gradients: bool) -> None:
        self.stream = torch.cuda.Stream()
        self.frees_gradients = frees_gradients
        self.model = model
        small = [weight for weight in model.parameters() if weight.numel() < _SMALLEST]
        self.on_gpu = torch.optim.AdamW(small, fused=True)
        for weight in model.parameters():
            if weight.numel() >= _SMALLEST:
                weight.register_post_accumulate_grad_hook(self._send)

    def _send(self, weight: torch.Tensor) -> None:
        self.stream.wait_stream(torch.cuda.current_stream())
        self.stream.record_event()
        if self.frees_gradients and weight.grad is not None:
            weight.grad.record_stream(self.stream)
            weight.grad = None

    def step(self) -> None:
        """The small parameters; the host has the others."""
        self.on_gpu.step()
        self.stream.synchronize()

    def zero_grad(self) -> None:
        """Of all parameters."""
        self.model.zero_grad(set_to_none=True)


def _optimizer(name: str, model: nn.Module) -> Any:
    if name == "8-bit":
        from bitsandbytes.optim import AdamW8bit

        return AdamW8bit(model.parameters(), lr=1e-4, weight_decay=0.0)
    if name.startswith("offloaded"):
        return _Offloaded(model, frees_gradients=name.endswith("gradients"))
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)


def train(
    model: str,
    batch: int,
    optimizer: str = "fused",
    bfloat16: bool = False,
    compiled: bool = False,
    checkpointing: bool = False,
) -> None:
    """Three steps, in bfloat16 or with autocast."""
    network: Any = _VisionTransformer(**_MODELS[model], checkpointing=checkpointing)  # type: ignore[arg-type]
    if bfloat16:
        network.bfloat16()
    network.cuda().train()
    if compiled:
        network.compile(fullgraph=True)
    rule = _optimizer(optimizer, network)
    for _ in range(_STEPS):
        images = torch.zeros(batch, 3, _SIDE, _SIDE)
        labels = torch.zeros(batch, dtype=torch.int64)
        if bfloat16:
            images = images.bfloat16()
        with torch.autocast("cuda", torch.bfloat16, enabled=not bfloat16):
            loss = functional.cross_entropy(network(images.cuda()), labels.cuda())
        loss.backward()
        rule.step()
        rule.zero_grad()
