"""Published figures as data: each source has ``figures.toml`` and ``predictions.json``."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parent
UNITS: Final = {
    "B": 1,
    "MB": 10**6,
    "GB": 10**9,
    "MiB": 2**20,
    "GiB": 2**30,
}
WITHOUT_REASON: Final = Decimal("0.01")
"""The part by which a prediction may differ without a reason in the table."""

NOT_COUNTED: Final = "not counted"
"""Of the counters of a run, the most bytes that one call takes and that are not counted."""

COUNTS: Final = (
    "peak allocated",
    "peak reserved",
    "peak active",
    "allocated",
    "reserved",
    "nvidia-smi",
)
KINDS: Final = (
    "training in float32",
    "training with autocast",
    "training in bfloat16",
    "CNN with cuDNN",
    "diffusion",
    "LoRA and QLoRA",
    "inference with a KV cache",
    "inference without a cache",
    "models alone",
    "DDP",
    "FSDP1",
    "FSDP2",
    "HSDP",
    "TP",
    "PP",
    "CPU offload",
    "ZeRO 1",
    "ZeRO 2",
    "ZeRO 3",
    "activation checkpointing",
    "optimizers",
    "compiled programs",
    "single kernels",
)
"""What a figure is a witness of. Those without one are in the table too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A published figure.

    Args:
        source: its folder.
        name: of the figure.
        published: the figure with all its digits.
        unit: a key of ``UNITS``.
        counts: one of ``COUNTS``.
        published_gpu: the GPU, as published.
        torch: the release of PyTorch, as published.
        gpu: the preset that stands for it.
        call: the function of ``program.py``.
        arguments: of the function.
        environment: variables of its process, such as ``RANK``.
        context: size of the CUDA context, where it is published too.
        value: the key of what the function returns; the counter that ``counts`` names without it.
        kinds: some of ``KINDS``.
        reason: why the prediction differs by more than 1 %.
    """

    source: str
    name: str
    published: str
    unit: str
    counts: str
    published_gpu: str
    torch: str
    gpu: str
    call: str
    kinds: tuple[str, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    context: str | None = None
    value: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        checks = [("unit", self.unit, UNITS), ("counts", self.counts, COUNTS)]
        for key, value, values in [*checks, *(("kinds", kind, KINDS) for kind in self.kinds)]:
            if value not in values:
                raise ValueError(f"{self}: {key} is none of {', '.join(values)}")

    def __str__(self) -> str:
        return f"{self.source}/{self.name}"

    @property
    def run(self) -> str:
        """The settings of its process, which other figures may share."""
        settings = [
            self.source,
            self.call,
            self.arguments,
            self.environment,
            self.gpu,
            self.context,
        ]
        return json.dumps(settings, sort_keys=True)

    def bounds(self, counters: Mapping[str, int]) -> tuple[int, int] | None:
        """The least and the most bytes that the program may take; None if all of them are known.

        See Note [Room for what is not counted] in ``profiles/device_verdicts.py``: no call needs
        more than the largest one. A cache with larger blocks may hold fewer of them, so that what
        is reserved has the bytes in use at the peak as its lower bound. A program of which an input
        is not published returns what it takes with the smallest one, and the ``most`` with the
        largest.
        """
        key = self.value or self.counts
        most = counters.get(f"most {key}")
        if self.counts == "allocated" or (most is None and NOT_COUNTED not in counters):
            return None
        least = counters.get(f"least {key}", counters[key])
        return least, (counters[key] if most is None else most) + counters.get(NOT_COUNTED, 0)

    def is_within(self, bounds: tuple[int, int]) -> bool:
        """True if what was published lies within bounds.

        As far as it has digits, and but for the part by which programs of other releases may differ
        without a reason.
        """
        published, half = Decimal(self.published), self._half_digit
        least, most = (Decimal(bound) / UNITS[self.unit] for bound in bounds)
        return (
            least * (1 - WITHOUT_REASON) - half <= published <= most * (1 + WITHOUT_REASON) + half
        )

    @property
    def _half_digit(self) -> Decimal:
        return Decimal(1).scaleb(int(Decimal(self.published).as_tuple().exponent)) / 2

    def error(self, predicted: int) -> float:
        """The part by which a prediction in bytes differs."""
        published = float(self.published) * UNITS[self.unit]
        return (predicted - published) / published

    def agrees(self, predicted: int) -> bool:
        """True if a prediction in bytes has all digits of the figure."""
        difference = Decimal(predicted) / UNITS[self.unit] - Decimal(self.published)
        return abs(difference) <= self._half_digit


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predictions of a figure.

    Args:
        blind: bytes of the first prediction, before any look for a reason; it stays.
        now: bytes of the last prediction.
        bounds: least and most bytes, with all that the last prediction does not count.
    """

    blind: int
    now: int
    bounds: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Who published, and what.

    Args:
        name: of the folder.
        title: for the table.
        link: with the commit.
        notes: what the program reproduces, and how.
        figures: in their order.
    """

    name: str
    title: str
    link: str
    notes: str
    figures: tuple[Figure, ...]

    def predictions(self) -> dict[str, Prediction]:
        """Predictions by the name of the figure."""
        path = self._predictions
        recorded = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        predictions = {}
        for name, values in recorded.items():
            bounds = values.pop("bounds", None)
            predictions[name] = Prediction(**values, bounds=bounds and tuple(bounds))
        return predictions

    def record(
        self,
        predicted: Mapping[str, int],
        bounds: Mapping[str, tuple[int, int] | None] | None = None,
    ) -> None:
        """Keep predictions and their bounds; the first of a figure stays its blind one."""
        known = self.predictions()
        for name, size in predicted.items():
            blind = known[name].blind if name in known else size
            known[name] = Prediction(blind, size, (bounds or {}).get(name))
        ordered = {
            figure.name: {key: value for key, value in asdict(known[figure.name]).items() if value}
            for figure in self.figures
            if figure.name in known
        }
        text = ",\n".join(f"  {json.dumps(name)}: {json.dumps(at)}" for name, at in ordered.items())
        self._predictions.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")

    @property
    def _predictions(self) -> Path:
        return FOLDER / self.name / "predictions.json"


_OF_FIGURES: Final = {entry.name for entry in fields(Figure)}
_OF_SOURCES: Final = {"title", "link", "notes"}


def load(name: str) -> Source:
    """The source in a folder.

    Raises:
        ValueError: a key of ``figures.toml`` is unknown, or a figure is there twice.
    """
    table = tomllib.loads((FOLDER / name / "figures.toml").read_text(encoding="utf-8"))
    entries = table.pop("figures")
    about = {key: table.pop(key) for key in _OF_SOURCES}
    unknown = {*table, *(key for entry in entries for key in entry)} - _OF_FIGURES
    if unknown:
        raise ValueError(f"{name}: figures have no {', '.join(sorted(unknown))}")
    figures = tuple(Figure(source=name, **(table | entry)) for entry in entries)
    if len({figure.name for figure in figures}) < len(figures):
        raise ValueError(f"{name}: two figures have the same name")
    return Source(name=name, figures=figures, **about)


def sources() -> Iterator[Source]:
    """All sources, in the order of their names."""
    for path in sorted(FOLDER.glob("*/figures.toml")):
        yield load(path.parent.name)
