"""Recurrent layers take the length first and the batch second: the batch is found there too."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ran_out import edited, facts_of, peak_of

from pytorch_memlab.advice.cause import Remedy
from pytorch_memlab.advice.causes.batch import Batch

READS = """\
import torch
from torch import nn

{numbers}

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(200, 256)
        self.recurrent = nn.{layer}(256, 256, num_layers=2{options})
        self.out = nn.Linear(256, 200)

    def forward(self, ids):
        return self.out(self.recurrent(self.embed(ids))[0])

model = Model().cuda()
for step in range(2):
    ids = torch.randint(0, 200, ({shape}), device="cuda")
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
    loss.backward()
    model.zero_grad()
"""


def program(numbers: str, shape: str, layer: str = "LSTM", options: str = "") -> str:
    return READS.format(numbers=numbers, shape=shape, layer=layer, options=options)


def remedy_of(text: str, folder: Path) -> Remedy:
    peak = peak_of(text)
    remedy = Batch().remedy(facts_of(text, f"{peak - (20 << 20)}B", folder))
    assert remedy is not None
    return remedy


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (
            program("length, batch = 256, 32", "length, batch"),
            ("# program.py in place of line 4:", "length, batch = 256, {}"),
        ),
        (
            program("length, batch = 256, 32", "length, batch", "GRU"),
            ("# program.py in place of line 4:", "length, batch = 256, {}"),
        ),
        (
            program("length, many = 256, 32", "length, many"),
            ("# program.py in place of line 4:", "length, many = 256, {}"),
        ),
        (
            program("length = 256\nmany = 32", "length, many"),
            ("# program.py in place of line 5:", "many = {}"),
        ),
        (
            program("length = 256", "length, 32"),
            (
                "# program.py in place of line 18:",
                'ids = torch.randint(0, 200, (length, {}), device="cuda")',
            ),
        ),
        (
            program("length = 256\nmany = 32", "many, length", options=", batch_first=True"),
            ("# program.py in place of line 5:", "many = {}"),
        ),
    ],
)
def test_the_batch_is_the_number_of_sequences(
    text: str, code: tuple[str, str], tmp_path: Path
) -> None:
    remedy = remedy_of(text, tmp_path)

    assert remedy.why.startswith("32 sequences at a time take ")
    place, line = remedy.code
    [number] = [number for number in range(1, 17) if code[1].format(number) == line]
    assert (place, line) == (code[0], code[1].format(number))
    assert peak_of(edited(text, remedy)) < peak_of(text)


def test_what_the_layer_keeps_of_its_steps_counts(tmp_path: Path) -> None:
    text = program("length, batch = 256, 32", "length, batch")
    facts = facts_of(text, f"{peak_of(text) - (20 << 20)}B", tmp_path)
    [steps] = [block.size for block in facts.blocks if block.dtype == "uint8" and block.node]
    assert steps * 2 > facts.in_use

    remedy = Batch().remedy(facts)

    assert remedy is not None
    said = float(remedy.why.removeprefix("32 sequences at a time take ").removesuffix(" MiB"))
    assert said * 2**20 > steps
