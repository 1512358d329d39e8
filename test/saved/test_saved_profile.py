"""Saved profiles: written, read back as they were, and refused where they are anything else."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.sample_reports import (
    CONVOLUTION,
    CUDA0,
    CUDA1,
    INNER,
    MIB,
    OUTER,
    QR,
    entry,
)

import pytorch_memlab
from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.text.quoted import quoted
from pytorch_memlab.errors import HistoryError, ProfileError, UsageError
from pytorch_memlab.history.holders import PeakHolders
from pytorch_memlab.history.model import (
    AllocationHistory,
    Category,
    DeviceHistory,
    Event,
    EventLog,
    Frame,
    Segment,
    UsedBlock,
)
from pytorch_memlab.history.peak import Peak
from pytorch_memlab.profiles.recorded import (
    GrowingLoop,
    MeasuredDevice,
    ProgramError,
    RecordedCall,
    RecordedProfile,
    Run,
    ShownRemedy,
)
from pytorch_memlab.records import FunctionInfo, Section
from pytorch_memlab.saved import profile_file

RUN = Run(
    "train.py",
    ("--epochs", "1"),
    {"pytorch_memlab": "1.0", "torch": "2.13.0", "python": "3.11.7"},
    "2026-11-22T02:30:35+00:00",
    1.25,
    is_dry_run=True,
    exit_status=1,
    exception="RuntimeError: ü\udc80",
    rank=1,
    world_size=2,
)

HOLDERS = PeakHolders(
    Peak(
        0,
        1536,
        2048,
        3,
        9,
        (
            UsedBlock(2**63 + 512, 1024, 600, 1, 2, Category.GRADIENTS, "Net.a"),
            UsedBlock(2**63 + 1536, 512, 4, None),
        ),
    ),
    [(), (Frame("train.py", 7, "step"), Frame("train.py", 3, "ü\udc80")), ()],
)

PROFILE = RecordedProfile(
    (RUN,),
    (MeasuredDevice(CUDA0, 80 << 30, 3, 2, 4), MeasuredDevice(CUDA1, 80 << 30, 0, 0, 0)),
    (OUTER, INNER, FunctionInfo("<module>", "<stdin>", 1, None, ((2, 3),))),
    (
        entry(0, 8, 2**60 + 1, time=0.1 + 0.2, delta=-512, approximations=(QR, CONVOLUTION)),
        replace(entry(0, 8, 0, device=CUDA1), stats={}),
        entry(1, 5, 7, hits=3),
        replace(entry(2, 1, 0, 0), stats={"active_bytes.all.peak": 0, "num_ooms": 1}),
    ),
    (
        RecordedCall(1, 0, "sample.py", "outer", 10, 3, {"cuda:0": -5}),
        RecordedCall(0, None, "main.py", "<module>", 2, 1),
    ),
    ("hits", "active_bytes.all.peak"),
    (1, 0),
    ("a note",),
    ("tracing ended",),
    (Section("held at the end", ("bytes",), (("parameters", (3,)), ("rest", (None,))), ("n",)),),
    {"cuda:0": HOLDERS},
    {(0, 8): 1 << 20},
    AllocationHistory(
        [
            DeviceHistory(
                0,
                EventLog(
                    [
                        Event("segment_alloc", 2**63 + 512, 2048, 0, 5, 0),
                        Event("alloc", 2**63 + 512, 600, -1, 6, 1, 2, Category.GRADIENTS, "Net.a"),
                    ]
                ),
                [Segment(2**63 + 512, 2048, False, HOLDERS.peak.blocks, 7, True)],
                [Segment(0, 1024, True, (), 0, None)],
            ),
            DeviceHistory(1, EventLog(), [], is_rounded=False, dropped=700),
            DeviceHistory(2, EventLog(), [], dropped=None),
        ],
        HOLDERS.stacks,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        (6, 2**50),
    ),
    errors=(
        ProgramError(
            "Traceback: \udc80",
            "Out of memory",
            (ShownRemedy("a", "b", "c", "d"),),
            ("a note",),
            "what helps",
        ),
        ProgramError("Traceback"),
    ),
    growing=(GrowingLoop(1, 5, "cuda:0", 512, 4, 6),),
)


def test_a_profile_loads_as_it_was() -> None:
    loaded = profile_file.load(profile_file.text_of(PROFILE), "p.json")
    assert replace(loaded, history=None) == replace(PROFILE, history=None)
    assert loaded.history is not None
    assert PROFILE.history is not None
    for one, other in zip(loaded.history.devices, PROFILE.history.devices, strict=True):
        assert list(one.events) == list(other.events)
        assert replace(one, events=()) == replace(other, events=())
    assert loaded.history.stacks == PROFILE.history.stacks
    assert loaded.history.settings == PROFILE.history.settings
    assert loaded.history.steps == PROFILE.history.steps


def test_a_file_of_an_older_release_lacks_what_came_later() -> None:
    data = fields_of(profile_file.text_of(PROFILE))
    for name in LATER:
        del data[name]
    loaded = profile_file.load(json.dumps(data), "p.json")
    assert replace(loaded, history=None) == replace(PROFILE, history=None, errors=(), growing=())


def test_an_error_of_an_older_release_has_no_heading() -> None:
    data = fields_of(profile_file.text_of(PROFILE))
    for error in data["errors"]:
        del error["heading"]
    errors = tuple(replace(error, heading="") for error in PROFILE.errors)
    assert profile_file.load(json.dumps(data), "p.json").errors == errors


def test_a_file_of_version_2_has_sums_whose_means_are_the_least_that_was_kept_or_freed() -> None:
    data = fields_of(profile_file.text_of(PROFILE)) | {"version": 2}
    rows = [(3, 96), (2, -5), (0, 0)]
    data["lines"] = [[0, 8 + n, 0, hits, 0.5, total, 0] for n, (hits, total) in enumerate(rows)]
    data["gaps"] = []
    for call in data["calls"]:
        call["delta"] = call.pop("added")
    loaded = profile_file.load(json.dumps(data), "p.json")
    assert [(one.kept, one.freed) for one in loaded.entries] == [(32, 0), (0, 2), (0, 0)]
    assert loaded.calls == PROFILE.calls


def test_fields_keep_their_order() -> None:
    stats = {"b": 1, "a": 0, "c": 2}
    profile = replace(PROFILE, entries=(replace(entry(0, 8, 0), stats=stats),))
    loaded = profile_file.load(profile_file.text_of(profile), "p.json")
    assert list(loaded.entries[0].stats) == ["b", "a", "c"]


def test_rows_and_fields_of_zeros_stand_once() -> None:
    entries = tuple(entry(0, line, 5, 0) for line in (8, 9, 10))
    data = fields_of(profile_file.text_of(replace(PROFILE, entries=entries)))
    assert data["fields"] == ["active_bytes.all.peak", "reserved_bytes.all.peak"]
    assert data["zero_fields"] == ["reserved_bytes.all.peak"]
    assert data["rows"] == [[5]]
    assert data["lines"] == [[0, line, 0, 1, 0.001, 0, 0, 0] for line in (8, 9, 10)]


def fields_of(text: str) -> dict[str, Any]:
    """The fields of a saved profile, without its checksum."""
    data = json.loads(text)
    del data["checksum"]
    return data


def test_the_file_says_what_it_is() -> None:
    data = fields_of(profile_file.text_of(PROFILE))
    assert list(data)[:3] == ["format", "version", "written_by"]
    assert data["format"] == "pytorch_memlab.profile"
    assert data["version"] == 3
    assert data["written_by"] == pytorch_memlab.__version__


def damaged(**changes: object) -> str:
    return json.dumps(fields_of(profile_file.text_of(PROFILE)) | changes)


def of_peak(**changes: object) -> str:
    data = fields_of(profile_file.text_of(PROFILE))
    data["peaks"]["cuda:0"] |= changes
    return json.dumps(data)


def packed(content: bytes) -> str:
    return damaged(history={"zlib": base64.b64encode(zlib.compress(content)).decode()})


def with_first(name: str, **changes: object) -> str:
    data = fields_of(profile_file.text_of(PROFILE))
    data[name][0] |= changes
    return json.dumps(data)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.999])
def test_a_profile_that_is_cut_off_is_refused_as_that(share: float) -> None:
    text = profile_file.text_of(PROFILE)
    with pytest.raises(
        ProfileError,
        match=r"^p.json is cut off or damaged: its JSON ends or breaks at character [\d,]+$",
    ):
        profile_file.load(text[: int(max(40, len(text) * share))], "p.json")


LINE = [0, 8, 0, 1, 0.5, 0, 0, 0]
NO_PROFILE = "p.json is no profile of pytorch_memlab: it is no JSON"
NEWER = (
    "p.json was written by pytorch_memlab 9.1, this is "
    f"{pytorch_memlab.__version__}: upgrade to read it"
)
OTHER_JSON = "p.json is JSON, but no profile of pytorch_memlab"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", NO_PROFILE),
        ("import torch\n", NO_PROFILE),
        ("[" * 100_000, NO_PROFILE),
        ("[]", OTHER_JSON),
        ("3", OTHER_JSON),
        ('{"a": 1}', OTHER_JSON),
        ('{"format": "pytorch_memlab.profile"}', OTHER_JSON),
        ('{"format": 1}', OTHER_JSON),
        (
            profile_file.text_of(PROFILE).replace(",512,", ",NaN,"),
            "p.json is cut off or damaged: NaN is no number",
        ),
        (
            '{"format": "pytorch_memlab.tests", "version": 1, "tests": {}}',
            "p.json has the memory of tests: pytorch-memlab diff compares two such files",
        ),
        (
            damaged(lines=[[0, 8, 0, 1, 1e999, 0, 0, 0]]),
            "p.json is cut off or damaged: Infinity is no number",
        ),
        (
            damaged(version=4, written_by="9.1", functions="of another kind"),
            NEWER,
        ),
    ],
)
def test_what_is_no_profile_is_refused_with_its_reason(text: str, message: str) -> None:
    with pytest.raises(ProfileError) as refused:
        profile_file.load(text, "p.json")
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (damaged(columns=3), "'columns' has 3, expected is a list"),
        (damaged(notes=[3]), "'notes' has 3, expected is a text"),
        (damaged(shown=[3]), "'shown' has 3, expected is an index below 3"),
        (damaged(runs=[3]), "'runs' has 3, expected is an object"),
        (
            damaged(lines=[LINE[:-1]]),
            "'lines' has [0, 8, 0, 1, 0.5, 0, 0], expected is a list of 8",
        ),
        (damaged(lines=[LINE, LINE]), "a line is there twice"),
        (damaged(lines=[[3, *LINE[1:]]]), "'lines' has 3, expected is an index below 3"),
        (damaged(lines=[[True, *LINE[1:]]]), "'lines' has True, expected is a whole number"),
        (damaged(lines=[[0, -1, *LINE[2:]]]), "'lines' has -1, expected is a whole number from 0"),
        (damaged(lines=[[0, 8, 2, *LINE[3:]]]), "'lines' has 2, expected is an index below 2"),
        (damaged(lines=[[0, 8, 0, "1", *LINE[4:]]]), "'lines' has '1', expected is a whole number"),
        (
            damaged(lines=[[0, 8, 0, 1, -0.5, 0, 0, 0]]),
            "'lines' has -0.5, expected is a number from",
        ),
        (
            damaged(lines=[[0, 8, 0, 1, 0.5, 2**63, 0, 0]]),
            "'lines' has 9223372036854775808, expected is a whole",
        ),
        (damaged(lines=[[*LINE[:-1], 9]]), "'lines' has 9, expected is an index below 3"),
        (damaged(lines=[]), "gaps name a line that is not there"),
        (damaged(rows=[[1]]), "'rows' has [1], expected is a list of 3"),
        (damaged(rows=[["1", 2, 3]]), "'rows' has '1', expected is a whole number of 64 bits"),
        (with_first("runs", rank="1"), "'rank' has '1', expected is a whole number from 0 on"),
        (with_first("runs", versions={"a": 1}), "'a' has 1, expected is a text"),
        (with_first("functions", source="x"), "'source' has 'x', expected is a list"),
        (with_first("functions", folded=[[1]]), "'folded' has [1], expected is a list of 2"),
        (with_first("devices", capacity=-1), "'capacity' has -1, expected is a whole number from"),
        (with_first("calls", callee=3), "'callee' has 3, expected is an index below 3"),
        (with_first("calls", added={"cuda:9": 1}), "a call names a device that is not there"),
        (with_first("sections", rows=[["a", [1, 2]]]), "a row of a section has other values than"),
        (with_first("sections", rows=[[3, [1]]]), "'rows' has 3, expected is a text"),
        (of_peak(active=3), "the blocks of a peak do not add up to it"),
        (of_peak(stacks=[[[0, 1]]]), "'stacks' has [0, 1], expected is a list of 3"),
        (of_peak(stacks=[[[99, 1, 0]]]), "text 99 is named, and there are 7"),
        (of_peak(blocks=[[1, 2]]), "'blocks' has [1, 2], expected is a list of 7"),
        (of_peak(blocks=[[0, 1536, 5, 9, 0, 0, 0]]), "a block names a stack that is not there"),
        (
            of_peak(stacks=[[]], blocks=[[0, 1536, 5, 0, 1, 0, 0]]),
            "a block names a stack that is not there",
        ),
        (of_peak(blocks=[[-1, 1536, 5, 0, 0, 0, 0]]), "'blocks' has -1, expected is a whole"),
        (damaged(failures=[[9, 1, 1]]), "'failures' has 9, expected is an index below 3"),
        (with_first("growing", device="cuda:9"), "a loop names a device that is not there"),
        (with_first("growing", function=3), "'function' has 3, expected is an index below 3"),
        (with_first("errors", notes=[1]), "'notes' has 1, expected is a text"),
        (with_first("errors", remedies=[{"why": 1}]), "'why' has 1, expected is a text"),
        (damaged(history={"zlib": "?"}), "its history cannot be unpacked"),
        (damaged(history={"zlib": "aGVsbG8="}), "its history cannot be unpacked"),
        (packed(b"[]"), "'history' has [], expected is an object"),
        (packed(b"{}"), "it has no 'texts'"),
        (
            damaged(history={"zlib": base64.b64encode(zlib.compress(b"{}")[:-1]).decode()}),
            "its history is cut off, or larger than 4 GiB",
        ),
    ],
)
def test_each_damaged_field_is_named(text: str, message: str) -> None:
    with pytest.raises(ProfileError) as refused:
        profile_file.load(text, "p.json")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


ADDRESS, SIGNED = "from 0 to below 18446744073709551616", "to below 9223372036854775808"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        (0, 9, "from 0 to below 9"),
        (1, -1, ADDRESS),
        (1, 2**64, ADDRESS),
        (2, -1, SIGNED),
        (2, 2**63, SIGNED),
        (3, 2**63, SIGNED),
        (3, -(2**63) - 1, SIGNED),
        (4, -(2**63) - 1, SIGNED),
        (4, "5", SIGNED),
        (4, None, SIGNED),
        (5, 3, "from 0 to below 3"),
        (5, True, "from 0 to below 3"),
        (6, 0.5, "from 0 to below 3"),
        (7, -1, "from 0 to below 9"),
        (8, 9, "from 0 to below 9"),
    ],
)
def test_each_damaged_field_of_an_event_is_named(field: int, value: object, expected: str) -> None:
    inner = history_of_profile()
    assert len(inner["texts"]) == 9
    inner["devices"][0]["events"][1][field] = value
    with pytest.raises(ProfileError) as refused:
        profile_file.load(packed(json.dumps(inner).encode()), "p.json")
    assert f"'events' has {quoted(value)}, expected is a whole number " in str(refused.value)
    assert str(refused.value).endswith(expected)


@pytest.mark.parametrize("event", [[1, 2], [0] * 10, {}, "nine text", None])
def test_an_event_of_another_length_is_refused(event: object) -> None:
    inner = history_of_profile()
    inner["devices"][0]["events"].append(event)
    with pytest.raises(ProfileError, match=r"'events' has .*, expected is a list of 9$"):
        profile_file.load(packed(json.dumps(inner).encode()), "p.json")


def test_more_kinds_of_events_than_a_log_has_are_refused() -> None:
    inner = history_of_profile()
    first = len(inner["texts"])
    inner["texts"] += [f"kind {number}" for number in range(300)]
    event = inner["devices"][0]["events"][0]
    inner["devices"][0]["events"] += [[first + number, *event[1:]] for number in range(300)]
    with pytest.raises(ProfileError, match=r"^p.json is a damaged profile: more than 255 kinds"):
        profile_file.load(packed(json.dumps(inner).encode()), "p.json")


def test_the_events_of_more_than_one_part_load_in_their_order() -> None:
    inner = history_of_profile()
    event = inner["devices"][0]["events"][1]
    count = 2 * (1 << 16) + 3
    inner["devices"][0]["events"] = [[*event[:4], time, *event[5:]] for time in range(count)]
    loaded = profile_file.load(packed(json.dumps(inner).encode()), "p.json")
    assert loaded.history is not None
    log = loaded.history.devices[0].events
    assert list(log.times) == list(range(count))
    assert {one.action for one in log[:: 1 << 10]} == {"alloc"}


def history_of_profile() -> dict[str, Any]:
    packed_text = fields_of(profile_file.text_of(PROFILE))["history"]["zlib"]
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(packed_text)))
    return found


@pytest.mark.parametrize("number", ["1e999", "1" + "0" * 400, "-9223372036854775808"])
def test_numbers_that_no_counter_has_are_refused(number: str) -> None:
    text = damaged().replace(f'"capacity": {80 << 30}', f'"capacity": {number}', 1)
    with pytest.raises(ProfileError, match=r"^p.json is (cut off or damaged|a damaged profile): "):
        profile_file.load(text, "p.json")


def test_a_kind_of_approximation_that_is_not_there_is_refused() -> None:
    data = fields_of(profile_file.text_of(PROFILE))
    data["gaps"][0][1]["kind"] = "guessed"
    with pytest.raises(ProfileError, match="'kind' has 'guessed', expected is one of unmodelled, "):
        profile_file.load(json.dumps(data), "p.json")


LATER = ("errors", "growing")
"""Fields that files of older releases do not have."""


@pytest.mark.parametrize(
    "field",
    [one for one in [*fields_of(profile_file.text_of(PROFILE))][3:] if one not in LATER],
)
def test_each_missing_field_is_named(field: str) -> None:
    data = fields_of(profile_file.text_of(PROFILE))
    del data[field]
    with pytest.raises(ProfileError, match=rf"^p.json is a damaged profile: it has no '{field}'$"):
        profile_file.load(json.dumps(data), "p.json")


def test_ten_thousand_lines_take_little_time_and_room() -> None:
    import time

    fields = [f"group.pool.metric{number}" for number in range(120)]
    source = tuple(f"    x{number} = torch.zeros({number})" for number in range(10_000))
    function = FunctionInfo("<module>", "large.py", 1, source)
    entries = tuple(
        replace(entry(0, line, 0), stats=dict.fromkeys(fields, line)) for line in range(1, 10_001)
    )
    profile = replace(
        PROFILE,
        functions=(function,),
        entries=entries,
        calls=(),
        shown=None,
        history=None,
        growing=(),
    )
    began = time.process_time()
    text = profile_file.text_of(profile)
    loaded = profile_file.load(text, "p.json")
    assert time.process_time() - began < 20  # 1 s when alone
    assert loaded == profile
    assert len(text) < 8 * MIB


def work(count: int) -> list[torch.Tensor]:
    kept = [torch.zeros(1 << 20, device=f"cuda:{index}") for index in range(count)]
    kept.append(torch.linalg.qr(torch.ones(8, 8, device="cuda"))[0])
    return kept


def never() -> None:
    pass


@pytest.mark.parametrize("columns", [None, "hits", ["delta", "peak", "num_ooms"]])
@pytest.mark.parametrize("function", [None, work, "never"])
def test_a_loaded_profile_displays_as_the_profiler_does(
    columns: object, function: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with simulate("24GiB", 2), LineProfiler(work, never) as prof:
        work(2)
    path = tmp_path / "p.memlab.json"
    prof.save(path)
    loaded = LineProfiler.load(path)
    live = prof.display(function, columns)  # type: ignore[arg-type]
    again = loaded.display(function, columns)  # type: ignore[arg-type]
    assert repr(again) == repr(live)
    assert again._repr_html_() == live._repr_html_()
    assert "(cuda:1)" in repr(live) or function == "never"
    loaded.print_stats(function, columns)  # type: ignore[arg-type]
    assert capsys.readouterr().out == f"{live!r}\n"
    assert list(loaded.records()._raw_line_records) == list(prof.recorded().entries)
    assert loaded.peak_holders().by_line() == prof.peak_holders().by_line()
    assert loaded.peak_holders("cuda:1").by_stack() == prof.peak_holders("cuda:1").by_stack()
    assert loaded.records().to_dataframe().equals(prof.records().to_dataframe())


def test_what_a_simulation_did_not_know_is_loaded(tmp_path: Path) -> None:
    with simulate("24GiB"), LineProfiler(work) as prof:
        work(1)
    prof.save(tmp_path / "p.json")
    assert "not modelled: linalg_qr" in repr(prof.display())
    assert repr(pytorch_memlab.load(tmp_path / "p.json").display()) == repr(prof.display())


def test_a_line_that_ran_out_of_memory_is_marked_when_it_is_loaded(tmp_path: Path) -> None:
    def fails() -> None:
        torch.zeros(1 << 24, device="cuda")

    with simulate("32MiB"), pytest.raises(torch.OutOfMemoryError), LineProfiler(fails) as prof:
        fails()
    prof.save(tmp_path / "p.json")
    loaded = pytorch_memlab.load(tmp_path / "p.json")
    assert list(loaded.recorded().failures.values()) == [64 << 20]
    assert repr(loaded.display()) == repr(prof.display())


def test_a_history_is_saved_where_it_was_asked_for(tmp_path: Path) -> None:
    for history in (False, True):
        with simulate("24GiB"), LineProfiler(inner, history=history) as prof:
            inner()
        prof.save(tmp_path / "p.json", force=True)
        loaded = pytorch_memlab.load(tmp_path / "p.json")
        if history:
            events = loaded.history().devices[0].events
            assert list(events) == list(prof.history().devices[0].events)
            assert [event.action for event in events] == [
                "segment_alloc",
                "alloc",
                "free_completed",
            ]
        else:
            with pytest.raises(HistoryError, match=r"^the profile has no history: record it with"):
                loaded.history()


def test_a_profile_without_memory_has_no_peak(tmp_path: Path) -> None:
    LineProfiler(inner).save(tmp_path / "p.json")
    loaded = pytorch_memlab.load(tmp_path / "p.json")
    with pytest.raises(HistoryError, match=r"^the profile has no peak: no memory was recorded"):
        loaded.peak_holders()


def test_the_run_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["train.py", "--lr", "1"])
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    with simulate("24GiB", compute=False), LineProfiler(work) as prof:
        work(1)
    prof.save(tmp_path / "p.json")
    recorded = pytorch_memlab.load(tmp_path / "p.json").recorded()
    (run,) = recorded.runs
    assert (run.program, run.arguments, run.rank, run.world_size) == (
        "train.py",
        ("--lr", "1"),
        3,
        8,
    )
    assert run.versions["torch"] == torch.__version__
    assert run.is_dry_run
    assert run.seconds > 0
    (device,) = recorded.devices
    assert (device.device.name, device.device.simulated) == ("cuda:0", True)
    assert device.capacity == 24 << 30
    peaks = [entry.stats.get("active_bytes.all.peak", 0) for entry in recorded.entries]
    assert device.peak_active == max(peaks) > 4 * MIB


def outer() -> None:
    inner()
    [inner() for _ in range(2)]


def inner() -> torch.Tensor:
    return torch.zeros(1024, device="cuda")


def test_calls_are_counted_by_the_line_that_calls() -> None:
    kept = []

    class Keeps(torch.nn.Module):
        def forward(self) -> None:
            kept.append(inner())

    module = Keeps()
    with simulate("24GiB"):
        inner()
        with LineProfiler(outer, inner, Keeps.forward) as prof:
            outer()
            for _ in range(3):
                module()
        recorded = prof.recorded()
    first = outer.__code__.co_firstlineno
    names = [function.qual_name.rpartition(".")[2] for function in recorded.functions]
    calls = {
        (names[call.callee], call.function.rpartition(".")[2], call.line): (
            call.hits,
            call.added["cuda:0"],
            None if call.caller is None else names[call.caller],
        )
        for call in recorded.calls
        if call.function.rpartition(".")[2] != "test_calls_are_counted_by_the_line_that_calls"
    }
    forward = Keeps.forward.__code__.co_firstlineno + 1
    assert calls == {
        # Each result is dropped when its call has returned.
        ("inner", "outer", first + 1): (1, 4096, "outer"),
        ("inner", "outer", first + 2): (2, 8192, "outer"),
        ("inner", "forward", forward): (3, 3 * 4096, "forward"),
    }
    (of_module,) = [call for call in recorded.calls if names[call.callee] == "forward"]
    # Past torch's own frames: the line of the user that called the module.
    assert of_module.function.endswith("test_calls_are_counted_by_the_line_that_calls")
    assert (of_module.hits, of_module.added) == (3, {"cuda:0": 3 * 4096})
    assert of_module.caller is None


def test_calls_grow_with_the_places_and_not_with_the_calls() -> None:
    with simulate("24GiB"), LineProfiler(inner) as prof:
        for _ in range(100):
            inner()
    (call,) = prof.recorded().calls
    assert call.hits == 100


def test_calls_of_generators_and_of_what_already_runs() -> None:
    def numbers() -> object:
        yield torch.zeros(1024, device="cuda")
        yield torch.zeros(1024, device="cuda")

    def running() -> None:
        prof.enable()
        torch.zeros(1024, device="cuda")

    with simulate("24GiB"):
        torch.zeros(1, device="cuda")
        prof = LineProfiler(numbers, running)
        running()
        kept = list(numbers())  # type: ignore[call-overload]
        prof.disable()
    assert len(kept) == 2
    (call,) = prof.recorded().calls
    assert prof.recorded().functions[call.callee].qual_name.endswith("numbers")
    assert (call.hits, call.added) == (1, {"cuda:0": 8192})


def test_forgotten_lines_are_forgotten_with_their_calls() -> None:
    with simulate("24GiB"), LineProfiler(inner, outer) as prof:
        outer()
    prof.forget(inner)
    assert [prof.recorded().functions[call.callee].qual_name for call in prof.recorded().calls] == [
        "outer"
    ]
    prof.clear()
    assert prof.recorded().calls == ()


def test_no_file_is_overwritten_unasked(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    prof = LineProfiler(inner)
    prof.save(path)
    before = path.read_text()
    with pytest.raises(UsageError) as refused:
        LineProfiler(outer).save(path)
    assert str(refused.value) == (
        f"{path} is there already: --force (force=True) overwrites it, and {{pid}} in the name"
        " gives every run its own file"
    )
    assert path.read_text() == before
    LineProfiler(outer).save(path, force=True)
    assert pytorch_memlab.load(path).recorded().functions[0].qual_name == "outer"


def test_names_of_files_are_filled_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    monkeypatch.setenv("RANK", "2")
    LineProfiler(inner).save(tmp_path / "{rank}.{pid}.json")
    assert (tmp_path / f"2.{os.getpid()}.json").is_file()


SNAPSHOT = (
    "{} is a pickle, such as a memory snapshot, and no profile: pytorch-memlab peak reads snapshots"
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read {}: No such file or directory"),
        (b"", "{} is empty"),
        (b"\x80\x04.", SNAPSHOT),
        (b"PK\x03\x04", "{} is no profile of pytorch_memlab: it is no JSON"),
        (b"\xff\xfe\x00", "{} is no profile of pytorch_memlab: it is no JSON"),
    ],
)
def test_files_that_are_no_profiles(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProfileError) as refused:
        pytorch_memlab.load(path)
    assert str(refused.value) == message.format(path)


def test_a_folder_is_no_profile(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match=r"^cannot read .*: Is a directory$"):
        pytorch_memlab.load(tmp_path)
