# gpu: 108MiB
# cause: metric_states
# needs: torchmetrics
import torch
from torch import nn
from torchmetrics.classification import MulticlassAUROC

net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 1000)).cuda().eval()
auroc = MulticlassAUROC(num_classes=1000).cuda()
with torch.no_grad():
    for i in range(30):
        x = torch.randn(1024, 128, device="cuda")
        y = torch.randint(0, 1000, (1024,), device="cuda")
        auroc.update(net(x).softmax(1), y)
print("evaluated")
