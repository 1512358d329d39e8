# gpu: 128MiB
# cause: kept_results
import torch
from torch import nn


class FeatureStore:
    def __init__(self):
        self.features = {}

    def add(self, key, value):
        self.features[key] = value


store = FeatureStore()
backbone = nn.Conv2d(3, 32, 3, stride=2).cuda()
with torch.inference_mode():
    for number in range(64):
        image = torch.randn(1, 3, 256, 256, device="cuda")
        store.add(f"image{number}", backbone(image))
print(len(store.features))
