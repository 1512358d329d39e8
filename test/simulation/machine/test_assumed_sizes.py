"""Sizes that values decide: what a dry run assumes, what the user gives, and what reports say."""

from __future__ import annotations

import pytest
import torch

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError
from pytorch_memlab.records import ApproximationKind
from pytorch_memlab.simulation.inspect import AssumedSizes

COUNT = 2**16 * 8
SCRIPT = """\
import torch

x = torch.rand(2**16, 8, device="cuda")
found = x.nonzero()
chosen = x[x > 2]
several = torch.unique(x)
"""


def sizes(assume, make=None):
    """Lengths of the results of four ops, with sizes that are given."""
    with simulate("24GiB", compute=False, assume=assume):
        x = torch.rand(2**16, 8, device="cuda")
        if make is not None:
            return make(x)
        return len(x.nonzero()), len(x[x > 2]), len(torch.unique(x)), len(x.masked_select(x > 2))


def test_without_a_word_of_the_user_all_elements_are_taken():
    assert sizes(None) == (COUNT,) * 4


def test_a_fraction_is_of_the_elements_and_a_number_is_of_elements():
    given = {"nonzero": 0.001, "mask": "0.1%", "unique": 120, "masked_select": "1.0"}
    assert sizes(given) == (525, 525, 120, COUNT)  # 524.288 is rounded up


@pytest.mark.parametrize(
    ("amount", "elements", "size"),
    [("0.1", 30, 3), ("0.07", 100, 7), ("0.1%", 1, 1), ("0.0", 9, 0), ("120", 500, 120)],
)
def test_a_fraction_is_rounded_up_in_decimal_arithmetic(amount, elements, size):
    sizes = AssumedSizes({"nonzero": amount})
    assert sizes.find("nonzero", "a.py", 1).of(elements) == size


def test_a_number_above_all_elements_is_all_elements():
    assert sizes({"unique": 10**9}, lambda x: len(torch.unique(x))) == COUNT


