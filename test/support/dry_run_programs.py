"""Programs that run with arithmetic and without, for the allocator to see the same."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def mlp_foreach():
    model = nn.Sequential(
        nn.Linear(300, 500), nn.GELU(), nn.LayerNorm(500), nn.Dropout(0.1), nn.Linear(500, 10)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    for _ in range(2):
        labels = torch.randint(0, 10, (64,), device="cuda")
        functional.cross_entropy(model(torch.randn(64, 300, device="cuda")), labels).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def adamw_fused():
    model = nn.Linear(300, 500).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(2):
        model(torch.randn(64, 300, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def scaled_gradients():
    weight = nn.Parameter(torch.randn(100, 100, device="cuda"))
    optimizer = torch.optim.Adam([weight])
    scaler = torch.amp.GradScaler("cuda")
    scaler.scale((weight @ weight).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


def transformer_layer():
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True).cuda()
    x = torch.randn(4, 50, 64, device="cuda", requires_grad=True)
    lengths = torch.tensor([50, 40, 30, 20], device="cuda")
    padding = torch.arange(50, device="cuda")[None] >= lengths[:, None]
    layer(x, src_key_padding_mask=padding)[~padding].pow(2).sum().backward()
    with torch.no_grad():
        layer.eval()(x)


def attention():
    mask = torch.ones(128, 128, device="cuda", dtype=torch.bool).tril()
    for attn_mask in (None, mask):
        q, k, v = (torch.randn(2, 4, 128, 64, device="cuda", requires_grad=True) for _ in range(3))
        out = functional.scaled_dot_product_attention(q, k, v, attn_mask=attn_mask)
        out.sum().backward()
    functional.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.1).sum().backward()
    layer = nn.MultiheadAttention(256, 4, batch_first=True).cuda()
    x = torch.randn(2, 128, 256, device="cuda")
    layer(x, x, x)[0].sum().backward()


def convolutions():
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2), nn.GroupNorm(4, 32), nn.SiLU(),
        nn.ConvTranspose2d(32, 8, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for memory_format in (torch.contiguous_format, torch.channels_last):
        images = torch.randn(4, 3, 64, 64, device="cuda").to(memory_format=memory_format)
        model(images).logsumexp(1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()(images)


def recurrent():
    lstm = nn.LSTM(32, 64, 2, batch_first=True, bidirectional=True, dropout=0.1).cuda()
    x = torch.randn(4, 9, 32, device="cuda", requires_grad=True)
    lstm(x)[0].sum().backward()
    lengths = torch.tensor([9, 7, 4, 1])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
    padded, _ = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    padded.sum().backward()
    nn.GRU(32, 64).cuda()(x)[0].sum().backward()


def checkpointed():
    blocks = [
        nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Dropout(0.1), nn.Linear(512, 128))
        for _ in range(3)
    ]
    model = nn.ModuleList(blocks).cuda().bfloat16()
    for use_reentrant in (True, False):
        x = torch.randn(64, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for block in model:
            x = checkpoint(block, x, use_reentrant=use_reentrant)
        x.float().pow(2).mean().backward()


def sparse_gradients():
    for make in (torch.optim.SGD, torch.optim.SparseAdam):
        embedding = nn.Embedding(1000, 64, sparse=True).cuda()
        optimizer = make(embedding.parameters(), lr=0.1)
        for _ in range(2):
            tokens = torch.randperm(1000, device="cuda")[:200]
            embedding(tokens).pow(2).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


def many_ops():
    x = torch.randn(500, 300, device="cuda", requires_grad=True)
    values, order = x.sort()
    values.sum().backward()
    x.topk(5).values.sum().backward()
    x.cumsum(0).logsumexp(0).sum().backward()
    torch.einsum("ij,kj->ik", x, x).tril().sum().backward()
    out = torch.empty(0, device="cuda")
    torch.add(x.detach(), 1, out=out)
    (x / x.abs().max()).std(0).sum().backward()
    torch.cat([x, x]).chunk(3)[0].contiguous().sum().backward()
    x.softmax(-1).log().gather(1, order).sum().backward()
    functional.interpolate(x[None, None], scale_factor=2.0).sum().backward()
    tokens = torch.randint(0, 500, (50,), device="cuda")
    functional.embedding_bag(tokens, x, torch.tensor([0, 10, 20], device="cuda")).sum().backward()


PROGRAMS = (
    mlp_foreach, adamw_fused, scaled_gradients, transformer_layer, attention, convolutions,
    recurrent, checkpointed, sparse_gradients, many_ops,
)  # fmt: skip
