# gpu: 226MiB
# cause: missed_autocast
import torch
import torch.nn as nn


class MLP(nn.Module):
    def __init__(self, width=1024, depth=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def train(net, device):
    opt = torch.optim.AdamW(net.parameters(), fused=True)
    for i in range(3):
        inputs = torch.randn(3000, 1024, device=device)
        with torch.autocast(device_type="cuda", dtype=torch.float32):
            outputs = net(inputs)
            loss = nn.functional.mse_loss(outputs, inputs)
        loss.backward()
        opt.step()
        opt.zero_grad()


train(MLP().to("cuda"), "cuda")
