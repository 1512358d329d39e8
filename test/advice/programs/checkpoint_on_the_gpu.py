# gpu: 204MiB
# cause: model_twice
import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(16)])
torch.save(model.state_dict(), "weights.pt")
model.cuda()
state = torch.load("weights.pt", map_location="cuda:0")
model.load_state_dict(state)
model(torch.randn(1024, 1024, device="cuda")).sum().backward()
