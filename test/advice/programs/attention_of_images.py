# gpu: 512MiB
# cause: attention_matrices
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.scale = (dim // heads) ** -0.5
        self.heads = heads
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, _ = x.shape
        qkv = self.to_qkv(x).reshape(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        attn = dots.softmax(dim=-1)
        out = torch.matmul(attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, -1))


layers = nn.ModuleList(Attention(128, 4) for _ in range(4)).cuda()
x = torch.randn(8, 784, 128, device="cuda")
for layer in layers:
    x = x + layer(x)
x.mean().backward()
