# gpu: 204MiB
# cause: no_grad
import torch
import torch.nn as nn
from torch.distributions import Categorical

NUM_ENVS, NUM_STEPS, OBS = 512, 32, 256
device = torch.device("cuda")


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.critic = nn.Sequential(nn.Linear(OBS, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 1))
        self.actor = nn.Sequential(nn.Linear(OBS, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh(), nn.Linear(512, 6))

    def get_value(self, x):
        return self.critic(x)

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x)


agent = Agent().to(device)
optimizer = torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)
obs = torch.zeros(NUM_STEPS, NUM_ENVS, OBS, device=device)
actions = torch.zeros(NUM_STEPS, NUM_ENVS, device=device)
logprobs = torch.zeros(NUM_STEPS, NUM_ENVS, device=device)
rewards = torch.zeros(NUM_STEPS, NUM_ENVS, device=device)
values = torch.zeros(NUM_STEPS, NUM_ENVS, device=device)
next_obs = torch.rand(NUM_ENVS, OBS, device=device)

for iteration in range(2):
    logprobs, values = torch.zeros_like(rewards), torch.zeros_like(rewards)
    for step in range(NUM_STEPS):
        obs[step] = next_obs
        action, logprob, _, value = agent.get_action_and_value(next_obs)
        values[step] = value.flatten()
        actions[step] = action
        logprobs[step] = logprob
        rewards[step] = torch.rand(NUM_ENVS, device=device)
        next_obs = torch.rand(NUM_ENVS, OBS, device=device)
    with torch.no_grad():
        advantages = torch.zeros_like(rewards)
        last = agent.get_value(next_obs).flatten()
        for t in reversed(range(NUM_STEPS)):
            advantages[t] = rewards[t] + 0.99 * last - values[t]
            last = values[t]
        returns = advantages + values
    b_obs, b_logprobs = obs.reshape(-1, OBS), logprobs.detach().reshape(-1)
    b_actions, b_adv, b_ret = actions.reshape(-1), advantages.reshape(-1), returns.reshape(-1)
    del values, logprobs, value, logprob
    for index in torch.randperm(NUM_ENVS * NUM_STEPS).split(512):
        index = index.to(device)
        _, newlogprob, entropy, newvalue = agent.get_action_and_value(b_obs[index], b_actions[index])
        ratio = (newlogprob - b_logprobs[index]).exp()
        pg = torch.max(-b_adv[index] * ratio, -b_adv[index] * ratio.clamp(0.8, 1.2)).mean()
        v = 0.5 * (newvalue.view(-1) - b_ret[index]).pow(2).mean()
        loss = pg - 0.01 * entropy.mean() + 0.5 * v
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