def test_the_memory_is_that_of_the_given_size_to_the_byte():
    def memory(x):
        before = torch.cuda.memory_allocated()
        kept = x.nonzero(), x[x > 2]
        return torch.cuda.memory_allocated() - before, kept

    nbytes, _ = sizes({"nonzero": 0.001, "mask": 0.002}, memory)
    blocks = [525 * 2 * 8, 1049 * 4]  # two indices of each, and one number of each
    assert nbytes == sum(-(-size // 512) * 512 for size in blocks)


def test_unique_has_room_for_all_elements_and_the_length_that_is_given():
    """As on a GPU, which finds out how many there are after it took the memory."""

    def unique(x):
        before = torch.cuda.memory_allocated()
        values, inverse, counts = torch.unique(x, return_inverse=True, return_counts=True)
        taken = torch.cuda.memory_allocated() - before
        return len(values), inverse.shape, len(counts), taken

    assert sizes({"unique": 0.5}, unique) == (COUNT // 2, (2**16, 8), COUNT // 2, COUNT * 20)
    rows = sizes({"unique": 10}, lambda x: torch.unique(x, dim=0).shape)
    assert rows == (10, 8)


def test_repetitions_bins_and_sparse_elements_have_given_sizes():
    def others(x):
        repeats = x.long().flatten()
        sparse = torch.sparse_coo_tensor(x[:2].long(), x[0], (9, 9)).coalesce()
        return len(torch.repeat_interleave(repeats)), len(torch.bincount(repeats)), sparse._nnz()

    assert sizes(None, others) == (COUNT, 1, 8)
    given = {"repeat_interleave": 2.5, "bincount": 77, "coalesce": 0.25}
    assert sizes(given, others) == (COUNT * 5 // 2, 77, 2)


def test_a_line_goes_before_an_op():
    line = test_a_line_goes_before_an_op.__code__.co_firstlineno + 4

    def work(x):
        return len(x.nonzero()), len(x.nonzero())

    with pytest.raises(UsageError):
        sizes({f"{__file__}:100000": 0.5}, work)
    given = {f"{__file__}:{line}": 0.5, "nonzero": 7}
    assert sizes(given, lambda x: (work(x), len(x.nonzero()))) == ((COUNT // 2,) * 2, 7)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"nonzro": 0.1},
            "assume: there is no op 'nonzro' whose size can be given: did you mean nonzero?",
        ),
        (
            {"xyz": 0.1},
            (
                "assume: there is no op 'xyz' whose size can be given: nonzero, mask,"
                " masked_select, unique, unique_consecutive, repeat_interleave, bincount,"
                " coalesce, nms, or file.py:12"
            ),
        ),
        (
            {"nonzero": 1},
            (
                "assume nonzero: 1 may be one element or all of them: write 100% for all, or a"
                " fraction"
            ),
        ),
        ({"nonzero": 1.5}, "assume nonzero: 1.5 is more than all elements"),
        (
            {"mask": -0.1},
            "assume mask: '-0.1' is no fraction such as 0.001 or 0.1%, and no number such as 120",
        ),
        (
            {"mask": True},
            "assume mask: 'True' is no fraction such as 0.001 or 0.1%, and no number such as 120",
        ),
        (
            {"mask": float("nan")},
            "assume mask: 'nan' is no fraction such as 0.001 or 0.1%, and no number such as 120",
        ),
    ],
)
def test_mistakes_are_refused_in_one_line(given, message):
    with pytest.raises(UsageError) as raised:
        simulate("a100", compute=False, assume=given)
    assert str(raised.value) == message


def test_lines_that_are_not_there_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("a = 1\nb = 2\n")
    for given, message in {
        "train.py:3": "assume train.py:3: train.py has the lines 1 to 2",
        "trian.py:1": "assume trian.py:1: there is no file 'trian.py' here: did you mean train.py?",
    }.items():
        with pytest.raises(UsageError) as raised:
            AssumedSizes({given: 0.5})
        assert str(raised.value) == message
    library = AssumedSizes({"detection/roi_heads.py:120": 0.5})  # the end of a path
    assert library.find("mask", "/lib/torchvision/models/detection/roi_heads.py", 120)
    assert not library.find("mask", "/lib/torchvision/models/detection/heads.py", 120)


def test_sizes_are_for_dry_runs():
    with pytest.raises(UsageError, match=r"^assume is for compute=False"):
        simulate("a100", assume={"nonzero": 0.1})


# Reports


def reported(tmp_path, capsys, *options):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    status = main(["run", "--dry-run", "--gpu", "24GiB", *options, str(script)])
    captured = capsys.readouterr()
    return status, captured.out.replace(str(script), "script.py").splitlines(), captured.err


def test_a_peak_that_rests_on_assumed_sizes_is_at_most_that(tmp_path, capsys):
    _, lines, _ = reported(tmp_path, capsys)
    assert lines[0] == "peak at most 20.5 MiB on cuda:0, less than 0.1% of 24.00 GiB (simulated)"
    assert "  peak at most 22.0 MiB reserved of 24.00 GiB: fits, 23.98 GiB free" in lines
    assert "20.5 MiB 2.0 MiB   8.5 MiB    5* chosen = x[x > 2]  <- peak" in lines
    assert (
        "sizes assumed, at most: mask as an index at script.py:5 (once, every element True), "
        "nonzero at script.py:4 (once, every element True), unique at script.py:6 (once, all "
        "elements distinct): the true peak may be lower; --assume gives the sizes"
    ) in lines
    assert lines[-1] == (
        "cuda:0: 60.9% of the peak of 20.5 MiB is exact, 39.1% (8.0 MiB) estimated, at most that, "
        "as sizes are assumed"
    )


def test_the_upper_bound_is_the_peak_of_elements_that_are_all_taken():
    """With values: no element is zero, and a mask takes all."""
    peaks = []
    for compute in (True, False):
        with simulate("24GiB", compute=compute):
            x = torch.arange(1.0, 2**19 + 1, device="cuda").view(2**16, 8)
            torch.cuda.reset_peak_memory_stats()
            kept = x.nonzero(), x[x > 0], torch.unique(x)
            peaks.append((torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()))
            del kept
    assert peaks[0] == peaks[1]


def test_given_sizes_are_named_as_such_and_are_no_bound(tmp_path, capsys):
    given = ["--assume", "nonzero=0.001,mask=7", "--assume", f"{tmp_path / 'script.py'}:6=50%"]
    _, lines, _ = reported(tmp_path, capsys, *given)
    assert lines[0].startswith("peak ")
    assert "at most" not in "".join(lines)
    assert (
        "sizes given by --assume: mask as an index at script.py:5 (once, 7), nonzero at "
        "script.py:4 (once, 0.001 of the elements), unique at script.py:6 (once, 50% of the "
        "elements)"
    ) in lines


def test_what_was_given_and_never_met_is_named(tmp_path, capsys):
    given = f"{tmp_path / 'script.py'}:3=0.5,nms=9,nonzero=5"
    _, lines, _ = reported(tmp_path, capsys, "--assume", given)
    assert lines[-1] == (
        "--assume script.py:3=0.5, nms=9: nothing there assumed a size, for the values were known "
        "or no such op ran"
    )


def test_a_line_is_named_as_reports_name_it_in_whatever_folder_the_script_is(tmp_path, capsys):
    _, lines, _ = reported(tmp_path, capsys, "--assume", "script.py:4=0.001")
    given = "sizes given by --assume: nonzero at script.py:4 (once, 0.001 of the elements)"
    assert given in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--dry-run", "--assume", "nonzero"],
            "--assume takes an op or a line, and how much of it: nonzero=0.001, not 'nonzero'",
        ),
        (
            ["--assume", "nonzero=0.1"],
            "--assume is for --dry-run: any other run computes the sizes",
        ),
    ],
)
def test_mistakes_of_the_command_line(tmp_path, capsys, options, message):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert main(["run", "--gpu", "24GiB", *options, str(script)]) == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: {message}")


def test_bounds_of_both_sides_are_none():
    def work():
        x = torch.rand(2**16, 8, device="cuda")
        return x.nonzero(), torch.bincount(x.long().flatten())

    with simulate("24GiB", compute=False) as _, LineProfiler(work) as profiler:
        work()
        notes = str(profiler.display())
    assert notes.splitlines()[-1].endswith(
        "neither at most nor at least that, as sizes are assumed"
    )
    [table] = profiler.display().report.tables
    kinds = {one.kind for found in table.approximations.values() for one in found}
    assert {ApproximationKind.AT_MOST, ApproximationKind.AT_LEAST} <= kinds


def test_a_size_that_the_program_gives_is_not_assumed():
    with simulate("24GiB", compute=False) as machine:
        repeats = torch.rand(2**16, device="cuda").long()
        assert len(torch.repeat_interleave(repeats, output_size=99)) == 99
        assert machine.data_dependent_reads == ()
