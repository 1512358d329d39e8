"""Values that a saved file may have, and what the message about another one names."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import pytest
import torch

from pytorch_memlab.profiles.changed_tests import HoldingLine, MeasuredTest
from pytorch_memlab.profiles.recorded import RecordedProfile, Run
from pytorch_memlab.saved import profile_file, tests_file
from pytorch_memlab.saved.checked import DamagedError, record

TEST = MeasuredTest(
    "cuda:0", "H100", True, 700, 1024, 0, False, None, (HoldingLine("a.py", 3, "f", "x", 500),)
)


@dataclass(frozen=True)
class Inner:
    size: int


@dataclass(frozen=True)
class Outer:
    inner: Inner
    several: tuple[Inner, ...]


@dataclass(frozen=True)
class WithATensor:
    tensor: torch.Tensor


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"inner": 3, "several": []}, "'inner' has 3, expected is an object"),
        ({"inner": {"size": 1}, "several": [7]}, "'several' has 7, expected is an object"),
        ({"inner": {}, "several": []}, "it has no 'size'"),
    ],
)
def test_a_record_in_a_record_is_named_where_it_is_none(data: object, message: str) -> None:
    with pytest.raises(DamagedError) as info:
        record(Outer, data)
    assert str(info.value) == message


def test_a_type_that_no_file_has_is_refused_before_a_value_is_read() -> None:
    with pytest.raises(TypeError, match=r"^no file has a <class 'torch\.Tensor'>$"):
        record(WithATensor, {"tensor": None})


def test_a_number_that_json_lacks_is_not_written() -> None:
    run = Run("train.py", (), {}, "", 1.5, is_dry_run=False)
    whole = RecordedProfile((run,), (), (), (), (), ("hits",))
    with pytest.raises(ValueError, match="not JSON compliant"):
        profile_file.text_of(replace(whole, runs=(replace(run, seconds=float("nan")),)))


def test_tests_are_written_in_the_order_of_their_names() -> None:
    text = tests_file.text_of({"test_b.py::test_b": TEST, "test_a.py::test_a": TEST})

    assert list(json.loads(text)["tests"]) == ["test_a.py::test_a", "test_b.py::test_b"]
