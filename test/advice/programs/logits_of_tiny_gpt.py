# gpu: 920MiB
# cause: logits
"""Tiny GPT, loss inside of forward as in nanoGPT."""
import torch
import torch.nn as nn
import torch.nn.functional as F

vocab_size = 32000
n_embd = 128
block_size = 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.attn = nn.Linear(n_embd, 3 * n_embd)
        self.ln2 = nn.LayerNorm(n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        q, k, v = self.attn(self.ln1(x)).split(n_embd, dim=2)
        q, k, v = (t.unsqueeze(1) for t in (q, k, v))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.blocks = nn.Sequential(*[Block() for _ in range(2)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets=None):
        x = self.wte(idx)
        x = self.blocks(x)
        x = self.ln_f(x)
        logits = self.lm_head(x)
        loss = None
        if targets is not None:
            loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))
        return logits, loss


model = GPT().to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
data = torch.randint(0, vocab_size, (8 * 64 * block_size,))

for it in range(3):
    ix = torch.randint(len(data) - block_size - 1, (8,))
    x = torch.stack([data[i : i + block_size] for i in ix.tolist()]).cuda()
    y = torch.stack([data[i + 1 : i + 1 + block_size] for i in ix.tolist()]).cuda()
    _, loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
