"""Messages do not repeat an argument that is longer than a message should be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytorch_memlab import LineProfiler, MemReporter, profile_every, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError

LONG = "z" * 100_000
HUGE: Any = 10**5000  # Python refuses to print it


def work() -> None:
    """Is profiled."""


@pytest.mark.parametrize(
    "call",
    [
        lambda: simulate(LONG),
        lambda: simulate("24GiB", context=LONG),
        lambda: simulate("24GiB", context=-HUGE),
        lambda: simulate("24GiB", strict=LONG),  # type: ignore[arg-type]
        lambda: LineProfiler(work).display(columns=LONG),
        lambda: LineProfiler(work).display(LONG),
        lambda: LineProfiler(target_gpu=LONG),
        lambda: profile_every(-HUGE),
        lambda: profile_every(LONG),
        lambda: MemReporter().report(device=LONG),
    ],
)
def test_messages_stay_short(call: Callable[[], object]) -> None:
    with pytest.raises(UsageError) as raised:
        call()
    message = str(raised.value)
    assert len(message) < 1000
    assert f"{'z' * 90}" in message or "an int of 16610 bits" in message


def test_a_long_name_on_the_command_line(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "script.py"
    script.write_text("def f(): pass\n")
    assert main(["run", "-f", LONG, str(script)]) == 2
    assert "there is no function zzz" in (said := capsys.readouterr().err)
    assert len(said) < 800


@pytest.mark.parametrize("name", ["context", "others"])
def test_a_size_beyond_all_integers_of_cuda_is_refused(name: str) -> None:
    with pytest.raises(UsageError) as raised, simulate("24GiB", **{name: 10**400}):
        pass
    assert str(raised.value) == (
        f"{name} is a size such as '450MiB', or bytes, not an int of 1329 bits"
    )
