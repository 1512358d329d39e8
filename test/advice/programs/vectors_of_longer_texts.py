# gpu: 230MiB
# cause: fragmentation
import torch
from torch import nn

encoder = nn.Sequential(nn.Linear(256, 256), nn.Tanh()).cuda().eval()
pooled = []
with torch.no_grad():
    for count in range(8, 34):  # texts are sorted by length
        tokens = torch.randn(count, 1536, 256, device="cuda")
        hidden = encoder(tokens)
        pooled.append(hidden.mean(0))
        del tokens, hidden
print(len(pooled))
