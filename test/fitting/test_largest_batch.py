"""The largest batch that a search finds is that of a run of every size with the GPU's memory."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks.batch_programs import PROGRAMS
from benchmarks.largest_batch import every_size, found_sizes

MIB = 2**20

# RNN: 14 does not fit, and 20 does. See Note [Peaks that are not monotonic] of ``fitting/search``.
FAST = {"RNN": (70, 23, 20)}
SLOW = {
    "language model": (96, 24, 8),
    "LoRA": (92, 24, 10),
    "CNN": (107, 24, 8),
    "diffusion": (86, 24, 15),
    "FSDP rank": (213, 24, 9),
    "Trainer": (82, 24, 13),
    "generate": (44, 24, 10),
}


def check(name, memory, sizes, expected, tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", str(PROGRAMS[name].world_size))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.setenv("MASTER_PORT", "29500")
    path = tmp_path / "program.py"
    path.write_text(PROGRAMS[name].source)
    values = range(1, sizes + 1)
    _, found, runs = found_sizes(str(path), values, [memory * MIB])
    assert found == every_size(str(path), values, [memory * MIB])
    assert expected in found
    assert runs < sizes


@pytest.mark.parametrize("name", FAST)
def test_a_search_finds_what_every_size_finds(name, tmp_path, monkeypatch):
    check(name, *FAST[name], tmp_path, monkeypatch)


@pytest.mark.programs
@pytest.mark.parametrize("name", SLOW)
def test_a_search_of_a_slow_program_finds_what_every_size_finds(name, tmp_path, monkeypatch):
    if PROGRAMS[name].needs_transformers and not importlib.util.find_spec("transformers"):
        pytest.skip("`make programs` has transformers")
    check(name, *SLOW[name], tmp_path, monkeypatch)
