"""The reader of snapshot pickles: what it gives, how little it keeps, and what it refuses."""

from __future__ import annotations

import gzip
import io
import pickle
import pickletools
import tracemalloc

import pytest
import torch

from pytorch_memlab.errors import SnapshotError
from pytorch_memlab.history import snapshot as snapshot_module, snapshot_pickle
from pytorch_memlab.history.snapshot import history_of, read_snapshot
from pytorch_memlab.simulation import simulate

MIB = 2**20


@pytest.fixture(scope="module")
def snapshot():
    """A snapshot of two GPUs, the second of which runs out of memory."""
    with simulate("100MiB", count=2):
        torch.cuda.memory._record_memory_history()
        side = torch.cuda.Stream()
        kept = []
        for number in range(300):
            kept.append(torch.empty(number * 400 + 1, dtype=torch.uint8, device="cuda"))
            if number % 3 == 0:
                kept.pop().record_stream(side)
            if number % 50 == 0:
                x = torch.ones(3, device="cuda:1", requires_grad=True)
                (x * 2).sum().backward()
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(200 * MIB, dtype=torch.uint8, device="cuda:1")
        found = torch.cuda.memory._snapshot()
        torch.cuda.memory._record_memory_history(enabled=None)
        del kept, x
    return found


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("rewrite", [bytes, pickletools.optimize, gzip.compress])
def test_a_pickle_gives_what_is_in_it(snapshot, tmp_path, protocol, rewrite):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(rewrite(pickle.dumps(snapshot, protocol)))
    history = read_snapshot(path)
    assert history == history_of(snapshot)
    assert [len(one.events) for one in history.devices] == [
        len(trace) for trace in snapshot["device_traces"]
    ]
    assert history.devices[1].events[-1].action == "oom"


def test_events_at_the_end_of_a_buffer_are_whole(snapshot, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot_pickle, "_BUFFER", 1500)
    monkeypatch.setattr(snapshot_pickle, "_MARGIN", 1000)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    assert read_snapshot(path) == history_of(snapshot)


@pytest.fixture
def one_by_one(monkeypatch):
    """The actions of the events that are read opcode by opcode."""

    def add(self, entry):
        found.append(entry["action"])
        slow(self, entry)

    found, slow = [], snapshot_module._Events.add
    monkeypatch.setattr(snapshot_module._Events, "add", add)
    return found


def test_events_are_read_by_their_shapes(snapshot, tmp_path, one_by_one):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    events = sum(len(one.events) for one in read_snapshot(path).devices)
    assert events > 500
    assert len(one_by_one) < 60


@pytest.mark.parametrize("protocol", [4, 5])
def test_events_with_a_pool_have_a_shape_too(tmp_path, protocol, one_by_one):
    # PyTorch 2.12 and later make a tuple for each event; here every tenth is that of another.
    trace = [{**event(n, []), "pool_id": (n % 2, n) if n % 3 else (n % 1, 0)} for n in range(1000)]
    for number in range(0, 1000, 10):
        trace[number]["pool_id"] = trace[number // 2]["pool_id"]
    snapshot = {"segments": [], "device_traces": [trace]}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol))
    log = read_snapshot(path).devices[0].events
    assert len(one_by_one) < 20
    private = {number: one["pool_id"] for number, one in enumerate(trace) if any(one["pool_id"])}
    assert len(private) > 600
    assert log.pools == private
    assert log == history_of(snapshot).devices[0].events


