# gpu: 110MiB
# cause: metric_states
# needs: torchmetrics
import torch
import torchmetrics
from torch import nn


class Evaluator:
    def __init__(self, device):
        self.embeddings = torchmetrics.CatMetric().to(device)
        self.accuracy = torchmetrics.MeanMetric().to(device)

    def run(self, model, steps):
        model.eval()
        with torch.inference_mode():
            for _ in range(steps):
                inputs = torch.randn(512, 256, device="cuda")
                outputs = model(inputs)
                self.embeddings.update(outputs)
                self.accuracy.update(outputs.mean())


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2048)).to("cuda")
Evaluator("cuda").run(model, 30)
