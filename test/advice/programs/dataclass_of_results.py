# gpu: 128MiB
# cause: kept_results
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass
class Progress:
    step: int = 0
    outputs: list[torch.Tensor] = field(default_factory=list)

    def advance(self, output):
        self.step += 1
        self.outputs.append(output)


@torch.no_grad()
def predict(model, progress):
    for _ in range(40):
        progress.advance(model(torch.randn(4096, 64, device="cuda")).softmax(-1))


progress = Progress()
predict(nn.Linear(64, 256).cuda(), progress)
print(progress.step, torch.cat([output[:1].cpu() for output in progress.outputs]).shape)
