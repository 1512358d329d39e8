# gpu: 128MiB
# cause: model_twice
import copy

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(12)]).cuda()
# fixed: average = copy.deepcopy(model).cpu()
average = copy.deepcopy(model)
activations = torch.empty(40 * 2**20, dtype=torch.uint8, device="cuda")
