"""Costs of autocast: a loss that raises an error under it, and weights that it casts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.made_up_facts import MIB, made_up_facts, place
from support.ran_out import facts_of, peak_of

from pytorch_memlab.advice.catalogue import candidates
from pytorch_memlab.advice.causes.float32_products import Float32Products
from pytorch_memlab.advice.forward_in_half import refuses_autocast
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import BlockInUse, ModelFacts

TRAINS = """\
import torch
from torch import nn
from torch.nn import functional as F

net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 1, 3, padding=1))
net.cuda()
criterion = nn.BCEWithLogitsLoss()
images = torch.rand(16, 3, 160, 160, device="cuda")
labels = torch.ones(16, 1, 160, 160, device="cuda")
AROUND
    LOSS
loss.backward()
"""
WITH_LOGITS = "loss = criterion(net(images), labels)"


def program(loss: str, around: str = "if True:") -> str:
    text = TRAINS.replace("LOSS", loss).replace("AROUND", around)
    return text if loss == WITH_LOGITS else text.replace("BCEWithLogitsLoss", "BCELoss")


@pytest.mark.parametrize(
    ("loss", "refuses"),
    [
        (WITH_LOGITS, False),
        ("loss = criterion(net(images).sigmoid(), labels)", True),
        ("loss = F.binary_cross_entropy(net(images).sigmoid(), labels)", True),
    ],
)
def test_autocast_is_no_remedy_where_the_loss_raises_an_error_under_it(loss, refuses, tmp_path):
    facts = facts_of(program(loss), "260MiB", tmp_path)
    assert refuses_autocast(facts) is refuses
    code = "\n".join(line for _, remedy in candidates(facts) for line in remedy.code)
    assert ("autocast" in code) is not refuses
    under = program(loss, 'with torch.autocast("cuda", dtype=torch.bfloat16):')
    if refuses:
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            peak_of(under)
    else:
        assert peak_of(under) < peak_of(program(loss))


@pytest.mark.parametrize(
    ("trained", "frozen", "size"),
    [
        (40 * MIB, 0, 300 * MIB // 3 - 40 * MIB // 2 - 40 * MIB // 2),  # kept, and one for a call
        (0, 60 * MIB, 300 * MIB // 3 - 60 * MIB // 2),  # for a call alone
        (200 * MIB, 0, None),  # as much as the activations save
    ],
)
def test_weights_in_bfloat16_are_no_saving(trained, frozen, size, tmp_path):
    at = place("loss = net(x)\n", tmp_path, "loss = net(x)")
    weights = [
        BlockInUse(number, Category.PARAMETERS, None, "weight", dtype="float32")
        for number in (trained, frozen)
        if number
    ]
    saved = BlockInUse(300 * MIB, Category.SAVED, at, "", (300, 2**18), dtype="float32")
    model = ModelFacts(trained + frozen, trained + frozen, frozen=frozen)
    facts = replace(made_up_facts(at, [*weights, saved], requested=MIB), model=model)
    remedy = Float32Products().remedy(facts)
    assert (None if remedy is None else remedy.size) == size
