# gpu: 148MiB
# cause: model_twice
import torch
import torch.nn as nn


class EMA:
    def __init__(self, model, decay):
        self.model = model
        self.decay = decay
        self.shadow = {}

    def register(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                self.shadow[name] = param.data.clone()

    def update(self):
        for name, param in self.model.named_parameters():
            if param.requires_grad:
                new = (1.0 - self.decay) * param.data + self.decay * self.shadow[name]
                self.shadow[name] = new.clone()


net = nn.Sequential(*[nn.Linear(1280, 1280) for _ in range(8)]).cuda()
ema = EMA(net, 0.999)
ema.register()
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for _ in range(3):
    opt.zero_grad()
    net(torch.randn(128, 1280, device="cuda")).square().mean().backward()
    opt.step()
    ema.update()
