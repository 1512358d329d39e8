"""A diffusion model: a U-Net that learns to take noise out of images, and then draws some.

It runs on a GPU as it is. Without one:

    pytorch-memlab run examples/diffusion.py
    pytorch-memlab run --dry-run -f train examples/diffusion.py --batch 64 --size 64 --width 128
"""

import argparse
import copy
import math

import torch
from torch import nn
from torch.nn import functional

NOISE_LEVELS = 1000


def embed(levels: torch.Tensor, width: int) -> torch.Tensor:
    """Sines and cosines of noise levels."""
    powers = torch.arange(width // 2, device=levels.device) / (width // 2)
    angles = levels[:, None].float() * torch.exp(-math.log(10_000) * powers)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class Residual(nn.Module):
    """Two convolutions with group norms; the noise level is added between them.

    Args:
        inputs: channels of the input.
        outputs: channels of the result.
        level_width: of the embedding of noise levels.
    """

    def __init__(self, inputs: int, outputs: int, level_width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.GroupNorm(8, inputs), nn.SiLU(), nn.Conv2d(inputs, outputs, 3, padding=1)
        )
        self.level = nn.Linear(level_width, outputs)
        self.second = nn.Sequential(
            nn.GroupNorm(8, outputs), nn.SiLU(), nn.Dropout(0.1),
            nn.Conv2d(outputs, outputs, 3, padding=1),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, levels: torch.Tensor) -> torch.Tensor:
        """One block."""
        hidden = self.first(x) + self.level(levels)[:, :, None, None]
        added: torch.Tensor = self.second(hidden) + self.shortcut(x)
        return added


class Attention(nn.Module):
    """Every place of an image looks at every other.

    Args:
        width: channels.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, width)
        self.qkv = nn.Conv2d(width, 3 * width, 1)
        self.out = nn.Conv2d(width, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One layer of attention, four heads."""
        batch, width, height, length = x.shape
        parts = self.qkv(self.norm(x)).view(batch, 3, 4, width // 4, height * length)
        query, key, value = parts.transpose(-1, -2).unbind(1)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        added: torch.Tensor = x + self.out(mixed.transpose(-1, -2).reshape(x.shape))
        return added


class UNet(nn.Module):
    """Down to a quarter of the size, attention, and up again.

    Args:
        width: channels at full size.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        levels = 4 * width
        self.level = nn.Sequential(
            nn.Linear(width, levels), nn.SiLU(), nn.Linear(levels, levels), nn.SiLU()
        )
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(
            [Residual(width, width, levels), Residual(width, 2 * width, levels)]
        )
        self.shrink = nn.ModuleList(
            [nn.Conv2d(width, width, 3, 2, 1), nn.Conv2d(2 * width, 2 * width, 3, 2, 1)]
        )
        self.middle = Residual(2 * width, 2 * width, levels)
        self.attention = Attention(2 * width)
        self.up = nn.ModuleList(
            [Residual(4 * width, width, levels), Residual(2 * width, width, levels)]
        )
        self.leave = nn.Sequential(
            nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
        )

    def forward(self, images: torch.Tensor, noise_levels: torch.Tensor) -> torch.Tensor:
        """The noise in some images."""
        levels = self.level(embed(noise_levels, self.width))
        x = self.enter(images)
        kept = []
        for block, shrink in zip(self.down, self.shrink, strict=True):
            x = block(x, levels)
            kept.append(x)
            x = shrink(x)
        x = self.attention(self.middle(x, levels))
        for block in self.up:
            x = functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, kept.pop()], dim=1), levels)
        noise: torch.Tensor = self.leave(x)
        return noise


@torch.no_grad()
def follow(average: nn.Module, model: nn.Module, decay: float = 0.99) -> None:
    """Move a moving average of a model's weights a little towards the model."""
    for kept, weight in zip(average.parameters(), model.parameters(), strict=True):
        kept.lerp_(weight, 1 - decay)


@torch.no_grad()
def draw(model: nn.Module, signal: torch.Tensor, images: torch.Tensor, steps: int) -> torch.Tensor:
    """Images out of noise, a few noise levels at a time (DDIM)."""
    levels = torch.linspace(NOISE_LEVELS - 1, 0, steps).long().tolist()
    for level, following in zip(levels, [*levels[1:], 0], strict=True):
        noise = model(images, torch.full((len(images),), level, device="cuda"))
        clean = (images - (1 - signal[level]).sqrt() * noise) / signal[level].sqrt()
        images = signal[following].sqrt() * clean + (1 - signal[following]).sqrt() * noise
    return images


def train(batch: int = 4, size: int = 16, width: int = 32, steps: int = 2) -> None:
    """Train some steps, then draw with the average of the weights.

    Args:
        batch: images in a batch.
        size: their height and width in pixels, a multiple of four.
        width: channels of the U-Net at full size, a multiple of eight.
        steps: of training, and of drawing.
    """
    model = UNet(width).cuda()
    average = copy.deepcopy(model).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    signal = torch.cumprod(1 - torch.linspace(1e-4, 0.02, NOISE_LEVELS, device="cuda"), dim=0)
    for _ in range(steps):
        images = torch.randn(batch, 3, size, size, device="cuda")
        noise = torch.randn_like(images)
        levels = torch.randint(0, NOISE_LEVELS, (batch,), device="cuda")
        part = signal[levels].view(-1, 1, 1, 1)
        noisy = part.sqrt() * images + (1 - part).sqrt() * noise
        loss = functional.mse_loss(model(noisy, levels), noise)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        follow(average, model)
    drawn = draw(average, signal, torch.randn_like(images), steps)
    print(f"{len(drawn)} images, loss {loss.item():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a diffusion model.")
    parser.add_argument("--batch", type=int, default=4, help="images in a batch")
    parser.add_argument("--size", type=int, default=16, help="height and width in pixels")
    parser.add_argument("--width", type=int, default=32, help="channels of the U-Net")
    train(**vars(parser.parse_args()))
