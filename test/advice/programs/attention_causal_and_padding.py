# gpu: 260MiB
# cause: attention_matrices
import math
import torch
from torch import nn
import torch.nn.functional as F
class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
    def forward(self, x, pad_mask):
        B, T, C = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q = q.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        k = k.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        v = v.view(B, T, self.heads, C // self.heads).transpose(1, 2)
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(C // self.heads)
        causal = torch.tril(torch.ones(T, T, device=x.device, dtype=torch.bool))
        scores = scores.masked_fill(~causal, float("-inf"))
        scores = scores.masked_fill(~pad_mask[:, None, None, :], float("-inf"))
        weights = F.softmax(scores, dim=-1)
        y = weights @ v
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.out(y)
model = nn.ModuleList([Attention(128, 4) for _ in range(2)]).cuda()
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    x = torch.randn(4, 1024, 128, device="cuda")
    pad = torch.ones(4, 1024, dtype=torch.bool, device="cuda")
    pad[:, 1000:] = False
    h = x
    for layer in model:
        h = layer(h, pad)
    loss = h.square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
