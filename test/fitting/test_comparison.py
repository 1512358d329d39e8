"""Verdicts for several GPUs from as few runs as tell them."""

from __future__ import annotations

from textwrap import dedent

import pytest
from fit_programs import MIB
from support.trials import run_trial

from pytorch_memlab.fitting.comparison import compare_gpus, named_gpus
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Ending, Settings
from pytorch_memlab.simulation.hardware.presets import PRESETS, find_gpu
from pytorch_memlab.simulation.inspect import GPU


@pytest.fixture
def compare(tmp_path):
    """A function that compares GPUs for a program; the verdicts by the names of the GPUs."""

    def compared(text, *names, **settings):
        path = tmp_path / "program.py"
        path.write_text(dedent(text))
        gpus = [(name, find_gpu(name)) for name in names]
        found = compare_gpus(ProgramTarget(str(path)), gpus, Settings(**settings))
        return {verdict.name: verdict for _, verdict in found}

    return compared


def runs(verdicts):
    """The number of runs that the verdicts are of."""
    return len({id(one.trial) for one in verdicts.values()})


def test_one_run_is_for_all_gpus_on_which_the_same_happens(compare):
    """100 MiB in five segments of 20 MiB."""
    text = """
        import torch
        kept = [torch.zeros(20 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(5)]
    """
    found = compare(text, *PRESETS, "100MiB", "99MiB")
    assert runs(found) == 1
    for name, verdict in found.items():
        assert verdict.fits == (name != "99MiB")
        assert verdict.reserved_peak == verdict.active_peak == 100 * MIB
        assert verdict.headroom == verdict.capacity - verdict.taken - 100 * MIB
    assert found["t4"].taken == PRESETS["t4"].context > 0
    failure = found["99MiB"].failure
    lines = [frame.line for frame in failure.stack if frame.filename.endswith("program.py")]
    assert (failure.size, lines[0]) == (20 * MIB, 3)
    assert "Tried to allocate 20.00 MiB" in failure.message


def test_gpus_on_which_kernels_differ_have_a_run_each(compare):
    """A sum of long columns takes a buffer that depends on the number of multiprocessors."""
    text = """
        import torch
        x = torch.zeros(8192, 3072, device="cuda").sum(0)
    """
    found = compare(text, "t4", "rtx4090", "a100", "a100-40gb", "24GiB")
    assert runs(found) == 3
    assert found["a100"].trial is found["a100-40gb"].trial is found["24GiB"].trial


def test_gpus_that_differ_and_decide_alike_share_a_run(compare):
    """The same sum of few elements is split on none of them."""
    text = """
        import torch
        x = torch.zeros(100, device="cuda").sum()
    """
    assert runs(compare(text, *PRESETS)) == 1


def test_what_others_and_the_context_take_is_not_free(compare):
    text = """
        import torch
        kept = torch.zeros(64 * 2**20, dtype=torch.uint8, device="cuda")
    """
    settings = {"context": 4 * MIB, "others": 32 * MIB}
    found = compare(text, "100MiB", "98MiB", **settings)
    assert (found["100MiB"].fits, found["100MiB"].headroom) == (True, 0)
    assert (found["98MiB"].fits, found["98MiB"].headroom) == (False, -2 * MIB)


ASKS = """
    import torch
    free, total = torch.cuda.mem_get_info()
    kept = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
"""


def test_a_program_that_asks_for_the_memory_runs_with_that_of_each_gpu(compare):
    found = compare(ASKS, "64MiB", "128MiB", "100MiB", context=4 * MIB)
    assert runs(found) == 3
    assert {name: one.reserved_peak // MIB for name, one in found.items()} == {
        "64MiB": 30,
        "128MiB": 62,
        "100MiB": 48,
    }
    assert all(one.fits for one in found.values())


HALVES = """
    import torch
    size = 64 * 2**20
    while size:
        try:
            kept = torch.empty(size, dtype=torch.uint8, device="cuda")
            break
        except torch.OutOfMemoryError:
            size //= 2
"""


