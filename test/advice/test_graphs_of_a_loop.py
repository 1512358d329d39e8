"""A rollout that keeps the graph of each step in lists, of which its update reads the values."""

from __future__ import annotations

import linecache

import pytest
from support.ran_out import edited, facts_of, peak_of
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.advice.catalogue import candidates
from pytorch_memlab.advice.causes.graphs_of_a_loop import GraphsOfALoop
from pytorch_memlab.advice.causes.kept_graphs import KeptGraphs
from pytorch_memlab.advice.causes.no_grad import NoGrad
from pytorch_memlab.advice.forward_only import fills_without_backward

ROLLOUT = """\
import torch
from torch import nn
from torch.distributions import Categorical

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 64))
        self.actor, self.critic = nn.Linear(64, 6), nn.Linear(64, 1)

    def act(self, x, action=None):
        hidden = self.body(x)
        choice = Categorical(logits=self.actor(hidden))
        if action is None:
            action = choice.sample()
        return action, choice.log_prob(action), self.critic(hidden)

agent = Agent().cuda()
optimizer = torch.optim.SGD(agent.parameters(), 0.1)
state = torch.randn(256, 64, device="cuda")
for update in range(2):
    states, actions, logprobs, values = [], [], [], []
    for step in range(40):
        states.append(state)
        action, logprob, value = agent.act(state)
        values.append(value.flatten())
        actions.append(action)
        logprobs.append(logprob)
        state = torch.randn(256, 64, device="cuda")
    values = torch.stack(values)
    returns = (values + 1).detach().reshape(-1)
    b_states, b_actions = torch.cat(states), torch.cat(actions)
    b_logprobs = torch.cat(logprobs)
    for index in torch.arange(40 * 256, device="cuda").split(256):
        _, now, new = agent.act(b_states[index], b_actions[index])
        ratio = (now - b_logprobs[index].detach()).exp()
        loss = (ratio * returns[index]).mean() + (new.flatten() - returns[index]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""
ADDS = "        logprobs.append(logprob)\n"
JOINS = "    b_logprobs = torch.cat(logprobs)\n"
CALL = 25
"""Line of the rollout that calls the agent."""


@knows_saved_tensors
@pytest.mark.parametrize(
    ("behind", "more", "lists", "steps"),
    [
        (
            ADDS,
            "        if step == 30: torch.empty(2**24, device='cuda')\n",
            "logprobs and values keep",
            30,
        ),
        (JOINS, "    torch.empty(2**24, device='cuda')\n", "logprobs keeps", 38),
    ],
)
def test_no_grad_goes_around_the_call_of_the_rollout(behind, more, lists, steps, tmp_path):
    text = ROLLOUT.replace(behind, behind + more)
    remedy = candidates(facts_of(text, "100MiB", tmp_path))[0][1]

    assert remedy.why.startswith(f"{lists} graphs of line {CALL} that no backward pass reads: ")
    assert remedy.code == (
        f"# program.py in place of line {CALL}:",
        "with torch.no_grad():",
        "    action, logprob, value = agent.act(state)",
    )
    # A step keeps what ReLU gives and the hidden state. The bytes leave out those of the first
    # step, and those of the last if ``logprob`` has them too.
    assert remedy.size // (256 * (1024 + 64) * 4) == steps
    assert peak_of(ROLLOUT) - peak_of(edited(ROLLOUT, remedy)) >= remedy.size


@knows_saved_tensors
def test_an_error_in_the_call_itself_names_it_once(tmp_path):
    facts = facts_of(ROLLOUT, "48MiB", tmp_path)
    assert facts.frames[-1].place.line == CALL
    edits = [remedy.code for _, remedy in candidates(facts)]
    assert edits.count(NoGrad().remedy(facts).code) == 1


@knows_saved_tensors
def test_graphs_of_one_list_alone_are_those_of_a_list(tmp_path):
    text = ROLLOUT.replace("        logprobs.append(logprob)\n", "")
    text = text.replace("torch.cat(logprobs)", "torch.zeros(40 * 256, device='cuda')")
    text = text.replace("        values.append", "        del logprob\n        values.append")
    facts = facts_of(text, "48MiB", tmp_path)
    assert GraphsOfALoop().remedy(facts) is None
    remedy = KeptGraphs().remedy(facts)
    assert remedy is not None
    assert remedy.code[-1] == "values.append(value.flatten().detach())"


def lines(text: str, name: str, folder) -> list[int]:
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    fills = fills_without_backward(str(path))
    return [call.first for call, reached in fills if name in reached]


LOOP = "    for {} in {}:\n        likely.sum().backward()\n    b_logprobs ="
STORES = "    def act(self, x, action=None):\n        self.seen = x\n"


def test_the_call_that_fills_both_lists_is_named(tmp_path):
    filled = {
        name: sorted(lines(ROLLOUT, name, tmp_path)) for name in ("values", "logprobs", "states")
    }
    assert filled == {"values": [CALL, 26, 30], "logprobs": [CALL, 28], "states": []}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The update walks the graphs.
        (".detach()).exp()", ").exp()"),
        ("(values + 1).detach()", "(values + 1)"),
        (
            "    b_logprobs =",
            "    loss = sum(logprobs)\n    loss.sum().backward()\n    b_logprobs =",
        ),
        (
            "    b_logprobs =",
            LOOP.format("likely, reached", "zip(logprobs, returns.split(256))"),
        ),
        (
            "    b_logprobs =",
            LOOP.format("number, likely", "enumerate(logprobs)"),
        ),
        # Others get the lists.
        ("    b_logprobs =", "    learn(values, logprobs)\n    b_logprobs ="),
        ("    b_logprobs =", "    learner.update(logprobs)\n    b_logprobs ="),
        (ADDS, ADDS + "        agent.saved.append(logprob)\n"),
        # The call keeps something itself.
        ("    def act(self, x, action=None):\n", STORES),
        # The loop is trained at once.
        (ADDS, ADDS + "        (logprob + value.flatten()).sum().backward()\n"),
    ],
)
def test_graphs_that_a_backward_pass_may_walk_stay(old, new, tmp_path):
    assert ROLLOUT.count(old) == 1
    assert CALL in lines(ROLLOUT, "logprobs", tmp_path)
    assert CALL not in lines(ROLLOUT.replace(old, new), "logprobs", tmp_path)


@pytest.mark.parametrize(
    ("parameters", "end", "is_named"),
    [
        ("", "    return None\n", True),
        ("", "    return likely\n", False),
        ("likely, ", "    return None\n", False),
    ],
)
def test_a_list_that_leaves_its_function_may_be_trained(parameters, end, is_named, tmp_path):
    made = "" if parameters else "    likely = []\n"
    text = (
        f"def rollout({parameters}agent, state):\n{made}    for step in range(40):\n"
        f"        _, logprob = agent(state)\n        likely.append(logprob)\n{end}"
    )
    assert bool(lines(text, "likely", tmp_path)) is is_named
