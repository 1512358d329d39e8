"""The GPU memory of tests in a JSON file. Reading executes nothing, and checks every field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from ..profiles.changed_tests import MeasuredTest
from .checked import record
from .document import FileFormat

FORMAT: Final = FileFormat(
    "pytorch_memlab.tests",
    1,
    noun="file of --memlab-save",
    hint="; --memlab-save writes it again",
    indent=1,
)


@dataclass(frozen=True, slots=True)
class _Tests:
    tests: Mapping[str, MeasuredTest]  # by their names


def text_of(tests: Mapping[str, MeasuredTest]) -> str:
    """The tests as one JSON document."""
    return FORMAT.text_of({"tests": {name: asdict(tests[name]) for name in sorted(tests)}})


def load(text: str, file: str) -> dict[str, MeasuredTest]:
    """The tests that ``text_of`` made the text of."""
    return FORMAT.load(text, file, lambda data: dict(record(_Tests, data).tests))


def read(path: str) -> dict[str, MeasuredTest]:
    """The tests in a file."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return load(file.read(), path)


def from_report(data: Mapping[str, Any]) -> MeasuredTest:
    """The memory of a test that another process measured."""
    return record(MeasuredTest, data)
