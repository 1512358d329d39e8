"""The tables of published figures in the documentation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Final

from benchmarks.published.sources import KINDS, UNITS, Figure, Prediction, Source

_HEAD: Final = ("figure", "published", "counts", "blind", "error", "now", "error", "reason")


def _rows(rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * (lines[0].count(" | ") + 1))
    return lines


def _error(figure: Figure, predicted: int) -> str:
    return "0" if figure.agrees(predicted) else f"{figure.error(predicted):+.2%}"


def _size(figure: Figure, predicted: int) -> str:
    digits = max(len(figure.published.partition(".")[2]), 0)
    return f"{predicted / UNITS[figure.unit]:,.{min(digits, 3)}f}"


def _row(figure: Figure, predicted: Prediction) -> tuple[str, ...]:
    decimals = len(figure.published.partition(".")[2])
    return (
        f"`{figure.name}`",
        f"{float(figure.published):,.{min(decimals, 3)}f} {figure.unit}",
        figure.counts,
        _size(figure, predicted.blind),
        _error(figure, predicted.blind),
        _size(figure, predicted.now),
        _error(figure, predicted.now),
        figure.reason,
    )


def _setting(source: Source) -> str:
    gpus = dict.fromkeys(figure.published_gpu for figure in source.figures)
    releases = dict.fromkeys(figure.torch for figure in source.figures)
    return f"GPU: {', '.join(gpus)}. PyTorch: {', '.join(releases)}."


def page(sources: Sequence[Source]) -> str:
    """A section with a table for each source, as Markdown."""
    sections = []
    for source in sources:
        predictions = source.predictions()
        rows = [
            _row(figure, predictions[figure.name])
            for figure in source.figures
            if figure.name in predictions
        ]
        text = (f"## {source.title}", f"[Published]({source.link}). {_setting(source)}")
        sections += [*text, source.notes.strip(), "\n".join(_rows([_HEAD, *rows]))]
    return "\n\n".join(sections)


def _deviation(figure: Figure, predicted: int) -> float:
    """The part by which a prediction differs; none if all published digits agree."""
    return 0.0 if figure.agrees(predicted) else abs(figure.error(predicted))


def _share(errors: Sequence[float], most: float) -> str:
    return f"{sum(error <= most for error in errors)} of {len(errors)}"


def summary(sources: Sequence[Source]) -> str:
    """Numbers of figures, the errors of the predictions, and those of each kind, as Markdown."""
    pairs = [
        (figure, predictions[figure.name])
        for source in sources
        for predictions in [source.predictions()]
        for figure in source.figures
        if figure.name in predictions
    ]
    rows = [("", "all digits", "within 1 %", "within 2 %", "median error", "worst")]
    for label in ("blind", "now"):
        errors = [_deviation(figure, getattr(at, label)) for figure, at in pairs]
        equal = sum(figure.agrees(getattr(at, label)) for figure, at in pairs)
        worst = max(pairs, key=lambda pair: abs(pair[0].error(getattr(pair[1], label))))
        far = f"{worst[0].error(getattr(worst[1], label)):+.1%} (`{worst[0]}`)"
        middle = f"{median(errors):.2%}"
        shares = (_share(errors, 0.01), _share(errors, 0.02))
        rows.append((label, f"{equal} of {len(pairs)}", *shares, middle, far))
    counted = f"{len(pairs)} figures of {len(sources)} sources."
    return "\n".join([counted, "", *_rows(rows), "", *_rows(_by_kind(pairs))])


def _by_kind(pairs: Sequence[tuple[Figure, Prediction]]) -> list[tuple[str, ...]]:
    """The number of figures of each kind."""
    rows: list[tuple[str, ...]] = [("kind", "figures", "sources", "within 2 % now")]
    for kind in KINDS:
        of_kind = [(figure, at) for figure, at in pairs if kind in figure.kinds]
        errors = [_deviation(figure, at.now) for figure, at in of_kind]
        near = sum(error <= 0.02 for error in errors)
        names = {figure.source for figure, _ in of_kind}
        rows.append((kind, str(len(of_kind)), str(len(names)), str(near)))
    return rows
