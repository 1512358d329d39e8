"""The memory that the host has left, how lent storages are packed into it, and the bar."""

from __future__ import annotations

import io
import os
import signal

import pytest
import torch
from hypothesis import given, strategies as st
from rich.console import Console

import pytorch_memlab._common.interrupts.uninterrupted as module
from pytorch_memlab._common.interrupts.uninterrupted import uninterrupted
from pytorch_memlab.courtesy import Courtesy, chunked_copies, host_blocks
from pytorch_memlab.courtesy.host_blocks import ALIGNMENT, LARGEST, lay_out
from pytorch_memlab.simulation import simulate


@given(st.lists(st.integers(1, 2**33), max_size=40))
def test_no_two_storages_overlap_and_little_is_wasted(sizes):
    layout = lay_out(sizes)
    ends = dict.fromkeys(range(len(layout.blocks)), 0)
    for index in sorted(range(len(sizes)), key=lambda index: layout.places[index]):
        block, begin = layout.places[index]
        assert begin % ALIGNMENT == 0
        assert begin >= ends[block]
        ends[block] = begin + sizes[index]

    assert all(ends[block] <= size for block, size in enumerate(layout.blocks))
    assert all(size.bit_count() == 1 for size in layout.blocks)
    rounded = sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)
    assert sum(layout.blocks) <= 2 * rounded


def test_many_storages_of_a_model_take_hardly_more_than_their_bytes():
    layer = [4096 * 4096 * 2] * 4 + [4096 * 11008 * 2] * 3 + [8192] * 2
    sizes = [32000 * 4096 * 2] * 2 + layer * 32
    layout = lay_out(sizes)

    assert max(layout.blocks) == LARGEST
    assert sum(layout.blocks) < 1.06 * sum(sizes)


GROUPS_V2 = {
    "memory.max": "max\n",
    "job/memory.max": "1000000\n",
    "job/memory.current": "900000\n",
    "job/memory.stat": "anon 700000\ninactive_file 150000\n",
    "job/step/memory.max": "max\n",
}
GROUPS_V1 = {
    "memory/job/step/memory.limit_in_bytes": "9223372036854771712\n",
    "memory/job/step/memory.usage_in_bytes": "5\n",
    "memory/job/step/memory.stat": "total_inactive_file 0\n",
    "memory/job/memory.limit_in_bytes": "1000000\n",
    "memory/job/memory.usage_in_bytes": "900000\n",
    "memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 150000\n",
}
ALONE_V2 = {
    "memory.max": "1000000\n",
    "memory.current": "900000\n",
    "memory.stat": "inactive_file 150000\n",
}


@pytest.mark.parametrize(
    ("membership", "files"),
    [
        ("0::/job/step\n", GROUPS_V2),
        ("7:cpu,cpuacct:/\n4:memory:/job/step\n0::/\n", GROUPS_V1),
        ("0::/seen/from/outside\n", ALONE_V2),
    ],
    ids=["v2", "v1", "inside a container"],
)
def test_the_limit_of_a_container_counts(tmp_path, monkeypatch, membership, files):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "membership").write_text(membership)
    monkeypatch.setattr(host_blocks, "_MEMBERSHIP", tmp_path / "membership")
    monkeypatch.setattr(host_blocks, "_GROUPS", tmp_path)

    assert host_blocks.free_host_memory() == 250_000


def test_without_control_groups_the_machine_counts(tmp_path, monkeypatch):
    import psutil

    monkeypatch.setattr(host_blocks, "_MEMBERSHIP", tmp_path / "none")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 77})())

    assert host_blocks.free_host_memory() == 77


def test_pinned_memory_that_torch_keeps_is_given_back_before_a_refusal(monkeypatch):
    free = [10]
    monkeypatch.setattr(host_blocks, "free_host_memory", lambda: free[0])
    with simulate("24GiB"), monkeypatch.context() as patches:
        patches.setattr(torch._C, "_host_emptyCache", lambda: free.__setitem__(0, 10**9))
        tensor = torch.arange(1000.0, device="cuda")
        with Courtesy():
            assert tensor.device.type == "cpu"


