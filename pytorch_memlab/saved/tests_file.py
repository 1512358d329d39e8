"""The GPU memory of tests in a JSON file. Reading executes nothing, and checks every field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Final

from .._common.version import __version__
from ..errors import ProfileError
from ..profiles.changed_tests import HoldingLine, MeasuredTest
from .checked_json import Checked, DamagedError, check_version
from .checksum import check, with_checksum

FORMAT: Final = "pytorch_memlab.tests"
VERSION: Final = 1


def text_of(tests: Mapping[str, MeasuredTest]) -> str:
    """The tests as one JSON document."""
    data = {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "tests": {name: asdict(tests[name]) for name in sorted(tests)},
    }
    return with_checksum(json.dumps(data, indent=1))


def is_tests(text: str) -> bool:
    """True if a text is a file of tests, perhaps a damaged one."""
    return f'"format": "{FORMAT}"' in text[:200]


def load(text: str, called: str) -> dict[str, MeasuredTest]:
    """The tests that ``text_of`` made the text of."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise ProfileError(
            f"{called} is no file of --memlab-save: it is no JSON; --memlab-save writes it again"
        ) from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise ProfileError(f"{called} is JSON, but no file of --memlab-save")
    check(text, data, called)
    check_version(data, VERSION, called)
    try:
        tests = Checked(data).by_name("tests", Checked.object)
        return {name: measured_test(one) for name, one in tests.items()}
    except DamagedError as error:
        raise ProfileError(f"{called} is damaged: {error}") from None


def read(path: str) -> dict[str, MeasuredTest]:
    """The tests in a file."""
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return load(file.read(), path)


def measured_test(data: Checked) -> MeasuredTest:
    """The memory of one test, from the fields that ``asdict`` made of it."""
    test = data.record(MeasuredTest, holders=())
    return replace(test, holders=tuple(one.record(HoldingLine) for one in data.objects("holders")))


def from_report(data: Mapping[str, Any]) -> MeasuredTest:
    """The memory of a test that another process measured."""
    return measured_test(Checked({**data, "holders": [*data["holders"]]}))
