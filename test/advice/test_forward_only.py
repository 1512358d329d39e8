"""The place of ``no_grad``: the part of a training that no backward pass reaches."""

from __future__ import annotations

import linecache
from dataclasses import replace

import pytest
import torch
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.catalogue import candidates
from pytorch_memlab.advice.causes.no_grad import NoGrad
from pytorch_memlab.advice.forward_only import forward_only_place, reaches_backward

DISTILLS = """\
import torch
from torch import nn

def layers(width, depth):
    return nn.Sequential(*[nn.Sequential(nn.Linear(512, width), nn.GELU(), nn.Linear(width, 512))
                           for _ in range(depth)])

class Distiller(nn.Module):
    def __init__(self):
        super().__init__()
        self.teacher, self.student = layers(1024, 8), layers(32, 1)

    def forward(self, x):
        target = self.teacher(x)
        loss = nn.functional.mse_loss(self.student(x), target{detached})
        return loss

module = Distiller().to("cuda")
{mode}
optimizer = torch.optim.SGD(module.student.parameters(), 0.1)
for step in range(4):
    loss = module(torch.randn(4096, 512, device="cuda"))
    loss.backward()
    optimizer.step()
"""

LOSSES_OF_MAPS = """\
import torch
from torch import nn

net = nn.ModuleList([nn.Conv2d(8, 8, 3, padding=1) for _ in range(12)]).cuda()

def maps_of(x):
    maps = []
    for layer in net:
        x = layer(x).relu()
        maps.append(x)
    return maps

optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    maps = maps_of(torch.randn(32, 8, 64, 64, device="cuda"))
    loss = sum(one.square().mean() for one in maps)
    loss.backward()
    optimizer.step()
"""


ROLLS_OUT = """\
import torch
from torch import nn

class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 4))
        self.critic = nn.Sequential(nn.Linear(64, 1024), nn.Tanh(), nn.Linear(1024, 1))

    def act(self, x, action=None):
        choice = torch.distributions.Categorical(logits=self.actor(x))
        if action is None:
            action = choice.{chosen}
        return action, choice.log_prob(action), self.critic(x)

agent = Agent().cuda()
optimizer = torch.optim.SGD(agent.parameters(), 0.1)
seen = torch.zeros(40, 512, 64, device="cuda")
actions, before, values = (torch.zeros(40, 512, device="cuda") for _ in range(3))
state = torch.randn(512, 64, device="cuda")
for step in range(40):
    seen[step] = state
    action, likely, value = agent.act(state)
    actions[step], before[step], values[step] = action, likely, value.flatten()
    state = torch.randn(512, 64, device="cuda")
{returns}
for part in torch.randperm(40 * 512, device="cuda").split(512):
    _, now, new = agent.act(seen.view(-1, 64)[part], actions.view(-1)[part])
    ratio = (now - before.{detached}view(-1)[part]).exp()
    loss = (ratio - returns.view(-1)[part] + new.flatten()).mean()
    loss.backward()
    optimizer.step()
"""


SAMPLES = """\
import torch
from torch import nn

net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(4)]).cuda()

def train(x):
    loss = net(x).mean()
    loss.backward()

def sample(x):
    frames = []
    for step in range(20):
        x = net(x).tanh()
        frames.append(x)
    return torch.stack(frames)

train(torch.randn(8, 256, device="cuda"))
{result} = sample(torch.randn(2048, 256, device="cuda"))
print({result}.shape)
"""


def facts_of(text: str, gpu: str, folder):
    """The facts of a program that runs out of memory."""
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(gpu, compute=False, context=0),
    ):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    return uncaught.add(caught.value).facts


@pytest.mark.parametrize("mode", ["", "module.teacher.eval()", "module.eval()"])
def test_a_part_of_a_step_whose_result_is_detached_needs_no_graph(mode, tmp_path):
    text = DISTILLS.format(detached=".detach()", mode=mode)
    place = forward_only_place(facts_of(text, "150MiB", tmp_path))
    assert place is not None
    assert (place.line, place.is_function) == (14, False)


def test_what_a_step_trains_needs_its_graph(tmp_path):
    text = DISTILLS.format(detached="", mode="")
    assert forward_only_place(facts_of(text, "150MiB", tmp_path)) is None