def event(number, frames):
    return {
        "action": ("alloc", "free_requested", "free_completed")[number % 3],
        "addr": 0x7000_0000_0000 + 512 * (number // 3),
        "size": 512,
        "stream": 0,
        "time_us": 1_700_000_000_000_000 + number,
        "compile_context": f"N/A{number % 7}",
        "user_metadata": "",
        "frames": frames,
    }


def test_events_take_a_fraction_of_their_file(tmp_path):
    frames = [{"name": "f", "filename": "a.py", "line": n} for n in range(40)]
    trace = []
    for number in range(30_000):
        listed = list(frames) if number % 3 == 0 else trace[-1]["frames"]
        trace.append(event(number, listed))
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    del trace
    tracemalloc.start()
    history = read_snapshot(path)
    kept, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(history.devices[0].events) == 30_000
    # A dictionary of an event has some 360 bytes, without its values.
    assert kept < 64 * 30_000
    assert most < 16 * MIB


HOSTILE = {
    b"\x80\x02cos\nsystem\n.": "its pickle wants os.system, and a snapshot is plain data",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93.": "its pickle wants os.system",
    b"\x80\x04)}R.": "its pickle wants to call a function",
    b"\x80\x04}}b.": "its pickle wants to change an object",
    b"\x80\x02(ios\nsystem\n.": "its pickle wants an object of a class",
    b"\x80\x02)\x81.": "its pickle wants an object of a class",
    b"\x80\x02\x82\x01.": "its pickle wants a class or a function by its number",
    b"\x80\x02\x83\x01\x00.": "its pickle wants a class or a function by its number",
    b"\x80\x02\x84\x01\x00\x00\x00.": "its pickle wants a class or a function by its number",
    b"\x80\x02P1\n.": "its pickle wants an object from elsewhere",
    b"\x80\x02NQ.": "its pickle wants an object from elsewhere",
    b"\x80\x04Nr\xff\xff\xff\xff.": "it numbers its 0th object 4294967295",
    b"\x80\x04\x8d" + b"\xff" * 7 + b"\x00.": "a text of 72057594037927935 bytes",
    b"\x80\x04X\xff\xff\xff\xff.": "a text of 4294967295 bytes",
    b"\x80\x04\x8b\xff\xff\xff\x7f.": "the opcode 0x8b is none of plain data",
    b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".": "a number of 255 bytes",
    b"\x80\x04\x8e" + b"\xff" * 8 + b".": "the opcode 0x8e is none of plain data",
    b"\x80\x04" + b"]" * 90_000 + b".": "it ends within an object",
    b"\x80\x04Nq\x00Nq\x00.": "it has two objects of the number 0",
    b"\x80\x04h\x07.": "a reference to something that follows later",
    b"\x80\x04}(]Nu.": "unhashable type: 'list'",
    b"\x80\x04}(Nu.": "a dictionary has a key without a value",
    b"\x80\x04Na.": "list index out of range",
    b"\x80\x04NNa.": "items of something that is no list",
    b"\x80\x04e.": "an object without a beginning",
    b"\x80\x00N.": "protocol 0; 2 to 5 can be read",
}


@pytest.mark.parametrize("content", HOSTILE)
def test_a_hostile_pickle_is_refused_and_takes_no_memory(tmp_path, content):
    path = tmp_path / "hostile.pickle"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(SnapshotError) as caught:
        read_snapshot(path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path} is not a memory snapshot: ")
    assert HOSTILE[content] in str(caught.value)
    assert "\n" not in str(caught.value)
    assert most < 32 * MIB


def test_an_event_that_is_in_two_places_is_refused(tmp_path):
    one = event(0, [])
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[one], [one]]}))
    with pytest.raises(SnapshotError, match="an event is in two places"):
        read_snapshot(path)


@pytest.mark.parametrize(
    "change", [{"addr": -1}, {"size": 2**70}, {"stream": "x"}, {"size": None}, {"frames": [1]}]
)
@pytest.mark.parametrize("position", [0, 5])
def test_an_event_with_a_wrong_value_is_named(tmp_path, change, position):
    trace = [event(number, []) for number in range(9)]
    trace[position].update(change)
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [trace]}))
    with pytest.raises(SnapshotError, match="is not as PyTorch writes it"):
        read_snapshot(path)


