"""A test that runs out of memory runs again with each remedy, under the options of its session."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab.advice import trials
from pytorch_memlab.errors import MemlabError
from pytorch_memlab.pytest_memlab import measuring
from pytorch_memlab.pytest_memlab.repeated_test import RepeatedTest, repeated_test

pytest_plugins = "pytester"

TESTS = """\
import os

@pytest.fixture
def losses():
    return []

@pytest.mark.gpu_memory_limit("60MiB", gpu="64MiB")
def test_train(losses):
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU()).cuda()
    for step in range(60):
        loss = net(torch.randn(512, 256, device="cuda")).square().mean()
        losses.append(loss)
    open("losses.txt", "w").write("written by a trial")
    assert losses[0].item() > losses[-1].item()
"""


@pytest.fixture
def long_trials(monkeypatch):
    monkeypatch.setattr(trials, "_LEAST_SECONDS", 250.0)
    monkeypatch.setattr(trials, "MOST_SECONDS", 250.0)
    monkeypatch.setattr(measuring, "MOST_SECONDS", 250.0)


@knows_saved_tensors
@pytest.mark.knows_simulation("remedies are tried on a simulated GPU")
@pytest.mark.usefixtures("long_trials")
def test_the_failure_has_tried_remedies(run, pytester):
    result = run(TESTS, "-k", "test_train")
    result.assert_outcomes(failed=1)
    text = result.stdout.str().partition("- GPU memory -")[2]
    advice = text.partition("what helps, the most likely cause first\n")[2]
    assert "       losses.append(loss.detach())\n" in advice
    [(before, after)] = re.findall(r"tried: peak (\S+) MiB -> (\S+) MiB, runs to its end", advice)
    assert float(before) > 64 > float(after)
    assert "losses.append(loss)\n" in (pytester.path / "test_it.py").read_text()
    assert not (pytester.path / "losses.txt").exists()


@knows_saved_tensors
def test_trials_can_be_left_out(run):
    text = run(TESTS, "--memlab-no-try").stdout.str()
    assert "what helps, the most likely cause first (not tried)\n" in text


@pytest.mark.knows_simulation("remedies are tried on a simulated GPU")
def test_a_session_has_time_for_some_trials(run, monkeypatch):
    monkeypatch.setattr(measuring, "MOST_SECONDS", 0.75)
    text = run(TESTS).stdout.str()
    assert "not tried: the trials of this session have taken their 1 s\n" in text


@pytest.mark.knows_simulation("remedies are tried on a simulated GPU")
@pytest.mark.usefixtures("long_trials")
def test_a_test_that_fails_otherwise_when_it_runs_again_says_so(run):
    fails = "    if os.path.exists('seen'): raise OSError('it is there')\n    open('seen', 'w')\n"
    result = run(TESTS.replace("    for step", f"{fails}    for step"))
    result.assert_outcomes(failed=1)
    words = " ".join(result.stdout.str().split())
    reason = "not tried: a second run of the program fails at test_it.py:11: OSError: it is there"
    assert reason in words


def test_the_options_of_the_session_hold_without_its_other_tests(tmp_path):
    plugins = SimpleNamespace(has_plugin=lambda name: name == "xdist")
    params = SimpleNamespace(args=("-q", "test", "--slow", "-n", "4"))
    config = SimpleNamespace(args=["test"], invocation_params=params, pluginmanager=plugins)
    item = SimpleNamespace(config=config, path=tmp_path / "a.py", nodeid="test/a.py::T::test_x[1]")
    target = repeated_test(item)
    assert target.node == f"{tmp_path / 'a.py'}::T::test_x[1]"
    assert target.name == "test_x[1]"
    own = ("--assert=plain", "--capture=no", "-p", "no:cacheprovider", "-n0")
    assert target.arguments == ("-q", "--slow", "-n", "4", *own)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("test_passes", None),
        ("test_asserts_a_value", None),
        ("test_is_gone", "pytest ended with exit status 4"),
    ],
)
def test_a_test_that_asserts_a_value_has_run_to_its_end(name, message, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    path = tmp_path / f"{name}_again.py"
    path.write_text("def test_passes():\n    pass\ndef test_asserts_a_value():\n    assert 0.0\n")
    target = RepeatedTest(f"{path}::{name}", ("-q", "--assert=plain", "-p", "no:cacheprovider"))
    with target.started(()) as run:
        if message is None:
            run()
        else:
            with pytest.raises(MemlabError, match=f"^{message}$"):
                run()
