# gpu: 128MiB
# cause: no_grad
import torch
from torch import nn

model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())])
model.cuda().eval()
batch = torch.randn(8192, 256, device="cuda")


def evaluate(batch):
    return model(batch).argmax(-1)


# fixed: exec("with torch.no_grad(): predicted = evaluate(batch)")
predicted = evaluate(batch)
