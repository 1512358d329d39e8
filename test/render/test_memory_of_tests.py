"""The report on tests that a session of pytest ends with, and the message of a test that leaks."""

from __future__ import annotations

from peaks import MIB, SMALL

from pytorch_memlab.profiles.changed_tests import ChangedTest, MeasuredTest
from pytorch_memlab.render import memory_of_tests


def measured(number: int) -> ChangedTest:
    test = MeasuredTest("cuda:0", "H100", True, number * MIB, 1024 * MIB, 0, False, None, ())
    return ChangedTest(f"test_a.py::test_{number}", None, test)


def test_the_25_highest_peaks_are_listed_and_the_others_counted():
    lines = list(memory_of_tests.summary([measured(n) for n in range(1, 28)], has_baseline=False))
    assert [line.split()[-1] for line in lines[2:-1]] == [
        f"test_a.py::test_{number}" for number in range(27, 2, -1)
    ]
    assert lines[-1] == "2 more: --memlab-save FILE keeps all"
    whole = list(memory_of_tests.summary([measured(n) for n in range(1, 26)], has_baseline=False))
    assert len(whole) == 2 + 25
    assert whole[-1].endswith("test_a.py::test_1")


def test_what_holds_a_leak_adds_up():
    text = memory_of_tests.leak(0, 16 * MIB, 5, 0, SMALL)
    assert text.endswith(
        """
as: 8.0 MiB parameters, 4.0 MiB activations saved for backward, 2.0 MiB
  temporaries, 1.0 MiB gradients, 1.0 MiB more
in modules: 5.0 MiB Net.0, 2.0 MiB Net.1"""
    )
