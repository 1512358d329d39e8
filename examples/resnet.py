"""ResNet-18 on small images: SGD with momentum, batch norm, then a validation pass.

It runs on a GPU as it is. Without one:

    pytorch-memlab run examples/resnet.py
    pytorch-memlab run --dry-run -f train examples/resnet.py --batch 256 --size 224 --channels-last
"""

import argparse

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Module):
    """Two convolutions, added to what went in.

    Args:
        inputs: channels of the input.
        outputs: channels of the result.
        stride: of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        out = self.relu(self.first_norm(self.first(x)))
        out = self.second_norm(self.second(out))
        out += self.shortcut(x)
        result: torch.Tensor = self.relu(out)
        return result


class ResNet18(nn.Module):
    """The network of torchvision, layer for layer.

    Args:
        classes: how many it tells apart.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.stages = nn.Sequential(
            Block(64, 64, 1), Block(64, 64, 1),
            Block(64, 128, 2), Block(128, 128, 1),
            Block(128, 256, 2), Block(256, 256, 1),
            Block(256, 512, 2), Block(512, 512, 1),
        )  # fmt: skip
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(512, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of the classes."""
        features = self.stages(self.stem(images))
        logits: torch.Tensor = self.head(self.pool(features).flatten(1))
        return logits


def train(batch: int = 8, size: int = 32, channels_last: bool = False, steps: int = 2) -> None:
    """Train some steps, then validate.

    Args:
        batch: images in a batch.
        size: their height and width in pixels.
        channels_last: whether images and weights have their channels last in memory.
        steps: how many.
    """
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    model = ResNet18(classes=10).cuda().to(memory_format=memory_format)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(steps):
        images = torch.randn(batch, 3, size, size, device="cuda")
        images = images.to(memory_format=memory_format)
        labels = torch.randint(0, 10, (batch,), device="cuda")
        logits = model(images)
        loss = functional.cross_entropy(logits, labels, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        correct = model(images).argmax(1) == labels
    print(f"{correct.float().mean().item():.0%} correct")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train ResNet-18.")
    parser.add_argument("--batch", type=int, default=8, help="images in a batch")
    parser.add_argument("--size", type=int, default=32, help="height and width in pixels")
    parser.add_argument("--channels-last", action="store_true", help="channels last in memory")
    train(**vars(parser.parse_args()))