@knows_saved_tensors
def test_maps_that_a_backward_pass_reads_are_no_results_to_move_away(tmp_path):
    facts = facts_of(LOSSES_OF_MAPS, "100MiB", tmp_path)
    assert any(group.tensors > 3 and group.name == "maps" for group in facts.groups)
    assert "a list of results" not in [cause.name for cause, _ in candidates(facts)]


def test_a_rollout_whose_results_are_read_without_gradients_needs_no_graph(tmp_path):
    returns = "with torch.no_grad():\n    returns = values + 1"
    text = ROLLS_OUT.format(chosen="sample()", returns=returns, detached="detach().")
    facts = facts_of(text, "64MiB", tmp_path)
    own = tuple(one for one in facts.frames if one.place.file.startswith(str(tmp_path)))
    place = forward_only_place(replace(facts, frames=own))
    assert place is not None
    line = 1 + text.splitlines().index("    action, likely, value = agent.act(state)")
    assert (place.line, place.is_function) == (line, False)


@pytest.mark.parametrize(
    ("chosen", "returns", "detached"),
    [
        ("sample()", "returns = values + 1", "detach()."),
        ("sample()", "with torch.no_grad():\n    returns = values + 1", ""),
        # An action with a gradient: what is computed from it reaches the loss.
        ("logits.sum(-1)", "with torch.no_grad():\n    returns = values + 1", "detach()."),
    ],
)
def test_a_rollout_through_which_gradients_flow_needs_its_graph(
    chosen, returns, detached, tmp_path
):
    text = ROLLS_OUT.format(chosen=chosen, returns=returns, detached=detached)
    text = text.replace("choice.log_prob(action)", "choice.logits[:, 0]")
    assert forward_only_place(facts_of(text, "64MiB", tmp_path)) is None


@pytest.mark.parametrize("result", ["images", "frames", "loss"])
def test_a_variable_of_a_function_is_not_the_scripts_of_that_name(result, tmp_path):
    facts = facts_of(SAMPLES.format(result=result), "64MiB", tmp_path)
    own = tuple(one for one in facts.frames if one.place.file.startswith(str(tmp_path)))
    place = forward_only_place(replace(facts, frames=own))
    assert place is not None
    assert (place.line, place.is_function) == (10, True)


@pytest.mark.parametrize("declared", ["", "    global loss\n    loss = loss * 2\n"])
def test_a_function_that_trains_what_the_script_made_needs_its_graph(declared, tmp_path):
    text = SAMPLES.format(result="loss").replace("def train(x):\n", "def train(x):\n    return\n")
    text = text.replace("print(loss.shape)", f"def end():\n{declared}    loss.backward()\nend()")
    facts = facts_of(text, "64MiB", tmp_path)
    own = tuple(one for one in facts.frames if one.place.file.startswith(str(tmp_path)))
    assert forward_only_place(replace(facts, frames=own)) is None


ACCELERATED = """\
def train(accelerator, model, batches, others):
    for batch in batches:
        loss = model(batch)
        accelerator.backward(loss)
    losses = []
    for batch in others:
        losses.append(accelerator.gather(model(batch)))
    total = torch.cat(losses).mean()
    accelerator.{shows}(total)
"""


@pytest.mark.parametrize(("shows", "reaches"), [("print", False), ("log", False), ("keep", True)])
def test_what_an_object_shows_does_not_reach_its_backward_pass(shows, reaches, tmp_path):
    """An object that keeps a result may run a backward pass through it later."""
    program = tmp_path / "train.py"
    program.write_text(ACCELERATED.format(shows=shows))
    assert reaches_backward(str(program), 7) is reaches


KEEPS_PROBABILITIES = """\
import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4096)).cuda()

def validate():
    kept = []
    for _ in range(20):
        scores = model(torch.randn(256, 64, device="cuda"))
        kept.append(scores.softmax(-1))
    return torch.cat(kept).mean().item()

model(torch.randn(256, 64, device="cuda")).sum().backward()
validate()
"""


@knows_saved_tensors
def test_an_evaluation_whose_graphs_save_what_it_keeps_needs_none(tmp_path):
    """Few bytes are freed: softmax saves its result, which stays in the list."""
    facts = facts_of(KEEPS_PROBABILITIES, "60MiB", tmp_path)
    own = tuple(one for one in facts.frames if one.place.file.startswith(str(tmp_path)))
    remedy = NoGrad().remedy(replace(facts, frames=own))
    assert remedy is not None
    assert remedy.code == ("# program.py before line 6:", "@torch.no_grad()")
    assert 0 < remedy.size < facts.in_use // 10
