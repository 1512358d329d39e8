# gpu: 228MiB
# cause: retained_graph
# recurrent memory: the summary of a segment goes into the next one
import torch
from torch import nn

device = torch.device("cuda")
reader = nn.Sequential(nn.Linear(512, 1024), nn.Tanh(), nn.Linear(1024, 512)).to(device)
optim = torch.optim.Adam(reader.parameters(), lr=1e-4)
memory = torch.zeros(1, 512, device=device)
segments = torch.randn(40, 1024, 512)
for segment in segments:
    segment = segment.to(device)
    encoded = reader(segment + memory)
    memory = encoded.mean(0, keepdim=True)
    loss = (encoded - segment).square().mean()
    loss.backward(retain_graph=True)
    optim.zero_grad()
