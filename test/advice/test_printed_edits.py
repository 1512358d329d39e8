"""The edits of remedies, made by hand from what the report prints."""

from __future__ import annotations

import ast
import linecache
import re

import pytest
import torch
from support.ran_out import facts_of, peak_of

from pytorch_memlab.advice.catalogue import candidates
from pytorch_memlab.advice.cause import Remedy
from pytorch_memlab.advice.changes import without_gradients
from pytorch_memlab.advice.loss_in_parts import loss_in_parts
from pytorch_memlab.advice.rewriting import Rewriting, changed_code
from pytorch_memlab.advice.trial_records import Advice
from pytorch_memlab.render.advice import lines_of

_PLACE = re.compile(r" *# program\.py (before|after|in place of) lines? (\d+)(?: to (\d+))?:")
_OUTCOME = re.compile(r"       (frees at least|same |tried:)|  \d\. ")


def made_by_hand(text: str, printed: list[str]) -> str:
    """A program with the first remedy of a report, typed in as it is printed."""
    places: list[tuple[int, int, list[str], int]] = [(1, 0, [], 1)]  # imports go to the top
    for line in printed[1:]:
        place = _PLACE.fullmatch(line)
        if place:
            where, first, last = place.groups()
            begin, end = int(first), int(last or first)
            if where != "in place of":
                begin, end = (end, begin - 1) if where == "before" else (end + 1, end)
            beside = end if where == "after" else begin
            places.append((begin, end, [], beside))
        elif _OUTCOME.match(line):
            break
        elif len(places) > 1 or line.lstrip().startswith("import "):  # no second line of the reason
            places[-1][2].append(line[7:])
    lines = text.splitlines()
    for first, last, new, beside in sorted(places, reverse=True):
        column = len(lines[beside - 1]) - len(lines[beside - 1].lstrip())
        lines[first - 1 : last] = [" " * column + line for line in new]
    return "\n".join(lines) + "\n"


TRAINS = """\
import torch
import torch.nn.functional as F
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20000, 64)
        self.head = nn.Linear(64, 20000)

    def forward(self, ids, targets):
        x = self.embed(ids)
        if targets is not None:
            logits = self.head(x)
            loss = F.cross_entropy(
                logits.view(-1, 20000), targets.view(-1), ignore_index=0)
            return loss
        return x

model = Model().cuda()
ids = torch.randint(1, 20000, (16, 128), device="cuda")
model(ids, ids).backward()
"""
KEEPS = """\
import torch
from torch import nn

net = nn.Sequential(nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 64)).cuda()
values = []
for step in range(16):
    x = torch.randn(256, 64, device="cuda")
    values.append(net(x).mean())
"""
MOVES = """\
import torch
from torch.utils.data import DataLoader

device = torch.device("cuda")
loader = DataLoader(torch.randn(64, 2**17), batch_size=1)
batches = [x.to(device) for x in loader]
total = 0.0
for x in batches:
    total += x.square().mean().item()
print(total)
"""


@pytest.mark.parametrize(("text", "gpu"), [(TRAINS, "300MiB"), (KEEPS, "40MiB"), (MOVES, "24MiB")])
def test_what_the_report_prints_is_the_edit(text, gpu, tmp_path):
    remedy = candidates(facts_of(text, gpu, tmp_path))[0][1]
    printed = lines_of(Advice((remedy,), (None,)))
    assert max(map(len, printed)) <= 80
    by_hand = made_by_hand(text, printed)
    [edited] = remedy.change._texts().values()
    assert ast.dump(ast.parse(by_hand)) == ast.dump(ast.parse(edited))
    assert peak_of(text) - peak_of(by_hand) >= remedy.size


def source(text: str, folder) -> str:
    path = folder / "program.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    return str(path)


def test_lines_that_only_move_are_not_all_printed(tmp_path):
    body = "".join(f"    y{n} = net(x{n})\n" for n in range(40))
    file = source(f"import torch\nfor n in range(2):\n{body}", tmp_path)
    assert changed_code(without_gradients(file, 2, is_function=False)) == (
        "# program.py in place of lines 2 to 42:",
        "with torch.no_grad():",
        "    ...  # lines 2 to 42",
    )


IN_PARTS = """\
import torch
from torch import nn
from torch.nn import functional as F
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
weighted = nn.CrossEntropyLoss(weight=torch.arange(50.0))
def step(head, x, y):
    scores = head(x)
    loss = LOSS
    return loss
"""


@pytest.mark.parametrize(
    ("loss", "is_mean_of_targets"),
    [
        ("F.cross_entropy(scores, y)", True),
        ("F.cross_entropy(scores.view(-1, 50), y.view(-1), ignore_index=7)", True),
        ("criterion(scores, y)", True),
        ("F.nll_loss(scores, y)", True),
        ("weighted(scores, y)", False),
        ("F.cross_entropy(scores, y, torch.arange(50.0))", False),
        ("F.cross_entropy(scores, y, reduction='mean')", False),
    ],
)
def test_the_mean_over_all_targets_stays_where_padding_is_uneven(
    loss, is_mean_of_targets, tmp_path
):
    text = IN_PARTS.replace("LOSS", loss)
    file = Rewriting(source(text, tmp_path))
    parts = loss_in_parts(file, 4)
    assert parts is not None
    assert parts.is_mean_of_targets is is_mean_of_targets
    before, after = {}, {}
    exec(compile(text, "program.py", "exec"), before)
    exec(compile(file.text(), "program.py", "exec"), after)
    torch.manual_seed(0)
    head, x, y = torch.nn.Linear(8, 50), torch.randn(21, 8), torch.randint(0, 50, (21,))
    y[:5] = 7 if "ignore_index" in loss else -100
    difference = after["step"](head, x, y) - before["step"](head, x, y)
    assert (abs(difference.item()) < 1e-5) is is_mean_of_targets


def test_a_reason_is_printed_to_its_end() -> None:
    remedy = Remedy(
        "evaluation_predictions",
        211 << 20,
        "Trainer keeps the predictions of all batches (line 31) on the GPU until the evaluation is"
        " over: 211.0 MiB",
        ("eval_accumulation_steps=1",),
        effect="predictions go to host memory after each batch",
    )

    assert lines_of(Advice((remedy,), (None,))) == [
        "  1. Trainer keeps the predictions of all batches (line 31) on the GPU until",
        "     the evaluation is over: 211.0 MiB (predictions go to host memory after",
        "     each batch)",
        "       eval_accumulation_steps=1",
    ]