def test_a_file_that_expands_without_end_is_refused(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"\x80\x04(" + b"N" * 8 * MIB))
    assert path.stat().st_size < 64 * 2**10
    with pytest.raises(SnapshotError, match="expands to more than 100 times its size"):
        read_snapshot(path)


SEGMENT = {
    "device": 1,
    "address": 0x7000_0000_0000,
    "total_size": 2 * MIB,
    "allocated_size": 1024,
    "active_size": 1024,
    "stream": 0,
    "segment_type": "small",
}
FRAMES = [{"name": "step", "filename": "train.py", "line": 3}]


def test_blocks_of_early_snapshots_have_their_stacks_in_a_history(tmp_path):
    blocks = [
        {
            "size": 1024,
            "state": "active_allocated",
            "history": [{"addr": 0x7000_0000_0000, "real_size": 700, "frames": FRAMES}],
        },
        {"size": 2 * MIB - 1024, "state": "inactive"},
    ]
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [{**SEGMENT, "blocks": blocks}]}))
    history = read_snapshot(path)
    assert [len(one.events) for one in history.devices] == [0, 0]
    [segment] = history.devices[1].segments
    [block] = segment.blocks
    assert (block.address, block.size, block.requested) == (0x7000_0000_0000, 1024, 700)
    assert history.stacks[block.stack][0].line == 3
    assert history.settings == {}


def test_a_gpu_that_no_machine_has_is_refused(tmp_path):
    path = tmp_path / "snapshot.pickle"
    segment = {**SEGMENT, "device": 10**9, "blocks": []}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": []}))
    with pytest.raises(SnapshotError, match="a segment of GPU 1000000000"):
        read_snapshot(path)


def read_counted(data, monkeypatch, most):
    """The content of a pickle, read with a limit of opcodes that are read one by one."""
    monkeypatch.setattr(snapshot_pickle, "_MOST_OPCODES", most)
    return snapshot_pickle.PickleReader(io.BytesIO(data), None).read()


@pytest.mark.parametrize(
    ("item", "value"),
    [(b"N", None), (b"\x88", True), (b"\x89", False), (b")", ()), (b"K\x07", 7), (b"h\x00", [])],
)
def test_a_run_of_opcodes_is_read_together(item, value, monkeypatch):
    data = b"\x80\x04]q\x00(" + item * 1_000_000 + b"e."

    content = read_counted(data, monkeypatch, 100)

    assert len(content) == 1_000_000
    assert content[0] == content[-1] == (content if item == b"h\x00" else value)


def test_runs_of_several_kinds_keep_their_order(monkeypatch):
    expected = [None, True, False, 5, ()] * 3 + [None] * 40 + [True, False] * 30 + [9] * 50 + [1, 2]
    data = pickle.dumps([*expected, [3] * 300], 4)

    assert read_counted(data, monkeypatch, 200) == [*expected, [3] * 300]


@pytest.mark.parametrize("item", [b"J\x01\x02\x03\x04", b"]", b"N]", b"(t", b"}"])
def test_more_opcodes_than_any_snapshot_has_are_refused(item, monkeypatch):
    data = b"\x80\x04](" + item * 2_000 + b"e."
    with pytest.raises(snapshot_pickle.NotPlainPickleError, match="more than 1,000 objects"):
        read_counted(data, monkeypatch, 1_000)


def test_opcodes_of_events_do_not_count(snapshot, tmp_path, monkeypatch):
    data = pickle.dumps(snapshot, 4)
    opcodes = sum(1 for _ in pickletools.genops(data))
    monkeypatch.setattr(snapshot_pickle, "_MOST_SHAPES", 0)  # all events are read one by one
    monkeypatch.setattr(snapshot_pickle, "_MOST_OPCODES", opcodes // 2)

    (tmp_path / "s.pickle").write_bytes(data)

    assert read_snapshot(tmp_path / "s.pickle") == history_of(snapshot)
