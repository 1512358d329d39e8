"""Two networks with an optimizer each: one draws images, the other tells them from real ones.

It runs on a GPU as it is. Without one:

    pytorch-memlab run examples/gan.py
    pytorch-memlab run --dry-run -f train examples/gan.py --batch 128 --width 64
"""

import argparse

import torch
from torch import nn
from torch.nn import functional

LATENT = 64


def make_generator(width: int) -> nn.Sequential:
    """From noise to images of 32 x 32 pixels."""
    return nn.Sequential(
        nn.ConvTranspose2d(LATENT, 4 * width, 4, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(4 * width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(2 * width, width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.ConvTranspose2d(width, 3, 4, 2, 1, bias=False),
        nn.Tanh(),
    )


def make_critic(width: int) -> nn.Sequential:
    """From images to one number for each."""
    return nn.Sequential(
        nn.Conv2d(3, width, 4, 2, 1, bias=False),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(width, 2 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(2 * width, 4 * width, 4, 2, 1, bias=False),
        nn.BatchNorm2d(4 * width),
        nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(4 * width, 1, 4, bias=False),
        nn.Flatten(0),
    )


def loss_of(scores: torch.Tensor, is_real: bool) -> torch.Tensor:
    """The distance of the critic's scores from an answer."""
    return functional.binary_cross_entropy_with_logits(
        scores, torch.full_like(scores, float(is_real))
    )


def train(batch: int = 8, width: int = 16, steps: int = 2) -> None:
    """Train both in turns.

    Args:
        batch: images in a batch.
        width: channels of both networks at their largest images.
        steps: how many.
    """
    generator, critic = make_generator(width).cuda(), make_critic(width).cuda()
    optimizers = [
        torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
        for model in (generator, critic)
    ]
    for _ in range(steps):
        real = torch.rand(batch, 3, 32, 32, device="cuda") * 2 - 1
        drawn = generator(torch.randn(batch, LATENT, 1, 1, device="cuda"))

        optimizers[1].zero_grad()
        of_critic = loss_of(critic(real), True) + loss_of(critic(drawn.detach()), False)
        of_critic.backward()
        optimizers[1].step()

        optimizers[0].zero_grad()
        of_generator = loss_of(critic(drawn), True)
        of_generator.backward()
        optimizers[0].step()
    print(f"loss of the critic {of_critic.item():.2f}, of the generator {of_generator.item():.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a GAN.")
    parser.add_argument("--batch", type=int, default=8, help="images in a batch")
    parser.add_argument("--width", type=int, default=16, help="channels at the largest images")
    train(**vars(parser.parse_args()))
