# gpu: 93MiB
# cause: attention_matrices
import torch
import torch.nn as nn
import torch.nn.functional as F


def scaled_dot_product(query, key, value, mask=None, dropout=None):
    d_k = query.size(-1)
    scores = torch.bmm(query, key.transpose(1, 2)) / d_k ** 0.5
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    p_attn = F.softmax(scores, dim=-1)
    if dropout is not None:
        p_attn = dropout(p_attn)
    return torch.bmm(p_attn, value), p_attn


class AttentionHead(nn.Module):
    def __init__(self, dim_in, dim):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(dim_in, dim), nn.Linear(dim_in, dim), nn.Linear(dim_in, dim)

    def forward(self, x):
        out, _ = scaled_dot_product(self.q(x), self.k(x), self.v(x))
        return out


class MultiHead(nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.heads = nn.ModuleList(AttentionHead(dim, dim // heads) for _ in range(heads))
        self.linear = nn.Linear(dim, dim)

    def forward(self, x):
        return self.linear(torch.cat([h(x) for h in self.heads], dim=-1))


net = nn.Sequential(MultiHead(4, 128), nn.LayerNorm(128), MultiHead(4, 128), nn.LayerNorm(128)).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(2):
    loss = net(torch.randn(4, 768, 128).cuda()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
