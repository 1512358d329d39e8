"""Private profiles: what is left out, and what stays."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytorch_memlab.profiles.privacy import without_private_facts
from pytorch_memlab.profiles.recorded import ProgramError, RecordedProfile, Run, ShownRemedy
from pytorch_memlab.records import (
    Approximation,
    ApproximationKind,
    DeviceInfo,
    LineEntry,
    NoteKind,
    Remark,
    Section,
    TracingEnded,
)

RUN = Run("/srv/secret/train.py", ("--data", "/srv/data"), {}, "", 1.0, False, 1, "", 3, 4, "rank3")
READ = Approximation(ApproximationKind.ASSUMED, "item", 1, 0, "0", "/srv/our secret/net.py:3")
LINE = LineEntry(0, 3, DeviceInfo("cuda:0", "H100", True), 1, 0.5, 512, 0, {}, (READ,))
PROFILE = RecordedProfile(
    (RUN,),
    (),
    (),
    (LINE, replace(LINE, line=4, approximations=())),
    (),
    ("hits",),
    None,
    (
        Remark(NoteKind.FILES_NOT_CHANGED, ("/srv/secret/a b.pt", "b.pt")),
        Remark(NoteKind.COMMANDS_STARTED, ("/opt/secret/copy --to /srv/x", "cp a b")),
        "left as it was: /srv/secret/a.pt",
    ),
    (TracingEnded("at /srv/secret/train.py:12", True, False),),
    (Section("of /srv/secret/x", ("bytes",), (("/srv/secret/y", (512, None)),), ("ends",)),),
    {},
    {},
    None,
    {},
    (
        ProgramError(
            'File "/srv/secret/train.py", line 3',
            "Out of memory",
            (ShownRemedy("why", "x = 1", "--- /srv/secret/train.py\n+x = 1\n", "not tried"),),
            ("not tried: no /srv/secret/train.py",),
        ),
        ProgramError("ValueError: /srv/secret"),
    ),
)


def test_everything_but_arguments_and_folders_stays():
    private = without_private_facts(PROFILE)

    assert private == replace(
        PROFILE,
        runs=(replace(RUN, program="train.py", arguments=()),),
        entries=(
            replace(LINE, approximations=(replace(READ, place="net.py:3"),)),
            PROFILE.entries[1],
        ),
        notes=(
            Remark(NoteKind.FILES_NOT_CHANGED, ("a b.pt", "b.pt")),
            Remark(NoteKind.COMMANDS_STARTED, ("copy", "cp")),
            "left as it was: a.pt",
        ),
        ends=(TracingEnded("at train.py:12", True, False),),
        sections=(Section("of x", ("bytes",), (("y", (512, None)),), ("ends",)),),
        errors=(
            ProgramError(
                "",
                "Out of memory",
                (ShownRemedy("why", "x = 1", "--- train.py\n+x = 1\n", "not tried"),),
                ("not tried: no train.py",),
            ),
        ),
    )
    assert without_private_facts(private) == private


@pytest.mark.parametrize(
    ("exception", "private"),
    [
        ("", ""),
        ("KeyError", "KeyError"),
        ("torch.OutOfMemoryError: CUDA out of memory", "torch.OutOfMemoryError"),
        ("ValueError: no /srv/x: gone", "ValueError"),
        ("SIGTERM", "SIGTERM"),
        ("a note of an older file", "an exception"),
    ],
)
def test_of_an_exception_the_class_stays(exception, private):
    profile = replace(PROFILE, runs=(replace(RUN, exception=exception),))
    assert without_private_facts(profile).runs[0].exception == private
