# gpu: 1536MiB
# cause: attention_matrices
import math

import torch
from torch import nn
from torch.nn import functional as F


class SelfAttention(nn.Module):
    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head = n_head
        self.to_q = nn.Linear(dim, dim)
        self.to_k = nn.Linear(dim, dim)
        self.to_v = nn.Linear(dim, dim)

    def split(self, t):
        b, n, d = t.shape
        return t.view(b, n, self.n_head, d // self.n_head).transpose(1, 2)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.split(self.to_q(x)), self.split(self.to_k(x)), self.split(self.to_v(x))
        att = q @ k.transpose(-2, -1) / math.sqrt(d // self.n_head)
        att = F.softmax(att, dim=-1)
        return (att @ v).transpose(1, 2).reshape(b, n, d)


def main():
    torch.manual_seed(0)
    layers = nn.ModuleList(SelfAttention(128, 8) for _ in range(3)).cuda()
    words = nn.Parameter(torch.randn(20000, 128, device="cuda"))
    ids = torch.randint(20000, (2, 2048), device="cuda")
    x = torch.randn(2, 2048, 128, device="cuda")
    for layer in layers:
        x = x + layer(x)
    logits = (x @ words.T).flatten(0, 1)
    loss = F.nll_loss(F.log_softmax(logits, dim=-1), ids.flatten())
    loss.backward()
    print(f"loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
