"""Predict peaks that other people published, and write the tables of the documentation.

``python -m benchmarks.published [NAMES]`` predicts all figures or those that are named: a source,
or a source and a figure such as ``liger_kernel/cross_entropy-4096``. Each program runs in its
own process, without values. The first prediction of a figure is kept as the blind one.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from benchmarks.accuracy import write
from benchmarks.published.sources import Figure, Source, sources
from benchmarks.published.table import page, summary
from benchmarks.timing import arguments, in_own_process

_DOCUMENTS: Final = Path(__file__).parents[2] / "docs" / "simulation"


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


def counters_of(figures: Sequence[Figure]) -> dict[str, int]:
    """The counters of the run that figures share, in bytes."""
    first = figures[0]
    counters: dict[str, int] = in_own_process(
        "benchmarks.published.measure", first.source, first.name
    )
    return counters


def main(names: Sequence[str]) -> list[str]:
    """Predict, print and record figures, and write the tables.

    Returns:
        What did not run to its end.
    """
    failed = []
    for source, figures in chosen(names):
        runs = sorted(figures, key=lambda figure: figure.run)
        for _, sharing in groupby(runs, key=lambda figure: figure.run):
            of_run = list(sharing)
            try:
                counters = counters_of(of_run)
            except subprocess.CalledProcessError:
                failed.append(str(of_run[0]))
                continue
            predicted = {figure.name: counters[figure.value or figure.counts] for figure in of_run}
            source.record(predicted, {figure.name: figure.bounds(counters) for figure in of_run})
            for figure in of_run:
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
