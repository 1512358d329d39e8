# gpu: 272MiB
# cause: growing_buffer
import torch
from torch import nn


class Replay:
    def __init__(self, state_dim, device):
        self.states = torch.zeros(0, state_dim, device=device)
        self.rewards = torch.zeros(0, device=device)

    def push(self, states, rewards):
        self.states = torch.cat([self.states, states], 0)
        self.rewards = torch.cat([self.rewards, rewards], 0)

    def sample(self, n):
        index = torch.randint(0, len(self.states), (n,), device=self.states.device)
        return self.states[index], self.rewards[index]


q_net = nn.Sequential(nn.Linear(4096, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
memory = Replay(4096, "cuda")
optimizer = torch.optim.Adam(q_net.parameters())
for episode in range(40):
    memory.push(torch.randn(256, 4096, device="cuda"), torch.randn(256, device="cuda"))
    s, r = memory.sample(32)
    loss = (q_net(s).squeeze(1) - r).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
