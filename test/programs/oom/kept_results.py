# gpu: 128MiB
# cause: kept_results
import torch
from torch import nn

model = nn.Linear(256, 1024).cuda().eval()
features = []
with torch.no_grad():
    for _ in range(40):
        result = model(torch.randn(1024, 256, device="cuda"))
        # fixed: features.append(result.cpu())
        features.append(result)
