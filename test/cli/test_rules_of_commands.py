"""Rules of commands, each by itself and in this process: words for ranks, notices after errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pytorch_memlab import devices
from pytorch_memlab.advice.around_program import does_not_apply
from pytorch_memlab.advice.tried import TriedRemedy
from pytorch_memlab.cli import notices
from pytorch_memlab.cli.parser import CommandParser
from pytorch_memlab.cli.run.words import words_of
from pytorch_memlab.render import remedies


def test_options_become_the_words_of_a_rank_and_those_by_default_do_not():
    parser = CommandParser("run", "Runs.")
    parser.add_argument("--history", action="store_true")
    parser.add_argument("--blind", action="store_true")
    parser.add_argument("--gpu")
    parser.add_argument("--save-every")
    parser.add_argument("-o", "--output", dest="outputs", action="append")
    parser.add_argument("--columns", type=lambda text: text.split(","))
    words = ["--history", "--gpu", "24GiB", "-o", "a", "-o", "b", "--columns", "peak,kept"]
    options = parser.parse_args(words)
    assert list(words_of(options, parser)) == [
        "--history",
        "--gpu=24GiB",
        "--output=a",
        "--output=b",
        "--columns=peak,kept",
    ]


@pytest.mark.parametrize(
    ("reads", "told"), [(True, ["run without --dry-run"]), (False, []), (None, [])]
)
def test_an_error_after_assumed_values_says_how_to_have_them_computed(reads, told, monkeypatch):
    machine = None if reads is None else SimpleNamespace(data_dependent_reads=reads)
    heard: list[str] = []
    monkeypatch.setattr(devices, "simulated_machine", lambda: machine)
    monkeypatch.setattr(notices, "tell_assumed_values", heard.append)
    for error in (ValueError("bad"), torch.OutOfMemoryError("full"), KeyboardInterrupt()):
        try:
            raise error
        except BaseException:
            notices.tell_next_steps(["text"])
    assert heard == told


class _CannotTellError(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_the_error_of_a_program_that_fails_to_tell_its_message_stays_its_error():
    def fail() -> None:
        try:
            raise _CannotTellError
        finally:
            notices.tell_next_steps(["text"])

    with pytest.raises(_CannotTellError):
        fail()


def test_the_reason_of_a_remedy_that_does_not_apply_fills_the_lines_and_not_more():
    reason = " ".join("a" * 80)
    remedy = TriedRemedy(
        name="shard", what_it_changes="", finding=does_not_apply(reason), verdict=None
    )
    unchanged = SimpleNamespace(
        reserved_peak=2**20, fits=True, trial=SimpleNamespace(mark=""), room=0
    )
    tried = SimpleNamespace(unchanged=unchanged, tried=(remedy,), step_flops=0)
    lines = list(remedies._table(tried))[2:]  # type: ignore[arg-type]
    text = f"does not apply: {reason}"
    assert " ".join(line[22:] for line in lines) == text
    assert lines[0].startswith(f"{'shard':20}  does")
    # The next word would not have had room.
    assert all(len(line) <= remedies.WIDTH < len(f"{line} a") for line in lines[:-1])
