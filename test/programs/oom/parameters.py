# gpu: 64MiB
# cause: parameters
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(20)])
# fixed: model = model.bfloat16()
model = model
model.cuda()
