"""The pytest plugin: options, marks and a fixture. The rest loads when a test asks for it.

Tests that have neither a mark of this plugin nor its fixture run as they do without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from .pytest_memlab.selection import MARKS, asks_for_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .pytest_memlab.gpu_memory import GPUMemoryOfTest

__all__ = [
    "gpu_memory",
    "pytest_addoption",
    "pytest_collection_modifyitems",
    "pytest_configure",
]

_OPTIONS: Final[dict[str, dict[str, str]]] = {
    "--memlab": {
        "action": "store_true",
        "help": "show the peak of GPU memory of each test that has a mark of pytorch-memlab, or"
        " uses gpu_memory",
    },
    "--memlab-save": {"metavar": "FILE", "help": "write these peaks to a JSON file"},
    "--memlab-private": {
        "action": "store_true",
        "help": "leave folders outside the project out of that file",
    },
    "--memlab-baseline": {
        "metavar": "FILE",
        "help": "compare the peaks with those of a file that --memlab-save wrote",
    },
    "--memlab-fail-on-increase": {
        "metavar": "SHARE|SIZE",
        "help": "fail a test whose peak grew by more than this since the baseline, such as 5%% or"
        " 64MiB",
    },
    "--memlab-no-try": {
        "action": "store_true",
        "help": "name remedies for a test that runs out of GPU memory without trying them",
    },
    "--memlab-gpu": {
        "metavar": "GPU",
        "help": "simulate this GPU, such as a100 or 24GiB, in the whole session, and measure all"
        " tests, also those without a mark",
    },
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    group = parser.getgroup("memlab", "GPU memory (pytorch-memlab)")
    for name, settings in _OPTIONS.items():
        group.addoption(name, **settings)


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marks; load what the options need."""
    for line in MARKS.values():
        config.addinivalue_line("markers", line)
    if not any(config.getoption(name) for name in _OPTIONS):
        return
    _check()
    from .pytest_memlab.session import begin

    begin(config)


def pytest_collection_modifyitems(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """Load what measures, if a test asks for it."""
    if any(map(asks_for_memory, items)):
        _check()
        from .pytest_memlab.measuring import register

        register(config)


def _check() -> None:
    from ._common.process.switch import is_switched_off
    from .errors import MemlabError

    try:
        is_switched_off()
    except MemlabError as error:
        raise pytest.UsageError(str(error)) from None
    if pytest.version_tuple < (8, 0):
        raise pytest.UsageError(
            f"pytorch-memlab measures tests with pytest 8 or later, this is {pytest.__version__}"
        )


@pytest.fixture
def gpu_memory(request: Any) -> GPUMemoryOfTest:
    """GPU memory that the test uses, in bytes: ``peak``, ``in_use``, and the peak's ``holders``.

    The peak is that of the test itself, with what its fixtures hold.
    """
    from .pytest_memlab.measuring import gpu_memory_of

    return gpu_memory_of(request.node)
