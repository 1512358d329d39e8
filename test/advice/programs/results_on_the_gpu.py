# gpu: 128MiB
# cause: kept_results
import torch
from torch import nn

model = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 1024)).cuda().eval()


@torch.no_grad()
def predict_all(batches):
    predictions = []
    for _ in range(batches):
        predictions.append(model(torch.randn(1024, 128, device="cuda")))
    return torch.cat([p.cpu() for p in predictions])


print(predict_all(48).shape)
