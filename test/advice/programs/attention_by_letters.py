# gpu: 354MiB
# cause: attention_matrices
import torch
from torch import nn, einsum


class Attention(nn.Module):
    def __init__(self, dim, heads=8, dim_head=32, dropout=0.):
        super().__init__()
        inner = dim_head * heads
        self.heads, self.scale = heads, dim_head ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(dropout)
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Sequential(nn.Linear(inner, dim), nn.Dropout(dropout))

    def forward(self, x):
        b, n, _, h = *x.shape, self.heads
        x = self.norm(x)
        q, k, v = (t.reshape(b, n, h, -1).permute(0, 2, 1, 3) for t in self.to_qkv(x).chunk(3, dim=-1))
        dots = einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
        attn = self.dropout(self.attend(dots))
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.permute(0, 2, 1, 3).reshape(b, n, -1))


class ViT(nn.Module):
    def __init__(self, dim=128, depth=4):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.layers = nn.ModuleList([Attention(dim) for _ in range(depth)])
        self.head = nn.Linear(dim, 100)

    def forward(self, img):
        x = self.patch(img).flatten(2).transpose(1, 2)
        for attn in self.layers:
            x = attn(x) + x
        return self.head(x.mean(1))


vit = ViT().cuda()
optim = torch.optim.SGD(vit.parameters(), 0.1)
for _ in range(2):
    loss = nn.functional.cross_entropy(vit(torch.rand(2, 3, 128, 128).cuda()), torch.randint(0, 100, (2,)).cuda())
    optim.zero_grad()
    loss.backward()
    optim.step()
