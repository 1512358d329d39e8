"""Training of convolutional networks of torchvision, whose layers are here in our words."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def _convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    active: bool = True,
) -> list[nn.Module]:
    """A convolution without bias, batch norm, and ReLU in place."""
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return [*layers, nn.ReLU(inplace=True)] if active else layers


class InvertedResidual(nn.Module):
    """Widens, filters each channel, narrows; added to its input where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, factor: int) -> None:
        super().__init__()
        hidden = inputs * factor
        self.layers = nn.Sequential(
            *_convolution(inputs, hidden),
            *_convolution(hidden, hidden, kernel, stride, groups=hidden),
            *_convolution(hidden, outputs, active=False),
        )
        self.is_residual = inputs == outputs and stride == 1

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The result of the layers, and the input."""
        outputs: torch.Tensor = self.layers(inputs)
        return outputs + inputs if self.is_residual else outputs


class MnasNet(nn.Module):
    """MNASNet 1.0 for ten classes."""

    STACKS = (
        (16, 24, 3, 2, 3, 3),
        (24, 40, 5, 2, 3, 3),
        (40, 80, 5, 2, 6, 3),
        (80, 96, 3, 1, 6, 2),
        (96, 192, 5, 2, 6, 4),
        (192, 320, 3, 1, 6, 1),
    )

    def __init__(self) -> None:
        super().__init__()
        layers = [
            *_convolution(3, 32, 3, 2),
            *_convolution(32, 32, 3, groups=32),
            *_convolution(32, 16, active=False),
        ]
        for inputs, outputs, kernel, stride, factor, repeats in self.STACKS:
            layers.append(InvertedResidual(inputs, outputs, kernel, stride, factor))
            layers += [
                InvertedResidual(outputs, outputs, kernel, 1, factor) for _ in range(repeats - 1)
            ]
        self.layers = nn.Sequential(*layers, *_convolution(320, 1280))
        self.classifier = nn.Sequential(nn.Dropout(0.2, inplace=True), nn.Linear(1280, 10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scores of the classes."""
        return self.classifier(self.layers(images).mean([2, 3]))  # type: ignore[no-any-return]


class ChannelNorm(nn.LayerNorm):
    """Layer norm over the channels of images."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-6)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The channels come last while they are normalized."""
        return super().forward(inputs.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A filter of 7 x 7 for each channel, and two linear layers; whole images are dropped."""

    def __init__(self, channels: int, dropped: float) -> None:
        super().__init__()
        self.filter = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.mlp = nn.Sequential(
            nn.LayerNorm(channels, eps=1e-6),
            nn.Linear(channels, 4 * channels),
            nn.GELU(),
            nn.Linear(4 * channels, channels),
        )
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-6))
        self.dropped = dropped

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The result of the layers, and the input."""
        mixed = self.mlp(self.filter(inputs).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        outputs: torch.Tensor = self.scale * mixed
        if self.dropped:
            kept = 1.0 - self.dropped
            noise = torch.empty(len(inputs), 1, 1, 1, device=inputs.device).bernoulli_(kept)
            outputs = outputs * noise.div_(kept)
        outputs += inputs
        return outputs


def _convnext_tiny() -> nn.Module:
    widths, depths = (96, 192, 384, 768), (3, 3, 9, 3)
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    index = 0
    for stage, (width, depth) in enumerate(zip(widths, depths, strict=True)):
        for _ in range(depth):
            layers.append(ConvNeXtBlock(width, 0.1 * index / (sum(depths) - 1)))
            index += 1
        if stage < 3:
            layers += [ChannelNorm(width), nn.Conv2d(width, widths[stage + 1], 2, 2)]
    head = nn.AdaptiveAvgPool2d(1), ChannelNorm(768), nn.Flatten(1), nn.Linear(768, 1000)
    return nn.Sequential(*layers, *head)


def train(model: str, optimizer: str, batch: int) -> None:
    """Four steps on images of 86 x 86."""
    network = (MnasNet() if model == "MnasNet" else _convnext_tiny()).cuda().train()
    rule = getattr(torch.optim, optimizer)(network.parameters(), lr=0.001)
    for _ in range(4):
        images = torch.zeros(batch, 3, 86, 86).cuda()
        labels = torch.zeros(batch, dtype=torch.int64).cuda()
        scores = network(images)
        loss = functional.cross_entropy(scores, labels)
        rule.zero_grad()
        loss.backward()
        rule.step()
        torch.max(scores, 1)
