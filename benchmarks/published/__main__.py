"""Predict peaks that other people published, and write the tables of the documentation.

``python -m benchmarks.published [NAMES]`` predicts all figures or those that are named: a source,
or a source and a figure such as ``liger_kernel/cross_entropy-4096``. Each program runs in its
own process, two at a time, without values. The first prediction of a figure is kept as the
blind one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Final

from benchmarks.accuracy import write
from benchmarks.published.sources import Figure, Source, sources
from benchmarks.published.table import page, summary
from benchmarks.timing import arguments, in_own_process

_DOCUMENTS: Final = Path(__file__).parents[2] / "docs" / "simulation"
_PROGRAMS_AT_A_TIME: Final = 2


def chosen(names: Sequence[str]) -> Iterator[tuple[Source, list[Figure]]]:
    """The named figures of each source; all if nothing is named.

    Raises:
        ValueError: a name is none of a source or a figure.
    """
    unknown = set(names)
    for source in sources():
        unknown -= {source.name, *map(str, source.figures)}
        figures = [
            figure
            for figure in source.figures
            if not names or source.name in names or str(figure) in names
        ]
        if figures:
            yield source, figures
    if unknown:
        raise ValueError(f"no published figure is called {', '.join(sorted(unknown))}")


def runs(names: Sequence[str]) -> Iterator[tuple[Source, list[Figure]]]:
    """The named figures of each run of a program."""
    for source, figures in chosen(names):
        in_order = sorted(figures, key=lambda figure: figure.run)
        for _, of_run in groupby(in_order, key=lambda figure: figure.run):
            yield source, list(of_run)


def counters_of(figures: Sequence[Figure]) -> dict[str, int] | None:
    """The counters of the run that figures share, in bytes; nothing if its program fails."""
    first = figures[0]
    try:
        counters: dict[str, int] = in_own_process(
            "benchmarks.published.measure", first.source, first.name
        )
    except subprocess.CalledProcessError:
        return None
    return counters


def main(names: Sequence[str]) -> list[str]:
    """Predict, print and record figures, and write the tables.

    Returns:
        What did not run to its end.
    """
    failed = []
    to_run = list(runs(names))
    with ThreadPoolExecutor(_PROGRAMS_AT_A_TIME) as pool:
        measured = pool.map(counters_of, [figures for _, figures in to_run])
        for (source, figures), counters in zip(to_run, measured, strict=True):
            if counters is None:
                failed.append(str(figures[0]))
                continue
            predicted = {figure.name: counters[figure.value or figure.counts] for figure in figures}
            source.record(predicted, {figure.name: figure.bounds(counters) for figure in figures})
            for figure in figures:
                error = figure.error(predicted[figure.name])
                size = f"{predicted[figure.name]:,}"
                print(f"{figure!s:<60} {size:>18} {error:+9.3%}", flush=True)
    everything = list(sources())
    write(page(everything), _DOCUMENTS / "published.md", "figures")
    write(summary(everything), _DOCUMENTS / "accuracy.md", "published")
    return failed


if __name__ == "__main__":
    failures = main(arguments(__doc__))
    if failures:
        sys.exit(f"did not run to their end: {', '.join(failures)}")
