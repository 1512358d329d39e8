"""A Trainer's loop is in the library, so a remedy that was not tried is an argument of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.made_up_facts import MIB, made_up_facts, place
from support.ran_out import written

from pytorch_memlab.advice.cause import Cause
from pytorch_memlab.advice.causes.activations import Activations
from pytorch_memlab.advice.causes.float32_products import Autocast, Float32Products
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import BlockInUse, ModelFacts, OutOfMemory

TRAINS = """\
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="out",
        report_to=[],  # nothing else
    ),
)
trainer.train()
"""
_CHECKPOINTS = (
    "gradient_checkpointing=True,",
    'gradient_checkpointing_kwargs={"use_reentrant": False},',
)
LIGHTNING = """\
import lightning as L
trainer = L.Trainer(
    max_epochs=2,  # both
)
trainer.fit(Net(), batches)
"""
LOOPS = """\
for x in batches:
    loss = model(x)
"""


def facts(folder: Path, text: str) -> OutOfMemory:
    at = place(text, folder, text.splitlines()[-1].strip())
    block = BlockInUse(
        200 * MIB, Category.SAVED, at, "", (8, 200, 256), dtype="float32", is_in_repeated=True
    )
    model = ModelFacts(10 * MIB, 10 * MIB, name="model", repeated="h", repeats=4)
    return replace(made_up_facts(at, [block], requested=20 * MIB), model=model)


@pytest.mark.parametrize(
    ("cause", "of_trainer", "of_loop"),
    [
        (
            Activations(),
            _CHECKPOINTS,
            ("x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",),
        ),
        (
            Float32Products(),
            ("bf16=True,",),
            (
                'with torch.autocast("cuda", dtype=torch.bfloat16):',
                "    loss = ...  # the forward pass, without backward()",
            ),
        ),
    ],
)
def test_the_library_has_an_argument_for_it(
    cause: Cause, of_trainer: tuple[str, ...], of_loop: tuple[str, ...], tmp_path: Path
) -> None:
    remedy = cause.remedy(facts(tmp_path, TRAINS))
    assert remedy is not None
    [where, *code] = remedy.code
    assert where.endswith(".py after line 5:")
    assert tuple(code) == of_trainer

    remedy = cause.remedy(facts(tmp_path, LOOPS))
    assert remedy is not None
    assert remedy.code == of_loop


def test_the_trainer_of_lightning_has_a_precision(tmp_path: Path) -> None:
    remedy = Float32Products().remedy(facts(tmp_path, LIGHTNING))
    assert remedy is not None
    assert written(remedy) == ('precision="bf16-mixed",',)
    assert isinstance(remedy.change, EditedSource)
    # Older releases have no such precision.
    assert remedy.otherwise is not None
    assert isinstance(remedy.otherwise.change, Autocast)
    precise = LIGHTNING.replace("max_epochs=2", 'precision="bf16-mixed"')
    remedy = Float32Products().remedy(facts(tmp_path, precise))
    assert remedy is not None
    assert isinstance(remedy.change, Autocast)


BLOCKS = """\
class Net(nn.Module):
    def forward(self, x):
        caches = []
        for _, block in enumerate(self.h):
            x, cache = block(x, None)
            caches.append(cache)
        return x, caches
"""


def test_a_block_that_returns_several_values_is_checkpointed_where_it_is_called(
    tmp_path: Path,
) -> None:
    remedy = Activations().remedy(facts(tmp_path, BLOCKS))
    assert remedy is not None
    assert remedy.code == (
        "import torch.utils.checkpoint",
        "# program.py in place of line 5:",
        "x, cache = torch.utils.checkpoint.checkpoint(block, x, None, use_reentrant=False)",
    )
    remedy = Activations().remedy(facts(tmp_path, BLOCKS.replace("self.h)", "self.others)")))
    assert remedy is not None
    assert len(remedy.code) == 1
