# gpu: 108MiB
# cause: growing_buffer
import torch
from torch import nn

backbone = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024)).cuda().eval()
all_features = torch.empty(0, 1024, device="cuda")
with torch.no_grad():
    for i in range(30):
        batch = torch.randn(512, 512, device="cuda")
        features = backbone(batch)
        all_features = torch.cat((all_features, features), dim=0)
print(all_features.shape)
torch.save(all_features.cpu(), "features.pt")