@pytest.mark.parametrize(("terminal", "large"), [(True, True), (True, False), (False, True)])
def test_a_bar_for_large_amounts_on_a_terminal_alone(monkeypatch, terminal, large):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100)
    monkeypatch.setattr(chunked_copies, "_console", lambda: console)
    monkeypatch.setattr(chunked_copies, "LARGE", 3_000_000 if large else 3_000_001)
    with simulate("24GiB"):
        kept = torch.zeros(3_000_000, dtype=torch.uint8, device="cuda")
        with Courtesy():
            lent = out.getvalue()
        restored = out.getvalue()[len(lent) :]
        del kept

    if not (terminal and large):
        assert lent + restored == ""
        return
    for text, what in ((lent, "GPU to host"), (restored, "host to GPU")):
        assert what in text
        assert "2.9/2.9 MiB" in text
        assert text.endswith("\x1b[2K")  # the line is cleared: nothing of the bar is left


def test_nothing_is_printed_into_a_pipe(monkeypatch, capfd):
    monkeypatch.setattr(chunked_copies, "LARGE", 1)
    with simulate("24GiB"):
        kept = torch.zeros(1000, device="cuda")
        with Courtesy():
            pass
        del kept

    assert capfd.readouterr() == ("", "")


class TestUninterrupted:
    def test_signals_wait_until_it_is_over(self):
        done = []
        before = signal.getsignal(signal.SIGINT)

        def work():
            with uninterrupted():
                signal.raise_signal(signal.SIGINT)
                done.append("the rest")

        with pytest.raises(KeyboardInterrupt):
            work()

        assert done == ["the rest"]
        assert signal.getsignal(signal.SIGINT) is before

    def test_a_signal_that_comes_at_the_end_does_not_overtake_those_that_waited(self, monkeypatch):
        heard = []
        before = [
            signal.signal(number, lambda number, _: heard.append(number))
            for number in (signal.SIGUSR1, signal.SIGUSR2)
        ]
        put_back = module._put_back

        def put_back_and_send(handlers):
            put_back(handlers)
            os.kill(os.getpid(), signal.SIGUSR2)

        monkeypatch.setattr(module, "_put_back", put_back_and_send)
        try:
            with uninterrupted(signal.SIGUSR1, signal.SIGUSR2):
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            signal.signal(signal.SIGUSR1, before[0])
            signal.signal(signal.SIGUSR2, before[1])
        assert heard == [signal.SIGUSR1, signal.SIGUSR2]

    def test_all_handlers_are_put_back_where_python_can_call_no_deeper(self):
        def recurse():
            with uninterrupted():
                pass
            recurse()

        before = signal.signal(signal.SIGUSR1, lambda *_: None), signal.getsignal(signal.SIGINT)
        now = signal.getsignal(signal.SIGUSR1)
        try:
            with pytest.raises(RecursionError):
                recurse()
            assert signal.getsignal(signal.SIGUSR1) is now
            assert signal.getsignal(signal.SIGINT) is before[1]
        finally:
            signal.signal(signal.SIGUSR1, before[0])
            signal.signal(signal.SIGINT, before[1])

    def test_all_handlers_are_put_back_though_one_raises(self, monkeypatch):
        def terminate(number, frame):
            raise SystemExit

        def work():
            with uninterrupted():
                signal.raise_signal(signal.SIGTERM)
                signal.raise_signal(signal.SIGINT)

        before = signal.signal(signal.SIGTERM, terminate)
        try:
            with pytest.raises((SystemExit, KeyboardInterrupt)):
                work()
            assert signal.getsignal(signal.SIGTERM) is terminate
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        finally:
            signal.signal(signal.SIGTERM, before)

    def test_an_exception_inside_passes(self):
        with pytest.raises(KeyError), uninterrupted():
            raise KeyError("inside")
