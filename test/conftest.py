"""Fixtures that hold for every test: what a test found, it gives back."""

from __future__ import annotations

import ctypes
import gc
import operator
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import settings
from support.blind import hide_simulations
from support.forked_trials import NEW_PYTHON, ForkedTrial
from support.python_process import run_python
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.fitting import child
from pytorch_memlab.reporter import names as tensor_names
from pytorch_memlab.simulation.machine import active

_M_MMAP_THRESHOLD = -3
"""Of ``mallopt``: the size from which a block goes back to the system when it is freed. glibc
raises it while a process runs; tests that read resident memory need it low."""

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 2**16)

# One seed for each property, and no deadlines, which a busy machine misses.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "hide simulations from the profiler: it takes the path of a real GPU"
    parser.addoption("--blind", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--blind"):
        hide_simulations()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Blind, a test that knows the simulation must fail: none is listed without need."""
    for item in items if config.getoption("--blind") else ():
        mark = item.get_closest_marker("knows_simulation")
        if mark is not None:
            (reason,) = mark.args
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


_NEW_PROCESS = "PYTORCH_MEMLAB_TEST_IN_NEW_PROCESS"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that leaves something behind in a new process, where nothing comes after it."""
    if pyfuncitem.get_closest_marker("new_process") is None or _NEW_PROCESS in os.environ:
        return None
    blind = ["--blind"] if pyfuncitem.config.getoption("--blind") else []
    file, *names = pyfuncitem.nodeid.split("::")
    test = "::".join([str(pyfuncitem.config.rootpath / file), *names])
    finished = run_python(
        ["-m", "pytest", "-q", *blind, test],
        cwd=pyfuncitem.config.rootpath,
        env={**os.environ, _NEW_PROCESS: "1"},
    )
    assert finished.returncode == 0, finished.stdout
    return True


# Each core runs a test: more threads of a test would wait for those of the others.
torch.set_num_threads(1)

# Tests have the figures of every release: from torch 2.15 on it keeps no workspaces of itself.
os.environ.setdefault("TORCH_CUBLAS_WORKSPACE_CACHE", "1")

# A shell starts background jobs with Ctrl-C ignored, and Python keeps that: tests that send one
# would wait for it in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# torch replaces this itself when its compiler is first imported.
_TORCHS_OWN = {"torch.manual_seed"}
_PATCHED = [torch, torch.cuda, torch.cuda.memory, torch.cuda.random, torch._C, torch.Tensor]
_PATCHED += [torch.UntypedStorage, torch.autograd, threading.Thread, torch.version]


@pytest.fixture(scope="session", autouse=True)
def _temporary_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Files that a command leaves for its user, as ``fit`` does, go with those of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(tempfile, "tempdir", None)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _new_pythons_are_forks() -> Iterator[None]:
    """Trials do not wait for another import of torch, unless a test asks for ``new_pythons``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child, "_NewPython", ForkedTrial)
        yield


@pytest.fixture
def new_pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start new Pythons where a user gets them."""
    monkeypatch.setattr(child, "_NewPython", NEW_PYTHON)


def _names() -> list[tuple[list[str], list[Any]]]:
    """The patched owners' names and values, taken 9,000 times: lists are made twice as fast."""
    return [(list(vars(owner)), list(vars(owner).values())) for owner in _PATCHED]


def _monitoring_tools() -> list[str | None]:
    monitoring = getattr(sys, "monitoring", None)
    return [] if monitoring is None else [monitoring.get_tool(i) for i in range(6)]


def _changed(before: list[tuple[list[str], list[Any]]]) -> list[str]:
    changed = {
        f"{owner.__name__}.{name}"
        for owner, (names, values) in zip(_PATCHED, before, strict=True)
        for name in _names_that_differ(names, values, vars(owner))
    }
    return sorted(changed - _TORCHS_OWN)


def _names_that_differ(names: list[str], values: list[Any], now: Mapping[str, Any]) -> set[str]:
    if list(now) == names and all(map(operator.is_, now.values(), values)):  # the usual case
        return set()
    old = dict(zip(names, values, strict=True))
    # A module that a test imports is a new attribute, which is no patch.
    return {
        name
        for name in {*old, *now}
        if not name.startswith("__")
        and old.get(name) is not now.get(name)
        and not isinstance(now.get(name), type(sys))
    }


@pytest.fixture(autouse=True, scope="module")
def the_heap_of_others_is_frozen() -> None:
    """Keep what was made before a file of tests out of each garbage collection and search."""
    _freeze()


def _freeze() -> None:
    gc.collect()
    gc.freeze()


@pytest.fixture
def short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches for names of tensors end early: variables of pytest lead to all tests."""
    monkeypatch.setattr(tensor_names, "LOOKED_INTO", 500)


@pytest.fixture
def freeze() -> Iterator[Callable[[], None]]:
    """Put what there is under ``gc.freeze()``, where nothing is found, until the test ends."""
    yield _freeze
    gc.unfreeze()
    _freeze()


def _recordings() -> int:
    """Recordings of histories that are on."""
    module = sys.modules.get("pytorch_memlab.history.program")
    return 0 if module is None else module.program._users


def _references(argument: object) -> int:
    return sys.getrefcount(argument)


def _references_in_a_call() -> int:
    """One more than usual while another frame evaluator than Python's runs functions."""
    return _references(object())


@pytest.fixture(autouse=True)
def everything_is_given_back() -> Iterator[None]:
    """Tracer, modes, patched names and peaks are after a test what they were before it."""
    tracers = (sys.gettrace(), threading.gettrace(), _monitoring_tools())
    names = _names()
    default_device = torch.empty(0).device
    watching = uncaught._watching
    ctrl_c = signal.getsignal(signal.SIGINT)
    references = _references_in_a_call()
    excepthook = sys.excepthook
    yield
    sys.excepthook = excepthook  # init_process_group leaves one that calls the one before it
    from pytorch_memlab.line_profiler.profile import global_line_profiler

    global_line_profiler.clear()
    global_line_profiler.target_gpu = None
    if global_line_profiler.enabled:
        global_line_profiler.disable()
    global_line_profiler._is_off = False
    assert active.machine is None
    assert uncaught._watching == watching
    assert _recordings() == 0
    assert signal.getsignal(signal.SIGINT) is ctrl_c
    assert (sys.gettrace(), threading.gettrace(), _monitoring_tools()) == tracers
    assert _get_current_dispatch_mode_stack() == []
    assert _get_current_function_mode_stack() == []
    assert torch.empty(0).device == default_device
    assert _changed(names) == []
    assert torch.zeros(1).device.type == "cpu"
    assert _references_in_a_call() == references or _NEW_PROCESS in os.environ
