"""Remedies of programs that train models of ``transformers``, against what people write there."""

from __future__ import annotations

import pytest
from support.remedied_programs import edited, run, written

from pytorch_memlab.advice.around_program import Outcome
from pytorch_memlab.advice.catalogue import chosen
from pytorch_memlab.advice.causes.activations import Checkpointing

pytestmark = pytest.mark.programs

LOOP = """\
import torch
from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    hidden_size=128,
    intermediate_size=344,
    num_hidden_layers=4,
    num_attention_heads=4,
    vocab_size=1000,
)
model = LlamaForCausalLM(config).cuda()
model.train()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    tokens = torch.randint(0, 1000, (8, 256), device="cuda")
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TRAINER = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

model = GPT2LMHeadModel(GPT2Config(n_layer=3, n_embd=128, n_head=4, vocab_size=1000))
item = {name: torch.randint(0, 1000, (256,)) for name in ("input_ids", "labels")}
options = {"max_steps": 2, "report_to": [], "save_strategy": "no", "disable_tqdm": True}
arguments = TrainingArguments("out", per_device_train_batch_size=8, **options)
Trainer(model, arguments, train_dataset=[item] * 16).train()
"""
CHECKPOINTING = (
    '"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}'
)


@pytest.mark.parametrize("name", ["fused", "autocast_bf16", "checkpoint"])
def test_a_training_loop(tmp_path, name):
    path = written(tmp_path, LOOP)
    promised = run(path, chosen([name]))
    assert run(edited(path, promised.finding.edits)).peaks == promised.peaks != run(path).peaks


def test_some_of_the_layers(tmp_path):
    path = written(tmp_path, LOOP)
    some = tuple(f"model.model.layers[{number}]" for number in range(2))
    promised = run(path, [Checkpointing(some)])
    assert promised.finding.blocks == some
    (edit,) = promised.finding.edits
    assert edit.lines[-1] == "    block.gradient_checkpointing = False"
    assert run(edited(path, [edit])).peaks == promised.peaks
    assert promised.active > run(path, [Checkpointing()]).active


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("autocast_bf16", '"bf16": True'),
        (
            "checkpoint",
            CHECKPOINTING,
        ),
    ],
)
def test_the_trainer_with_its_own_option(tmp_path, monkeypatch, name, option):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, TRAINER)
    promised = run(path, chosen([name]))
    assert promised.finding.outcome is Outcome.APPLIED
    own = written(tmp_path, TRAINER.replace("options = {", f"options = {{{option}, "), "own.py")
    assert run(own).peaks == promised.peaks != run(path).peaks
    assert run(own, chosen([name])).finding.outcome is Outcome.ALREADY_USED
