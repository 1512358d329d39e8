"""``MemWatcher``: its numbers, and when it reports."""

from __future__ import annotations

import pytest

from pytorch_memlab import MemWatcher

MB = 2**20


def test_before_a_cell_has_ended_all_numbers_are_zero():
    assert MemWatcher().measurements == (0, 0, 0, 0)


def test_it_measures_from_its_start_to_its_stop(shell, run, capsys):
    shell.user_ns.update(watcher=MemWatcher(), MB=MB)
    run("watcher.start_watching_memory(); watcher.start_watching_memory()")
    run("blob = bytearray(80 * MB)")
    run("len(bytearray(50 * MB))")
    taken = shell.user_ns["watcher"].measurements
    assert taken._fields == ("memory_delta", "time_delta", "memory_peak", "memory_usage")
    assert (taken.memory_delta, taken.memory_peak) == pytest.approx((0, 50), abs=1)
    assert taken.time_delta > 0
    assert taken.memory_usage > 80
    run("watcher.stop_watching_memory(); watcher.stop_watching_memory()")
    run("x = 1")
    numbers = [line.split("]")[0] for line in capsys.readouterr().out.splitlines() if "MiB" in line]
    assert numbers == ["In [1", "In [2", "In [3"]


def test_one_takes_the_place_of_another(shell, run, capsys):
    shell.user_ns["MemWatcher"] = MemWatcher
    run("first = MemWatcher(); first.start_watching_memory()")
    run("second = MemWatcher(); second.start_watching_memory()")
    capsys.readouterr()
    run("x = 1")
    assert capsys.readouterr().out.count("MiB RAM") == 1
    run("first.stop_watching_memory()")
    assert capsys.readouterr().out.count("MiB RAM") == 1
    run("second.stop_watching_memory()")
    run("x = 1")
    assert capsys.readouterr().out == ""
