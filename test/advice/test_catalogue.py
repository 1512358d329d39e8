"""All remedies by name."""

from __future__ import annotations

import pickle

import pytest

from pytorch_memlab.advice.catalogue import chosen, most_likely, named_changes
from pytorch_memlab.advice.cause import Remedy
from pytorch_memlab.advice.causes.batch import Batch
from pytorch_memlab.advice.causes.kept_graphs import KeptGraphs
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.errors import UsageError


def test_every_name_makes_the_remedy_of_that_name_as_plain_data():
    found = chosen()
    assert [one.name.partition("=")[0] for one in found] == [
        name for name, change in named_changes().items() if change.is_by_default
    ]
    assert all(one.what_it_changes for one in found)
    # Where processes cannot be forked, a remedy is sent to the process of its trial.
    assert [one.name for one in pickle.loads(pickle.dumps(found))] == [one.name for one in found]


def test_remedies_with_values():
    settings, ranks = chosen(["max_split_size=64", "shard=16"])
    assert settings.environment()["PYTORCH_CUDA_ALLOC_CONF"].endswith("max_split_size_mb:64")
    assert ranks.environment()["WORLD_SIZE"] == "16"
    values = {name for name, change in named_changes().items() if change.unit}
    assert values == {"max_split_size", "memory_budget", "roundup", "shard"}


@pytest.mark.parametrize("name", ["shard=one", "shard=", "max_split_size=1", "roundup=x"])
def test_values_that_do_not_work(name):
    with pytest.raises(UsageError):
        chosen([name])


@pytest.mark.parametrize(
    ("change", "words"),
    [(None, ["losses keeps graphs", "8 images"]), (EditedSource(()), ["losses keeps graphs"])],
)
def test_what_helps_any_program_is_named_where_no_edit_of_a_fault_can_be_made(change, words):
    batch = Remedy(Batch.name, 2, "8 images", ("batch_size = 4",), change=EditedSource(()))
    fault = Remedy(KeptGraphs.name, 1, "losses keeps graphs", ("backward()",), change=change)
    found = most_likely([(Batch(), batch), (KeptGraphs(), fault)])
    assert [remedy.why for remedy in found] == words
