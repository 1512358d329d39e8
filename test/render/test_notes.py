"""The words of every kind of note."""

from __future__ import annotations

from typing import get_args

import pytest

from pytorch_memlab.records import (
    Approximated,
    Approximation,
    ApproximationKind,
    Note,
    NoteKind,
    PeakShare,
    Remark,
    TracingEnded,
)
from pytorch_memlab.render.notes import kind_of, text, texts

QR = Approximation(ApproximationKind.UNMODELLED, "linalg_qr", 2, 1024)
SORT = Approximation(ApproximationKind.UNMODELLED, "sort", 1, 4096)
CPU = "CPU tensors were measured, of the storages that ops made while profiled functions ran"

WORDS = {
    "as a file has it": "as a file has it",
    Remark(NoteKind.SWITCHED_OFF): "PYTORCH_MEMLAB=0 turns profiling off",
    Remark(NoteKind.SIMULATED_GPUS, ("cuda:0", "cuda:1"), "NVIDIA T4"): (
        "simulated GPU: NVIDIA T4 (cuda:0, cuda:1)"
    ),
    Remark(NoteKind.CPU_TENSORS): CPU,
    Remark(NoteKind.CPU_TENSORS_WITHOUT_GPU): f"no GPU here: {CPU}",
    Approximated((QR, SORT)): (
        "not modelled: sort (1 call, 4.0 KiB of outputs), linalg_qr (2 calls, 1.0 KiB of "
        "outputs in all): only outputs are counted, so the true peak may be higher"
    ),
    PeakShare("cuda:0", 1000, 13, (QR,)): (
        "cuda:0: 98.7% of the peak of 1000 B is exact, 1.3% (13 B) estimated, kernel memory of "
        "linalg_qr not counted"
    ),
    Remark(NoteKind.FILES_NOT_CHANGED, ("a.pt",)): "left as it was by the dry run (1 path): a.pt",
    Remark(NoteKind.FILES_NOT_CHANGED, tuple("abcdefghijkl")): (
        "left as it was by the dry run (12 paths): a, b, c, d, e, f, g, h, i, j, k, l"
    ),
    Remark(NoteKind.COMMANDS_STARTED, ("w x",)): "not held back by the dry run (1 command): w x",
    Remark(NoteKind.COMMANDS_REFUSED, ("a", "b")): (
        "not started without --allow-writes (2 commands): a, b"
    ),
    Remark(NoteKind.STALE_SOURCES, ("f", "g")): (
        "f, g: the file has changed since it was loaded, so there is no source to show; reload it"
    ),
    Remark(NoteKind.EDITED_FUNCTIONS, ("f",)): (
        "f was edited since: these lines are of the version before; make another LineProfiler"
    ),
    Remark(NoteKind.EVENTS_DROPPED, ("cuda:0",), "500 of 1,700"): (
        "cuda:0: the history has the last 500 of 1,700 events, as it is limited: its timeline and"
        " replays begin there, and all other figures are of the whole run"
    ),
    Remark(NoteKind.EVENTS_MAY_BE_MISSING, ("cuda:0",), "500"): (
        "cuda:0: the history has the last 500 events, which is its limit, so that earlier ones may"
        " be missing: what held the peak, the timeline and replays are of these"
    ),
    Remark(NoteKind.KEPT_AT_LEAST, ("cuda:0",)): (
        "kept and freed are at least the numbers of cuda:0: hardware counts bytes, and does not"
        " tell which ones a line freed; delta is exact"
    ),
    TracingEnded("at a.py:3", in_main_thread=True, began_again=False): (
        "tracing ended at a.py:3: lines that ran later are missing"
    ),
    TracingEnded("at a.py:3", in_main_thread=False, began_again=True): (
        "tracing of a thread ended at a.py:3: its lines that ran until it began again are missing"
    ),
    Remark(NoteKind.DID_NOT_RUN, ("f", "g")): "f, g did not run while profiled",
    Remark(NoteKind.DID_NOT_RUN_BEFORE_END, ("f",)): "f did not run before tracing ended",
    Remark(NoteKind.UNMET_ASSUMPTIONS, ("a.py:3=0.1", "unique=7")): (
        "--assume a.py:3=0.1, unique=7: nothing there assumed a size, for the values were known or"
        " no such op ran"
    ),
    Remark(NoteKind.IDLE_DEVICES, ("cuda:1",)): "no memory was in use on cuda:1: no table",
    Remark(
        NoteKind.NO_FUNCTIONS
    ): "no function was registered, see LineProfiler(function) and @profile",
}


@pytest.mark.parametrize(("note", "words"), WORDS.items())
def test_its_words(note: Note, words: str) -> None:
    assert text(note) == words
    assert texts([note]) == (words,)


def test_every_kind_has_words() -> None:
    assert {type(note) for note in WORDS} == set(get_args(Note))
    assert {note.kind for note in WORDS if isinstance(note, Remark)} == set(NoteKind)


def test_a_summary_of_a_saved_profile_has_the_kind_of_the_one_that_was_saved() -> None:
    for kind in ApproximationKind:
        note = Approximated((Approximation(kind, "sort", 1),))
        assert kind_of(note) is kind_of(text(note)) is kind
    assert kind_of("a note") is kind_of(Remark(NoteKind.NO_FUNCTIONS)) is None
