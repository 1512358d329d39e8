"""Published figures: their data, the rules of predictions, and two of them from end to end."""

from __future__ import annotations

import importlib
import inspect

import pytest

from benchmarks.published import __main__ as command, sources, table
from benchmarks.published.measure import measure
from benchmarks.published.sources import Prediction, load
from pytorch_memlab.simulation.hardware.presets import find_gpu

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
    assert "| now | 1 of 2 | 1 of 2 | 1 of 2 | 2.00% | +4.0% (`paper/second`) |" in (
        written["published"].splitlines()
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
