"""A container whose tensors go to host memory, and what is read of it goes back to the GPU."""

from __future__ import annotations

import linecache

import pytest
import torch
from support.ran_out import written

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.causes.kept_results import KeptResults
from pytorch_memlab.history.out_of_memory import OutOfMemory

HEAD = """\
import random
from collections import deque, namedtuple
import torch
from torch import nn

Step = namedtuple("Step", ("state", "reward"))
net = nn.Linear(65536, 2).cuda()

def score(states):
    return net(states).sum()

"""

MEMORY = """\
class Memory:
    def __init__(self):
        self.steps = deque(maxlen=10_000)

    def push(self, *step):
        {push}

    def sample(self, count):
        {sample}

memory = Memory()
for step in range({steps}):
    memory.push(torch.randn(1, 65536, device="cuda"), 1.0)
    if len(memory.steps) > 4:
        states, _ = zip(*memory.sample(4))
        score(torch.cat(states))
"""

LISTED = """\
kept = []
for step in range({steps}):
    {push}
    {sample}
"""

CASES = {
    "a sample of named tuples": (
        MEMORY,
        "self.steps.append(Step(*step))",
        "return random.sample(self.steps, count)",
        (
            "self.steps.append("
            "Step(*(part.cpu() if torch.is_tensor(part) else part for part in step)))"
        ),
        (
            "return [Step(*(part.cuda() if torch.is_tensor(part) else part for part in one))"
            " for one in random.sample(self.steps, count)]"
        ),
    ),
    "tuples by index": (
        MEMORY,
        "self.steps.append((step[0], step[1]))",
        "return [self.steps[random.randrange(len(self.steps))] for _ in range(count)]",
        "self.steps.append((step[0].cpu(), step[1]))",
        (
            "return [tuple(part.cuda() if torch.is_tensor(part) else part"
            " for part in self.steps[random.randrange(len(self.steps))]) for _ in range(count)]"
        ),
    ),
    "all joined": (
        LISTED,
        'kept.append(torch.randn(1, 65536, device="cuda"))',
        "score(torch.cat(kept))",
        "kept.append(torch.randn(1, 65536, device='cuda').cpu())",
        "score(torch.cat(kept).cuda())",
    ),
    "one of them": (
        LISTED,
        'kept.append(torch.randn(1, 65536, device="cuda"))',
        "score(random.choice(kept))",
        "kept.append(torch.randn(1, 65536, device='cuda').cpu())",
        "score(random.choice(kept).cuda())",
    ),
    "one of them, in a list of bounded length": (
        LISTED,
        'kept.append(torch.randn(1, 65536, device="cuda"))',
        "if len(kept) > 250: kept.pop(0)\n    score(kept[-1])",
        "kept.append(torch.randn(1, 65536, device='cuda').cpu())",
        "if len(kept) > 250: kept.pop(0)\n    score(kept[-1].cuda())",
    ),
    "each of them": (
        LISTED,
        'kept.append(torch.randn(1, 65536, device="cuda"))',
        "total = sum(score(one) for one in kept)",
        "kept.append(torch.randn(1, 65536, device='cuda').cpu())",
        "total = sum(score(one) for one in (one.cuda() for one in kept))",
    ),
}


def facts_of(text: str, folder) -> OutOfMemory:
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate("64MiB", compute=False, context=0),
        torch.no_grad(),
    ):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    report = uncaught.add(caught.value)
    assert report is not None
    assert isinstance(report.facts, OutOfMemory)
    return report.facts


def runs(text: str) -> int:
    """The peak of a program that runs."""
    with simulate("64MiB", compute=False, context=0), torch.no_grad():
        exec(compile(text, "edited.py", "exec"), {"__name__": "__main__"})
        return torch.cuda.max_memory_allocated()


@pytest.mark.parametrize("name", CASES)
def test_the_other_edit_moves_what_is_read(name, tmp_path):
    program, push, sample, new_push, new_sample = CASES[name]
    text = HEAD + program.format(steps=300, push=push, sample=sample)
    remedy = KeptResults().remedy(facts_of(text, tmp_path))
    assert remedy is not None
    assert remedy.otherwise is not None
    assert written(remedy) == (
        new_push,
    )  # is tried first, and fails: it computes with what is read
    assert written(remedy.otherwise) == (new_push, new_sample.splitlines()[-1].strip())
    for edit, is_enough in ((new_sample, True), (sample, False)):
        new = HEAD + program.format(steps=30, push=new_push, sample=edit)
        if is_enough:
            assert runs(new) < 64 * 2**20
        else:
            with pytest.raises(RuntimeError, match="same device"):
                runs(new)


@pytest.mark.parametrize(
    "sample",
    [
        "tail = kept[-3:]\n    score(tail[0])",  # a part may be any
        "kept[0] = kept[0] * 2\n    score(kept[0])",
        "other = kept\n    score(other[-1])",  # another name for it
    ],
)
def test_a_read_that_is_not_understood_is_left_alone(sample, tmp_path):
    push = 'kept.append(torch.randn(1, 65536, device="cuda"))'
    text = HEAD + LISTED.format(steps=300, push=push, sample=sample)
    remedy = KeptResults().remedy(facts_of(text, tmp_path))
    assert remedy is not None
    assert remedy.otherwise is None


def test_what_a_backward_pass_reads_goes_to_the_gpu_again_at_once(tmp_path):
    text = HEAD + (
        "def read():\n"
        "    kept = 1.0\n"  # another variable of that name
        "    return kept, False\n"
        "kept, seen = [], []\n"
        "for step in range(300):\n"
        "    state = torch.randn(1, 65536, device='cuda')\n"
        "    kept.append(state)\n"
        "    seen.append(state.sum())\n"
        "loss = score(torch.cat(kept)) + torch.stack(seen).sum()\n"
        "loss.backward()\n"
    )
    remedy = KeptResults().remedy(facts_of(text, tmp_path))
    assert remedy is not None
    edits = ("kept.append(state.cpu())", "loss = score(torch.cat(kept).cuda())")
    assert written(remedy)[0] == edits[0]
    assert written(remedy)[1].startswith(edits[1])
    assert remedy.why.startswith("kept (line 18) keeps ")
    assert remedy.otherwise is not None
    assert written(remedy.otherwise)[0] == edits[0]
    assert "cuda()" not in "".join(written(remedy.otherwise))


def test_what_reads_batches_of_a_memory_is_not_filled_beside_it(tmp_path):
    text = HEAD + MEMORY.format(
        steps=300,
        push="self.steps.append(Step(*step))",
        sample="batch = Step(*zip(*random.sample(self.steps, count)))\n"
        "        score(torch.cat(batch.state))\n        return zip(*batch)",
    )
    remedy = KeptResults().remedy(facts_of(text, tmp_path))
    assert remedy is not None
    assert remedy.why.startswith("self.steps (line ")
    assert " keeps " in remedy.why
