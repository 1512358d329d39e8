# gpu: 944MiB
# cause: none
import torch
from torch import nn

embed = nn.Embedding(500, 256).cuda()
cell = nn.GRUCell(256, 256).cuda()
head = nn.Linear(256, 500).cuda()
tokens = []
with torch.inference_mode():
    token = torch.zeros(65536, dtype=torch.long, device="cuda")
    h = torch.zeros(65536, 256, device="cuda")
    for _ in range(4):
        h = cell(embed(token), h)
        token = head(h).argmax(-1)
        tokens.append(token.cpu())
