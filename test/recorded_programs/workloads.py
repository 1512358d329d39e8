"""Small programs to record on a real GPU and to simulate: each keeps what it returns, no more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

Workload = Callable[[], list[Tensor]]

WORKLOADS: dict[str, Workload] = {}
"""By name: each runs on CUDA from the first allocation on and returns the tensors that it keeps."""


def workload(make: Workload) -> Workload:
    WORKLOADS[make.__name__] = make
    return make


def kept(model: nn.Module, *optimizers: torch.optim.Optimizer) -> list[Tensor]:
    """All tensors that a model and its optimizers hold on GPUs."""
    tensors: list[Tensor] = [*model.parameters(), *model.buffers()]
    tensors += [one.grad for one in model.parameters() if one.grad is not None]
    for optimizer in optimizers:
        for state in optimizer.state.values():
            tensors += [value for value in state.values() if isinstance(value, Tensor)]
    return [tensor for tensor in tensors if tensor.is_cuda]


def steps(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss_of: Callable[[], Tensor],
    count: int = 2,
) -> list[Tensor]:
    for _ in range(count):
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()
    return kept(model, optimizer)


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()


def train_mlp(kind: type[torch.optim.Optimizer], **options: Any) -> list[Tensor]:
    model = mlp()
    x, y = torch.randn(2, 256, 512, device="cuda")
    return steps(model, kind(model.parameters(), **options), lambda: F.mse_loss(model(x), y))


@workload
def mlp_sgd_momentum() -> list[Tensor]:
    return train_mlp(torch.optim.SGD, lr=1e-3, momentum=0.9)


@workload
def mlp_adam_for_loop() -> list[Tensor]:
    return train_mlp(torch.optim.Adam, lr=1e-3, foreach=False)


@workload
def mlp_adamw_foreach() -> list[Tensor]:
    return train_mlp(torch.optim.AdamW, lr=1e-3, foreach=True)


@workload
def mlp_adamw_fused() -> list[Tensor]:
    return train_mlp(torch.optim.AdamW, lr=1e-3, fused=True)


@workload
def cnn_batch_norm() -> list[Tensor]:
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    ).cuda()  # fmt: skip
    x = torch.randn(8, 3, 64, 64, device="cuda")
    y = torch.zeros(8, dtype=torch.int64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return steps(model, optimizer, lambda: F.cross_entropy(model(x), y))


def recurrent(kind: type[nn.RNNBase]) -> list[Tensor]:
    model = kind(128, 256, num_layers=2, batch_first=True).cuda()
    x = torch.randn(16, 32, 128, device="cuda")
    optimizer = torch.optim.Adam(model.parameters())
    return steps(model, optimizer, lambda: model(x)[0].sum())


@workload
def lstm() -> list[Tensor]:
    return recurrent(nn.LSTM)


@workload
def gru() -> list[Tensor]:
    return recurrent(nn.GRU)


@workload
def transformer_encoder_layer() -> list[Tensor]:
    model = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True).cuda()
    x = torch.randn(4, 128, 256, device="cuda")
    return steps(model, torch.optim.AdamW(model.parameters()), lambda: model(x).sum())


class GPTBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.mix(self.first(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.second(x))))


def gpt_block(backends: list[SDPBackend], dtype: torch.dtype) -> list[Tensor]:
    model = GPTBlock(256, 4).to("cuda", dtype)
    x = torch.randn(4, 128, 256, device="cuda", dtype=dtype)
    with sdpa_kernel(backends):
        return steps(model, torch.optim.AdamW(model.parameters()), lambda: model(x).sum())


@workload
def gpt_block_flash_bf16() -> list[Tensor]:
    return gpt_block([SDPBackend.FLASH_ATTENTION], torch.bfloat16)


@workload
def gpt_block_efficient_fp32() -> list[Tensor]:
    # A GPU takes the first that it can; the host has no memory-efficient one.
    return gpt_block([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH], torch.float32)


@workload
def gpt_block_math_fp32() -> list[Tensor]:
    return gpt_block([SDPBackend.MATH], torch.float32)


@workload
def attention_written_out() -> list[Tensor]:
    q, k, v = (torch.randn(4, 512, 64, device="cuda", requires_grad=True) for _ in range(3))
    weights = (q @ k.transpose(-2, -1) / 8).softmax(dim=-1)
    (weights @ v).sum().backward()
    del weights
    return [tensor for one in (q, k, v) for tensor in (one, one.grad) if tensor is not None]


@workload
def embedding_sparse_gradient() -> list[Tensor]:
    model = nn.Embedding(10_000, 128, sparse=True).cuda()
    tokens = torch.zeros(16, 64, dtype=torch.int64, device="cuda")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(2):
        optimizer.zero_grad()
        model(tokens).sum().backward()
        optimizer.step()
    optimizer.zero_grad()
    return kept(model)


@workload
def gan_step() -> list[Tensor]:
    generator = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 512)).cuda()
    critic = nn.Sequential(nn.Linear(512, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1)).cuda()
    making = torch.optim.Adam(generator.parameters())
    judging = torch.optim.Adam(critic.parameters())
    real = torch.randn(32, 512, device="cuda")
    for _ in range(2):
        fake = generator(torch.randn(32, 64, device="cuda"))
        judging.zero_grad()
        (F.softplus(critic(fake.detach())) + F.softplus(-critic(real))).mean().backward()
        judging.step()
        making.zero_grad()
        F.softplus(-critic(fake)).mean().backward()
        making.step()
    return kept(generator, making) + kept(critic, judging)


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv2d(3, 32, 3, padding=1), nn.Conv2d(32, 64, 3, 2, 1)
        self.norm = nn.GroupNorm(8, 64)
        self.up, self.leave = nn.ConvTranspose2d(64, 32, 2, 2), nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        wide = F.silu(self.enter(x))
        deep = F.silu(self.norm(self.down(wide)))
        return self.leave(torch.cat((self.up(deep), wide), dim=1))


@workload
def unet_step() -> list[Tensor]:
    model = UNet().cuda()
    x, noise = torch.randn(2, 4, 3, 64, 64, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    return steps(model, optimizer, lambda: F.mse_loss(model(x), noise))


@workload
def dropout_layer_norm() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(256, 256), nn.Dropout(0.1), nn.LayerNorm(256)).cuda()
    x = torch.randn(512, 256, device="cuda")
    return steps(model, torch.optim.SGD(model.parameters()), lambda: model(x).sum())


@workload
def sorting_and_indexing() -> list[Tensor]:
    x = torch.randn(256, 1024, device="cuda")
    ordered = x.sort(dim=-1).values
    largest = x.topk(16, dim=-1).values
    above = (x > 10).nonzero()
    sums = x.cumsum(dim=-1)
    x[torch.arange(256, device="cuda"), 0] = 1.0
    places = torch.zeros(64, dtype=torch.int64, device="cuda")
    x.index_put_((places,), torch.ones(64, 1024, device="cuda"), accumulate=True)
    del above, places, sums
    return [x, ordered, largest]


@workload
def mlp_autocast_bf16() -> list[Tensor]:
    model = mlp()
    x, y = torch.randn(2, 256, 512, device="cuda")

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return F.mse_loss(model(x), y)

    return steps(model, torch.optim.AdamW(model.parameters()), loss)


@workload
def transformer_autocast_bf16() -> list[Tensor]:
    model = GPTBlock(256, 4).cuda()
    x = torch.randn(4, 128, 256, device="cuda")

    def loss() -> Tensor:
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).float().sum()

    return steps(model, torch.optim.AdamW(model.parameters()), loss)


@workload
def checkpointed_blocks() -> list[Tensor]:
    blocks = nn.ModuleList(GPTBlock(256, 4) for _ in range(3)).cuda()
    x = torch.randn(4, 128, 256, device="cuda", requires_grad=True)

    def loss() -> Tensor:
        return checkpointed(blocks, x).sum()

    # What the loop leaves beside the model is the gradient of x, which dies with it.
    return steps(blocks, torch.optim.AdamW(blocks.parameters()), loss)


def checkpointed(blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
    for block in blocks:
        x = checkpoint(block, x, use_reentrant=False)
    return x
