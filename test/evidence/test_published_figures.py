"""Published figures: their data, the rules of predictions, and two of them from end to end."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import replace

import pytest
import torch

from benchmarks import bounds
from benchmarks.accuracy import Comparison
from benchmarks.published import __main__ as command, sources, table
from benchmarks.published.measure import measure
from benchmarks.published.sources import NOT_COUNTED, Prediction, load
from pytorch_memlab.simulation.hardware.presets import PRESETS, find_gpu

SOURCES = list(sources.sources())

DATA = """
title = "A paper"
link = "https://example.org/0123abc"
notes = "What runs."
published_gpu = "A100"
torch = "2.1"
gpu = "a100"
unit = "MiB"
counts = "peak allocated"
kinds = ["single kernels"]

[[figures]]
name = "first"
published = "8.0"
call = "run"

[[figures]]
name = "second"
published = "2.50"
unit = "GB"
call = "run"
value = "step"
"""


@pytest.fixture
def paper(tmp_path, monkeypatch):
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "figures.toml").write_text(DATA)
    monkeypatch.setattr(sources, "FOLDER", tmp_path)
    return load("paper")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_each_figure_has_a_program_that_takes_its_arguments(source):
    program = importlib.import_module(f"benchmarks.published.{source.name}.program")
    for figure in source.figures:
        inspect.signature(getattr(program, figure.call)).bind(**figure.arguments)
        assert float(figure.published) > 0
        assert find_gpu(figure.gpu).name


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_each_source_has_a_link_with_its_commit_and_predictions_of_its_figures(source):
    assert source.link.startswith("https://")
    assert source.predictions().keys() <= {figure.name for figure in source.figures}


def test_a_deviation_has_a_reason():
    for source in SOURCES:
        predictions = source.predictions()
        for figure in source.figures:
            if figure.name in predictions:
                error = abs(figure.error(predictions[figure.name].now))
                assert error <= 0.01 or figure.reason, f"{figure}: {error:.2%}"


@pytest.mark.parametrize(
    ("name", "size"), [("cross_entropy-4096", 1342309376), ("layer_norm-1024", 83951616)]
)
def test_a_figure_is_predicted_to_the_byte(name, size):
    figure = next(figure for figure in load("liger_kernel").figures if figure.name == name)
    assert measure(figure)[figure.value] == size
    assert figure.agrees(size)


def test_keys_of_the_source_hold_for_each_figure(paper):
    first, second = paper.figures
    assert (first.unit, first.value, first.run) == ("MiB", "", second.run)
    assert (second.unit, second.gpu, str(second)) == ("GB", "a100", "paper/second")


def test_all_published_digits_count(paper):
    _, second = paper.figures
    assert second.error(2_525_000_000) == pytest.approx(0.01)
    assert second.agrees(2_504_999_999)
    assert not second.agrees(2_505_100_000)


def test_the_first_prediction_stays_blind(paper):
    paper.record({"second": 5})
    paper.record({"second": 7, "first": 1})
    assert paper.predictions() == {"first": Prediction(1, 1), "second": Prediction(5, 7)}
    assert list(paper.predictions()) == ["first", "second"]


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('unit = "GB"', 'unit = "GBytes"', "paper/second: unit is none of B, MB"),
        ('kinds = ["single kernels"]', 'kinds = ["kernels"]', "paper/first: kinds is none of"),
        ('value = "step"', 'values = "step"', "paper: figures have no values"),
        ('name = "second"', 'name = "first"', "paper: two figures have the same name"),
    ],
)
def test_mistakes_in_the_data_are_named(paper, before, after, message):
    path = sources.FOLDER / "paper" / "figures.toml"
    path.write_text(DATA.replace(before, after))
    with pytest.raises(ValueError, match=message):
        load("paper")


def test_figures_of_one_run_share_a_process_and_a_failure_is_named(paper, monkeypatch, capsys):
    calls = []

    def process(module, *names):
        calls.append((module, *names))
        return {"peak allocated": 8 * 2**20, "step": 2_600_000_000}

    written = {}
    monkeypatch.setattr(command, "in_own_process", process)
    monkeypatch.setattr(command, "write", lambda text, path, part: written.update({part: text}))
    assert command.main([]) == []
    assert calls == [("benchmarks.published.measure", "paper", "first")]
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["paper/first", "8,388,608", "+0.000%"],
        ["paper/second", "2,600,000,000", "+4.000%"],
    ]
    assert written["figures"].splitlines()[-2:] == [
        "| `first` | 8.0 MiB | peak allocated | 8.0 | 0 | 8.0 | 0 |  |",
        "| `second` | 2.50 GB | peak allocated | 2.60 | +4.00% | 2.60 | +4.00% |  |",
    ]
    lines = written["published"].splitlines()
    assert "| now | 1 of 2 | 1 of 2 | 1 of 2 | 2.00% | +4.0% (`paper/second`) |" in lines
    assert "| single kernels | 2 | 1 | 1 |" in lines
    assert "| TP | 0 | 0 | 0 |" in lines


def test_a_figure_whose_digits_agree_deviates_by_nothing(paper):
    paper.record({"first": 8 * 2**20, "second": 2_504_999_999})
    assert "| now | 2 of 2 | 2 of 2 | 2 of 2 | 0.00% | +0.2% (`paper/second`) |" in (
        table.summary([paper]).splitlines()
    )


@pytest.mark.parametrize(
    ("counters", "bounds"),
    [
        ({"peak allocated": 10}, None),
        ({"peak allocated": 10, NOT_COUNTED: 5}, (10, 15)),
        ({"peak allocated": 10, "most peak allocated": 12}, (10, 12)),
        ({"peak allocated": 10, "most peak allocated": 12, NOT_COUNTED: 5}, (10, 17)),
    ],
)
def test_what_is_not_counted_or_not_published_gives_a_prediction_bounds(paper, counters, bounds):
    assert paper.figures[0].bounds(counters) == bounds


def test_what_is_reserved_is_at_least_what_was_in_use(paper):
    reserved = replace(paper.figures[0], counts="peak reserved")
    counters = {"peak reserved": 20, "least peak reserved": 12, NOT_COUNTED: 5}
    assert reserved.bounds(counters) == (12, 25)
    assert replace(reserved, counts="allocated").bounds(counters | {"allocated": 3}) is None


def test_bounds_are_kept_and_go_with_the_next_prediction(paper):
    paper.record({"first": 10}, {"first": (8, 12)})
    assert paper.predictions() == {"first": Prediction(10, 10, (8, 12))}
    paper.record({"first": 11})
    assert paper.predictions() == {"first": Prediction(10, 11)}


def test_a_figure_is_within_bounds_as_far_as_it_has_digits(paper):
    first, _ = paper.figures
    assert first.is_within((8 * 2**20, 9 * 2**20))
    half_a_digit, one_percent = 0.05 * 2**20, 0.08 * 2**20
    assert first.is_within((int(8 * 2**20 + half_a_digit + one_percent), 9 * 2**20))
    assert not first.is_within((int(8 * 2**20 + 2 * one_percent), 9 * 2**20))
    assert not first.is_within((2**20, 7 * 2**20))


def test_memory_that_is_not_counted_is_measured(monkeypatch):
    figure = next(iter(load("xmem").figures))
    program = importlib.import_module("benchmarks.published.xmem.program")

    def convolve(**_arguments):
        images = torch.zeros(2, 8, 32, 32, device="cuda")
        torch.nn.functional.conv2d(images, torch.zeros(8, 8, 3, 3, device="cuda"))

    monkeypatch.setattr(program, "train", convolve)
    counters = measure(figure)
    assert counters[NOT_COUNTED] > 0
    assert figure.bounds(counters) == (
        counters["peak active"],
        counters["peak reserved"] + counters[NOT_COUNTED],
    )
    whole = replace(figure, value="nvidia-smi")
    assert whole.bounds(counters) == (
        counters["peak active"] + PRESETS["rtx3060"].context,
        counters["nvidia-smi"] + counters[NOT_COUNTED],
    )


def test_no_published_figure_lies_outside_of_its_bounds_but_one_of_an_unknown_program(capsys):
    assert bounds.outside_of_figures() == []
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(bounds.bounded(iter(SOURCES)))) > 5
    (line,) = [line for line in lines if "outside" in line]
    assert line.split()[0] == "pytorch_memory_optim/fsdp-checkpointing-offload"
    assert line.endswith("outside, of which the table has a reason")


def test_a_figure_outside_of_its_bounds_is_named(paper, monkeypatch, capsys):
    paper.record({"first": 2**20}, {"first": (2**20, 2**21)})
    monkeypatch.setattr(bounds, "sources", lambda: iter([paper]))
    assert bounds.outside_of_figures() == ["paper/first"]
    assert capsys.readouterr().out.split() == (
        ["paper/first", "1.00M", "to", "2.00M", "published", "8.00M", "outside"]
    )


def test_a_name_that_nothing_has_is_refused(paper):
    assert [figure.name for _, of in command.chosen(["paper/second"]) for figure in of] == [
        "second"
    ]
    with pytest.raises(ValueError, match="no published figure is called paper/third"):
        list(command.chosen(["paper", "paper/third"]))


def test_the_tables_of_the_documentation_are_those_of_the_data():
    for text, name in ((table.page(SOURCES), "published"), (table.summary(SOURCES), "accuracy")):
        page = (command._DOCUMENTS / f"{name}.md").read_text(encoding="utf-8")
        assert f"\n{text}\n" in page


def test_the_readme_has_the_numbers_of_the_table():
    blind, now = (
        [cell.strip() for cell in line.split("|")][4].split(" of ")
        for line in table.summary(SOURCES).splitlines()
        if line.startswith(("| blind |", "| now |"))
    )
    readme = (command._DOCUMENTS.parents[1] / "README.md").read_text(encoding="utf-8")
    said = "Of {} peaks that others published, {} are predicted within 2 %, {} at the first try."
    assert said.format(now[1], now[0], blind[0]) in " ".join(readme.split())


def test_a_recording_is_outside_if_its_peaks_are_not_those_of_its_program(monkeypatch, capsys):
    compared = {
        "equal": Comparison("equal", 9, 9, (10, 20), (10, 20)),
        "compiled": Comparison("compiled", 5, 0, (11, 20), (10, 20)),
        "lower": Comparison("lower", 9, 9, (10, 20), (10, 21)),
        "compiled and lower": Comparison("compiled and lower", 9, 0, (10, 20), (11, 20)),
        "without a program": None,
    }
    monkeypatch.setattr(bounds, "recordings", lambda: ((name, {}) for name in compared))
    monkeypatch.setattr(bounds, "compare", lambda name, _trace: compared[name])
    assert bounds.outside_of_recordings() == ["lower", "compiled and lower"]
    words = [line.rsplit("  ", 1)[-1].split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-1] for line in words] == ["equal", "compiler", "outside", "outside"]
