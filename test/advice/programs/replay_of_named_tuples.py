# gpu: 100MiB
# cause: kept_results
import random
from collections import deque, namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim

Transition = namedtuple("Transition", ("state", "action", "next_state", "reward"))
device = "cuda"
BATCH_SIZE, GAMMA, TARGET_UPDATE = 16, 0.99, 5


class ReplayMemory:
    def __init__(self, capacity):
        self.memory = deque([], maxlen=capacity)

    def push(self, *args):
        self.memory.append(Transition(*args))

    def sample(self, n):
        return random.sample(self.memory, n)

    def __len__(self):
        return len(self.memory)


class DQN(nn.Module):
    def __init__(self, actions):
        super().__init__()
        self.conv1 = nn.Conv2d(4, 16, 8, stride=4)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        self.head = nn.Linear(32 * 18 * 18, actions)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.head(x.flatten(1))


policy_net, target_net = DQN(4).to(device), DQN(4).to(device)
target_net.load_state_dict(policy_net.state_dict())
optimizer = optim.RMSprop(policy_net.parameters())
memory = ReplayMemory(10000)


def select_action(state, eps):
    if random.random() > eps:
        with torch.no_grad():
            return policy_net(state).max(1)[1].view(1, 1)
    return torch.tensor([[random.randrange(4)]], device=device)


def optimize_model():
    if len(memory) < BATCH_SIZE:
        return
    batch = Transition(*zip(*memory.sample(BATCH_SIZE)))
    state = torch.cat(batch.state)
    q = policy_net(state).gather(1, torch.cat(batch.action))
    with torch.no_grad():
        following = target_net(torch.cat(batch.next_state)).max(1)[0]
    expected = following * GAMMA + torch.cat(batch.reward)
    loss = F.smooth_l1_loss(q, expected.unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def observe():
    return torch.rand(1, 4, 160, 160).to(device)


for episode in range(12):
    state = observe()
    for t in range(20):
        action = select_action(state, 0.5)
        next_state = observe()
        memory.push(state, action, next_state, torch.tensor([1.0], device=device))
        state = next_state
        optimize_model()
    if episode % TARGET_UPDATE == 0:
        target_net.load_state_dict(policy_net.state_dict())
