"""All remedies by name."""

from __future__ import annotations

import pickle

import pytest

from pytorch_memlab.advice.catalogue import chosen, named_changes
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