def test_a_program_that_asks_for_the_memory_of_newer_gpus_alone(compare):
    text = """
        import torch
        size = 2**20
        if torch.cuda.get_device_capability()[0] >= 9:
            size = torch.cuda.get_device_properties(0).total_memory // 4
        x = torch.zeros(size, dtype=torch.uint8, device="cuda")
    """
    found = compare(text, "a100", "h100", "h200")
    quarters = {name: found[name].capacity // 4 for name in ("h100", "h200")}
    segments = {name: -(-size // (2 * MIB)) * 2 * MIB for name, size in quarters.items()}
    assert {name: one.reserved_peak for name, one in found.items()} == {
        "a100": 2 * MIB,
        **segments,
    }
    assert runs(found) == 3


def test_a_program_that_goes_on_with_less_runs_where_it_does_not_fit_at_first(compare):
    found = compare(HALVES, "100MiB", "50MiB", "20MiB")
    assert {name: (one.fits, one.reserved_peak // MIB) for name, one in found.items()} == {
        "100MiB": (True, 64),
        "50MiB": (True, 32),
        "20MiB": (True, 16),
    }


def test_a_program_that_asks_and_runs_out_does_not_fit(compare):
    text = """
        import torch
        free, total = torch.cuda.mem_get_info()
        kept = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
        more = torch.empty(60 * 2**20, dtype=torch.uint8, device="cuda")
    """
    found = compare(text, "200MiB", "64MiB")
    assert (found["200MiB"].fits, found["200MiB"].reserved_peak) == (True, 160 * MIB)
    small = found["64MiB"]
    assert (small.fits, small.failure.size, small.trial.ending) == (
        False,
        60 * MIB,
        Ending.OUT_OF_MEMORY,
    )


def test_a_program_that_only_shows_the_memory_has_the_peak_that_it_would_reach(compare):
    text = """
        import torch
        print(torch.cuda.mem_get_info())
        kept = [torch.empty(16 * 2**20, dtype=torch.uint8, device="cuda") for _ in range(10)]
    """
    small = compare(text, "64MiB")["64MiB"]
    assert (small.fits, small.failure.size, small.active_peak) == (False, 16 * MIB, 160 * MIB)


def test_a_program_that_fails_with_the_memory_of_no_gpu_runs_with_that_of_each(compare):
    text = """
        import torch
        free, total = torch.cuda.mem_get_info()
        assert total < 2**40
        kept = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
    """
    found = compare(text, "64MiB")
    assert (found["64MiB"].fits, found["64MiB"].reserved_peak) == (True, 32 * MIB)


def test_a_program_that_takes_all_there_is_runs_where_memory_ends(compare):
    """This machine maps less than the GPU without limit has."""
    text = """
        import torch
        kept, size = [], 2**46
        while size >= 2 * 2**20:
            try:
                kept.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                size //= 2
    """
    found = compare(text, "64MiB", "48MiB")
    assert {name: (one.fits, one.reserved_peak // MIB) for name, one in found.items()} == {
        "64MiB": (True, 64),
        "48MiB": (True, 48),
    }


def test_a_program_that_runs_out_of_something_else_has_no_verdict(compare):
    text = """
        import torch
        from pytorch_memlab.errors import HostMemoryError
        kept = torch.empty(2**20, device="cuda")
        raise HostMemoryError("no more mappings")
    """
    assert compare(text, "64MiB")["64MiB"].fits is None


def test_a_program_that_fails_on_old_gpus_runs_on_the_others(compare):
    text = """
        import torch
        assert torch.cuda.get_device_capability() >= (9, 0), "too old"
        kept = torch.zeros(2**20, device="cuda")
    """
    found = compare(text, "t4", "a100", "h100", "b200")
    assert {name: one.fits for name, one in found.items()} == {
        "t4": None,
        "a100": None,
        "h100": True,
        "b200": True,
    }
    assert found["t4"].trial.error.endswith("AssertionError: too old\n")


def test_a_program_that_fails_everywhere_runs_twice_at_most(compare, tmp_path):
    text = """
        import os, tempfile, torch
        torch.zeros(4, 2**24, device="cuda").sum(1)
        tempfile.mkstemp(prefix="run-", dir=os.path.dirname(__file__))
        raise RuntimeError("nowhere")
    """
    found = compare(text, *PRESETS, allow_writes=True)
    assert len(found) == len(PRESETS)
    assert {one.fits for one in found.values()} == {None}
    assert len(list(tmp_path.glob("run-*"))) == 2


def test_the_fullest_of_several_gpus_decides(compare):
    text = """
        import torch
        kept = [torch.zeros(2**20 * 20, dtype=torch.uint8, device=f"cuda:{i}") for i in (0, 1, 1)]
    """
    found = compare(text, "50MiB", "30MiB", num_gpus=2)
    assert [(one.fits, one.device, one.reserved_peak // MIB) for one in found.values()] == [
        (True, 1, 40),
        (False, 1, 40),
    ]


def test_close_to_full_the_cache_goes_back(compare):
    """The first 40 MiB are free when 60 MiB are asked for, but one segment is too small."""
    text = """
        import torch
        first = torch.zeros(2**20 * 40, dtype=torch.uint8, device="cuda")
        del first
        second = torch.zeros(2**20 * 60, dtype=torch.uint8, device="cuda")
    """
    found = compare(text, "100MiB", "80MiB", "58MiB")
    assert [(one.fits, one.retries, one.reserved_peak // MIB) for one in found.values()] == [
        (True, 0, 100),
        (True, 1, 60),
        (False, 1, 100),
    ]


LAYER = """
    import torch
    from torch import nn

    model = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        x = torch.randn(4, 512, 256, device="cuda", dtype=torch.bfloat16)
        model(x).float().mean().backward()
        optimizer.step()
"""


def test_a_shared_run_is_what_each_gpu_would_have_done(compare, tmp_path):
    names = ("a100", "rtx4090", "l4", "h100", "t4")
    found = compare(LAYER, *names)
    assert len({one.reserved_peak for one in found.values()}) > 1
    target = ProgramTarget(str(tmp_path / "program.py"))
    for name, verdict in found.items():
        own = run_trial(target, find_gpu(name))
        assert verdict.trial.step_peaks == own.step_peaks, name


def test_gpus_by_name():
    own = GPU("mine", "2GiB", (8, 0), 108)
    assert named_gpus(None) == list(PRESETS.items())
    assert named_gpus("t4") == [("t4", PRESETS["t4"])]
    assert [name for name, _ in named_gpus(["t4", " a100", "t4", own])] == ["t4", "a100", "mine"]
    assert named_gpus(2**30)[0][1].total_memory == 2**30
