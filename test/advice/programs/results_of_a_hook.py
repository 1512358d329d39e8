# gpu: 128MiB
# cause: kept_results
import torch
from torch import nn

activations = []


def save(module, inputs, output):
    activations.append(output)


net = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 10)).cuda()
net[1].register_forward_hook(save)
with torch.no_grad():
    for _ in range(30):
        net(torch.randn(1024, 256, device="cuda"))
print(len(activations))
