"""Programs without a remedy, runs of them, and what a person makes of them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from pytorch_memlab import simulate
from pytorch_memlab.advice.around_program import AroundProgram, Edit, Finding
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.simulation.hardware.gpu import GPU

_KERNELS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
    SDPBackend.CUDNN_ATTENTION,
]
"""Those that are on in a new process."""

LARGE = GPU("large H100", "1TiB", (9, 0), 132)

LANGUAGE_MODEL = """\
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.before(x)).view(b, t, 3, 4, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(x)


class GPT(nn.Module):
    def __init__(self, vocab=4000, width=256, depth=5):
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(steps):
    net = GPT().cuda()
    optimizer = torch.optim.AdamW(
        net.parameters(),
        lr=3e-4,  # as in the paper
    )
    for _ in range(steps):
        tokens = torch.randint(4000, (8, 129), device="cuda")
        logits = net(tokens[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


train(2)
"""

CONVOLUTIONS = """\
import torch
from torch import nn, optim


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return x + self.second(self.norm(self.first(x)).relu())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, stride=2)
        self.layer1 = nn.Sequential(Residual(32), Residual(32))
        self.down = nn.Conv2d(32, 64, 3, stride=2)
        self.layer2 = nn.Sequential(Residual(64), Residual(64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layer2(self.down(self.layer1(self.stem(x))))
        return self.head(x.mean((2, 3)))


class Trainer:
    def __init__(self):
        self.net = Net().cuda()
        self.criterion = nn.CrossEntropyLoss()
        self.optimizer = optim.SGD(self.net.parameters(), 0.1, momentum=0.9, foreach=True)

    def loss(self, images, labels):
        return self.criterion(self.net(images), labels)

    def fit(self):
        for _ in range(2):
            images = torch.randn(16, 3, 128, 128, device="cuda")
            labels = torch.randint(10, (16,), device="cuda")
            loss = self.loss(images, labels)
            self.net.zero_grad(False)
            loss.backward()
            self.optimizer.step()


if __name__ == "__main__":
    Trainer().fit()
"""

ADVERSARIAL = """\
import torch


class Layer(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x).relu().sigmoid()


def network():
    return torch.nn.Sequential(*[Layer(1024) for _ in range(4)], torch.nn.Linear(1024, 1024))


generator = network().cuda()
critic = network().cuda()
opt_g = torch.optim.Adam([{"params": generator.parameters(), "lr": 1e-4}])
opt_c = torch.optim.Adam(list(critic.parameters()), 1e-4)
for _ in range(2):
    real = torch.randn(4096, 1024, device="cuda")
    fake = generator(torch.randn(4096, 1024, device="cuda"))
    critic_loss = critic(fake.detach()).mean() - critic(real).mean()
    opt_c.zero_grad()
    critic_loss.backward()
    opt_c.step()
    generator_loss = -critic(fake).mean()
    opt_g.zero_grad()
    generator_loss.backward()
    opt_g.step()
"""

WIDE = """\
import torch
from torch import nn


def main():
    layers = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(8)]).to("cuda")
    optimizer = torch.optim.Adam(layers.parameters())
    for _ in range(3):
        layers.zero_grad(set_to_none=False)
        layers(torch.randn(4, 1024).cuda()).sum().backward()
        optimizer.step()


main()
"""


@dataclass(frozen=True)
class Run:
    """The highest bytes of segments and of blocks in use, and what remedies found."""

    reserved: int
    active: int
    findings: tuple[Finding, ...] = ()

    @property
    def peaks(self) -> tuple[int, int]:
        return self.reserved, self.active

    @property
    def finding(self) -> Finding:
        (only,) = self.findings
        return only


def run(
    path: Path, remedies: Sequence[AroundProgram] = (), environment: Mapping[str, str] | None = None
) -> Run:
    """Run a program without values in this process, on a GPU of 1 TiB."""
    variables = dict(environment or {})
    for remedy in remedies:
        variables.update(remedy.environment())
    with ExitStack() as exits:
        exits.enter_context(patch.dict(os.environ, variables))
        exits.enter_context(sdpa_kernel(_KERNELS))  # put back when it ends
        exits.enter_context(simulate(LARGE, compute=False))
        for remedy in remedies:
            exits.enter_context(remedy.applied())
        exits.enter_context(ProgramTarget(str(path)).started(()))()
        stats = torch.cuda.memory_stats()
        return Run(
            stats.get("reserved_bytes.all.peak", 0),
            stats.get("active_bytes.all.peak", 0),
            tuple(remedy.finding() for remedy in remedies),
        )


def written(folder: Path, text: str, name: str = "train.py") -> Path:
    """A program in a file."""
    path = folder / name
    path.write_text(text)
    return path


def edited(path: Path, edits: Iterable[Edit]) -> Path:
    """The program beside a file that a person makes of it by some edits."""
    lines = path.read_text().splitlines()
    for edit in sorted(edits, key=lambda edit: -edit.first):
        assert edit.file == str(path)
        lines[edit.first - 1 : edit.last] = edit.lines
    result = path.with_name(f"edited_{path.name}")
    result.write_text("\n".join(lines) + "\n")
    return result
