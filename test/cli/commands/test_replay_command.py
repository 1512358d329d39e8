"""``pytorch-memlab replay``: its whole output, and what it refuses."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pytorch_memlab.cli.main import main

# Three tensors fill a segment of 20 MiB, and the middle one stays.
SCRIPT = """
    import torch

    def make(size):
        return torch.empty(size * 2**20, dtype=torch.uint8, device="cuda")

    kept = []
    for _ in range(4):
        x, k, y = make(9), make(2), make(9)
        z = make(9), make(2), make(9)
        kept += k, z[1]
        del x, y, z
    big = make(102)
"""


@pytest.fixture
def record(write, capsys):
    """A function that runs the script on a GPU and returns the name of its snapshot."""

    def run(gpu):
        with suppress(RuntimeError):
            main(["run", "--gpu", gpu, "-o", "s.pickle", write(SCRIPT)])
        capsys.readouterr()
        return "s.pickle"

    return run


def test_a_recording_beside_its_replays(record, capsys):
    file = record("1GiB")
    assert (
        main(
            [
                "replay",
                file,
                "--set",
                "expandable_segments:True",
                "--gpu",
                "130MiB",
                "--gpu",
                "a100",
            ]
        )
        == 0
    )
    assert (
        capsys.readouterr().out
        == """\
cuda:0: 61 events

                 peak active   reserved     unused   segments      pages  fits
recorded           119.0 MiB  162.0 MiB   43.0 MiB      +4 -0      +0 -0  yes
replayed           119.0 MiB  162.0 MiB   43.0 MiB      +4 -0      +0 -0  yes
130MiB              52.0 MiB   60.0 MiB    8.0 MiB      +0 -0      +3 -1  no
a100               118.0 MiB  140.0 MiB   22.0 MiB      +0 -0      +4 -0  yes

unused: reserved and not in use, when the reserved bytes were highest
replayed: all 25 allocations and 4 changes of segments are as recorded
130MiB: Simulated GPU (130.00 MiB): 130.0 MiB, expandable_segments:True
  gave cached memory back to the GPU to serve a request, once
  out of memory at event 61: no room for 102.0 MiB
    script.py:5  make  return torch.empty(size * 2**20, dtype=torch.uint8, devi…
    script.py:13  <module>  big = make(102)
    16.0 MiB in use, 24.0 MiB cached, 90.0 MiB free on the GPU
a100: NVIDIA A100-SXM4-80GB: 79.15 GiB, of which an estimated 501.0 MiB for the
  CUDA context, expandable_segments:True
the requests are the recorded ones; on another GPU, kernels may ask for more or
  less
"""
    )


@pytest.mark.knows_simulation("PyTorch's history has an event for each snapshot")
def test_settings_are_tried_with_the_memory_that_was_not_enough(record, capsys):
    file = record("141MiB")
    assert main(["replay", file, "--set", "expandable_segments:True"]) == 0
    assert (
        capsys.readouterr().out
        == """\
cuda:0: 61 events

                 peak active   reserved     unused   segments      pages  fits
recorded            53.0 MiB   60.0 MiB    7.0 MiB      +3 -1      +0 -0  no
replayed            53.0 MiB   60.0 MiB    7.0 MiB      +3 -1      +0 -0  no
with --set         118.0 MiB  140.0 MiB   22.0 MiB      +0 -0      +4 -0  yes

unused: reserved and not in use, when the reserved bytes were highest
replayed: all 24 allocations and 4 changes of segments are as recorded
recorded:
  out of memory at event 61: no room for 102.0 MiB
    script.py:5  make  return torch.empty(size * 2**20, dtype=torch.uint8, devi…
    script.py:13  <module>  big = make(102)
    17.0 MiB in use, 23.0 MiB cached, 101.0 MiB free on the GPU
with --set: the 141.0 MiB that the recording had when it ran out,
  expandable_segments:True
"""
    )


@pytest.mark.knows_simulation("PyTorch's history has an event for each snapshot")
def test_the_peak_names_the_request_that_failed(record, capsys):
    file = record("141MiB")
    assert main(["peak", file]) == 0
    assert capsys.readouterr().out.splitlines()[:3] == [
        "cuda:0: 53.0 MiB in use at the peak, 60.0 MiB reserved (event 51 of 61)",
        "out of memory at event 61, no room for 102.0 MiB:  script.py:5  make",
        "",
    ]


def test_the_peak_keeps_the_line_number_of_a_failed_request_in_a_long_file(write, capsys):
    name = f"modeling_{'very_' * 8}large.py"
    with suppress(RuntimeError):
        main(["run", "--gpu", "141MiB", "-o", "s.pickle", write(SCRIPT, name)])
    capsys.readouterr()
    assert main(["peak", "s.pickle"]) == 0
    assert capsys.readouterr().out.splitlines()[1:3] == [
        "out of memory at event 61, no room for 102.0 MiB:",
        f"  modeling_{'very_' * 7}v…:5  make",
    ]
