# gpu: 128MiB
# cause: model_twice
import io

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)]).cuda()
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
buffer.seek(0)
# fixed: state = torch.load(buffer, map_location="cpu")
state = torch.load(buffer, map_location="cuda")
model.load_state_dict(state)
