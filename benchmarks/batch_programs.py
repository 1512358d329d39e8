"""Eight small programs that take the size of a batch from the environment variable BATCH."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_HEAD: Final = """\
import os

import torch
from torch import nn

batch = int(os.environ["BATCH"])
"""

_CNN: Final = """
def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


model = nn.Sequential(
    block(3, 32), block(32, 32), nn.MaxPool2d(2), block(32, 64), nn.AdaptiveAvgPool2d(1),
    nn.Flatten(), nn.Linear(64, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    images = torch.randn(batch, 3, 96, 96, device="cuda")
    labels = torch.randint(0, 10, (batch,), device="cuda")
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_LM: Final = """
layer = nn.TransformerEncoderLayer(128, 4, 512, batch_first=True)
model = nn.Sequential(nn.Embedding(500, 128), nn.TransformerEncoder(layer, 2), nn.Linear(128, 500))
model = model.cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    tokens = torch.randint(0, 500, (batch, 256), device="cuda")
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

_DIFFUSION: Final = """
class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time = nn.Linear(1, 2 * width)
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(8, 2 * width)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.end = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x, time):
        first = nn.functional.silu(self.begin(x))
        low = self.norm(self.down(first)) + self.time(time)[:, :, None, None]
        flat = nn.functional.silu(low).flatten(2).transpose(1, 2)
        mixed = flat + self.attention(flat, flat, flat, need_weights=False)[0]
        high = self.up(mixed.transpose(1, 2).reshape(low.shape))
        return self.end(torch.cat([first, high], 1))


model = UNet(32).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    images = torch.randn(batch, 3, 48, 48, device="cuda")
    noise, time = torch.randn_like(images), torch.rand(batch, 1, device="cuda")
    loss = nn.functional.mse_loss(model(images + noise * time[:, :, None, None], time), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_TRAINER: Final = """
import tempfile

from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 6 * batch

    def __getitem__(self, index):
        return {"input_ids": torch.ones(128, dtype=torch.long), "labels": torch.ones(128).long()}


config = GPT2Config(vocab_size=500, n_positions=128, n_embd=128, n_layer=2, n_head=4)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, max_steps=3, per_device_train_batch_size=batch, gradient_accumulation_steps=2,
        bf16=True, save_strategy="no", report_to="none", disable_tqdm=True,
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Texts()).train()
"""

LORA_LAYER: Final = """
class LoRA(nn.Module):
    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))
"""

_LORA: Final = f"""
{LORA_LAYER}
layers = [nn.Sequential(LoRA(nn.Linear(512, 512), 8), nn.GELU()) for _ in range(6)]
model = nn.Sequential(*layers).to("cuda", torch.bfloat16)
optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad])
for _ in range(3):
    x = torch.randn(batch, 256, 512, device="cuda", dtype=torch.bfloat16)
    model(x).float().pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_FSDP: Final = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("nccl")
model = nn.Sequential(*(nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512))
                        for _ in range(4))).cuda()
for one in model:
    fully_shard(one)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(batch, 128, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

_RNN: Final = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, 128)
        self.lstm = nn.LSTM(128, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, words):
        return self.head(self.lstm(self.embedding(words))[0])


model = Model().cuda()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(3):
    words = torch.randint(0, 1000, (batch, 64), device="cuda")
    loss = nn.functional.cross_entropy(model(words).flatten(0, 1), words.flatten())
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
"""

_GENERATE: Final = """
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=500, hidden_size=256, intermediate_size=512, num_hidden_layers=4,
    num_attention_heads=4, eos_token_id=None,
)
model = LlamaForCausalLM(config).cuda().eval()
texts = torch.randint(0, 500, (batch, 64), device="cuda")
model.generate(
    texts, attention_mask=torch.ones_like(texts), max_new_tokens=24, do_sample=False,
    pad_token_id=0,
)
"""


@dataclass(frozen=True, slots=True)
class BatchProgram:
    """A program.

    Args:
        source: its text.
        values: how many sizes are tried.
        world_size: of its process group.
        needs_transformers: whether it imports that.
    """

    source: str
    values: int = 24
    world_size: int = 1
    needs_transformers: bool = False


PROGRAMS: Final = {
    "CNN": BatchProgram(_HEAD + _CNN),
    "language model": BatchProgram(_HEAD + _LM),
    "diffusion": BatchProgram(_HEAD + _DIFFUSION),
    "Trainer": BatchProgram(_HEAD + _TRAINER, needs_transformers=True),
    "LoRA": BatchProgram(_HEAD + _LORA),
    "FSDP rank": BatchProgram(_HEAD + _FSDP, world_size=4),
    "RNN": BatchProgram(_HEAD + _RNN),
    "generate": BatchProgram(_HEAD + _GENERATE, needs_transformers=True),
}
"""By name."""
