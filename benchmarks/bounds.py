"""Prove that no recording and no published figure lies outside of the bounds of its prediction.

``python -m benchmarks.bounds`` simulates the recordings, and reads the predictions that
``make published`` keeps. Where some memory is not counted, a prediction has a least and a most
number of bytes, as the verdicts of ``run`` and ``fit`` do. A figure that lies outside for another
reason, which the table of figures has, is printed, and no failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from benchmarks.accuracy import ROOT, compare, recordings
from benchmarks.published.sources import UNITS, Figure, Prediction, Source, sources
from benchmarks.timing import arguments
from pytorch_memlab.utils import readable_size


def bounded(of: Iterator[Source]) -> Iterator[tuple[Figure, Prediction]]:
    """Figures of whose programs some memory is not counted."""
    for source in of:
        predictions = source.predictions()
        for figure in source.figures:
            at = predictions.get(figure.name)
            if at is not None and at.bounds is not None:
                yield figure, at


def outside_of_figures() -> list[str]:
    """Print each bounded figure; those that lie outside and of which the table has no reason."""
    outside = []
    for figure, at in bounded(sources()):
        assert at.bounds is not None
        least, most = at.bounds
        published = readable_size(round(float(figure.published) * UNITS[figure.unit]))
        is_within = figure.is_within(at.bounds)
        print(f"{figure!s:<60} {readable_size(least):>9} to {readable_size(most):>9}", end="  ")
        named = ", of which the table has a reason" if figure.reason else ""
        outcome = "" if is_within else f"outside{named}"
        print(f"published {published:>9}", outcome, flush=True)
        if not is_within and not figure.reason:
            outside.append(str(figure))
    return outside


def outside_of_recordings() -> list[str]:
    """Print each recording that has a program; those whose peaks are others than the simulated.

    All memory of their programs is counted. Only the memory that compilation takes is not.
    """
    outside = []
    for name, trace in recordings():
        comparison = compare(name, trace)
        if comparison is None:
            continue
        pairs = list(zip(comparison.recorded, comparison.simulated, strict=True))
        if all(recorded == simulated for recorded, simulated in pairs):
            print(f"{name:<60} equal", flush=True)
        elif not comparison.total and all(recorded >= simulated for recorded, simulated in pairs):
            print(f"{name:<60} at least, with the compiler", flush=True)
        else:
            print(f"{name:<60} outside", flush=True)
            outside.append(name)
    return outside


if __name__ == "__main__":
    arguments(__doc__)
    sys.path.insert(0, str(ROOT / "test"))
    if found := outside_of_figures() + outside_of_recordings():
        sys.exit(f"outside of their bounds: {', '.join(found)}")
