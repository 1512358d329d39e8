"""A saved file that was changed after it was written is refused, or has the same content."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from support.sample_reports import CUDA0

import pytorch_memlab
from pytorch_memlab.errors import ProfileError
from pytorch_memlab.profiles.changed_tests import HoldingLine, MeasuredTest
from pytorch_memlab.profiles.recorded import MeasuredDevice, RecordedProfile, Run
from pytorch_memlab.records import FunctionInfo, LineEntry
from pytorch_memlab.saved import profile_file, tests_file

PROFILE = RecordedProfile(
    (Run("train.py", ("é",), {"torch": "2.13.0"}, "", 1.5, is_dry_run=False),),
    (MeasuredDevice(CUDA0, 1024, 700, 600, 800),),
    (FunctionInfo("f", "train.py", 1, ("def f():", "    x = g()")),),
    (LineEntry(0, 2, CUDA0, 3, 0.5, 512, 0, {"active_bytes.all.peak": 700}),),
    (),
    ("hits",),
)
TESTS = {
    "test_a.py::test_one": MeasuredTest(
        "cuda:0", "H100", True, 700, 1024, 0, False, None, (HoldingLine("a.py", 3, "f", "x", 500),)
    )
}
KINDS: dict[str, tuple[str, Callable[[str, str], object], object]] = {
    "profile": (profile_file.text_of(PROFILE), profile_file.load, PROFILE),
    "tests": (tests_file.text_of(TESTS), tests_file.load, TESTS),
}
CHANGED = (
    "p.json was changed or damaged after it was written, its checksum says: copy or record it"
    ' again; to read it all the same, remove its line that begins with ,"checksum"'
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_is_refused_or_changes_nothing(kind: str) -> None:
    text, load, content = KINDS[kind]
    assert load(text, "p.json") == content
    data, refused = text.encode(), 0
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            try:
                loaded = load(flipped.decode("utf-8", "surrogateescape"), "p.json")
            except ProfileError as error:
                refused += "\n" not in str(error)
            else:
                assert loaded == content, (place, bit)
    # What is left is in the name of the field, and in the white space behind it.
    assert refused > 8 * (len(data) - 20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_file_is_refused_and_the_message_says_how_to_read_it(kind: str) -> None:
    text, load, content = KINDS[kind]
    changed = text.replace("700", "701")
    with pytest.raises(ProfileError) as info:
        load(changed, "p.json")
    assert str(info.value) == CHANGED

    lines = [line for line in changed.splitlines() if not line.startswith(',"checksum"')]
    assert len(lines) == len(text.splitlines()) - 1
    assert load("\n".join(lines), "p.json") != content


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_formatted_anew_is_refused(kind: str) -> None:
    text, load, _ = KINDS[kind]
    with pytest.raises(ProfileError, match=re.escape(CHANGED)):
        load(json.dumps(json.loads(text), indent=2), "p.json")


@pytest.mark.parametrize("kind", KINDS)
def test_line_ends_of_another_system_are_no_change(kind: str) -> None:
    text, load, content = KINDS[kind]
    assert load(text.replace("\n", "\r\n"), "p.json") == content


@pytest.mark.parametrize("kind", KINDS)
def test_the_checksum_is_that_of_the_bytes_before_its_line(kind: str) -> None:
    text = KINDS[kind][0]
    content, _, rest = text.rpartition('\n,"checksum":')
    assert rest == f'"sha256:{hashlib.sha256(content.encode()).hexdigest()}"\n}}\n'
    assert list(json.loads(text))[-1] == "checksum"


def test_a_profile_in_a_file(tmp_path: Path) -> None:
    text = profile_file.text_of(replace(PROFILE, notes=("a note",)))
    path = tmp_path / "p.json"
    path.write_bytes(text.encode().replace(b"a note", b"a n\xffte"))

    with pytest.raises(ProfileError, match="its checksum says"):
        pytorch_memlab.load(path)


def test_a_baseline_with_a_byte_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(tests_file.text_of(TESTS).encode().replace(b"a.py", b"\xff.py"))

    with pytest.raises(ProfileError, match="its checksum says"):
        tests_file.read(str(path))
