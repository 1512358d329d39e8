"""Sizes as text."""

import pytest

from pytorch_memlab.utils import readable_size


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0.00B"),
        (1023, "1023.00B"),
        (1024, "1.00K"),
        (40960, "40.00K"),
        (2 * 1024**2, "2.00M"),
        (int(79.1 * 1024**3), "79.10G"),
        (3 * 1024**4, "3.00T"),
        (-40960, "-40.00K"),
        (-1, "-1.00B"),
        (512.0, "512.00B"),
        (float("nan"), ""),
        (None, ""),
    ],
)
def test_size_has_two_decimals_and_a_unit(num_bytes: float | None, text: str) -> None:
    assert readable_size(num_bytes) == text


def test_symbolic_size_is_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    class Symbolic:
        def __format__(self, spec: str) -> str:
            raise TypeError(spec)

        def __str__(self) -> str:
            return "512*s0"

    monkeypatch.setattr("pytorch_memlab.utils.calmsize", lambda _: Symbolic())
    assert readable_size(Symbolic()) == "512*s0"  # type: ignore[arg-type]
