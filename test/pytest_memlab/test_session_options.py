"""``--memlab``, ``--memlab-save``, ``--memlab-baseline``, ``--memlab-fail-on-increase``."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from inner_runs import section

from pytorch_memlab.saved.tests_file import load

pytest_plugins = "pytester"

TESTS = """
def step(size):
    x = torch.ones(size << 18, device="cuda")
    return x * 2

@pytest.mark.gpu_memory_limit("64 MiB", gpu="a100")
def test_small():
    step(1)

@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.gpu_memory_limit("64 MiB", gpu="a100")
def test_sizes(size):
    step(size)

def test_plain():
    pass
"""

SUMMARY = """\
peak of the memory in use while the test ran, on simulated NVIDIA A100-SXM4-80GB
    peak     limit  test
10.0 MiB  64.0 MiB  test_it.py::test_sizes[5]
 6.0 MiB  64.0 MiB  test_it.py::test_sizes[3]
 2.0 MiB  64.0 MiB  test_it.py::test_small
"""

COMPARED = """\
peak of the memory in use while the test ran, on simulated NVIDIA A100-SXM4-80GB
    peak     limit    change          test
18.0 MiB  64.0 MiB       new          test_it.py::test_sizes[6]
 9.0 MiB  64.0 MiB  +3.0 MiB  +50.0%  test_it.py::test_sizes[3]
 3.0 MiB  64.0 MiB  +1.0 MiB  +50.0%  test_it.py::test_small
"""


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_the_summary(run):
    result = run(TESTS, "--memlab")

    assert section(result.stdout.str(), "GPU memory") == SUMMARY


def test_without_options_nothing_is_said(run):
    assert "GPU memory" not in run(TESTS).stdout.str()


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param((), marks=pytest.mark.knows_simulation("the words that name a simulated GPU")),
        ("-p", "xdist", "-n2"),  # other processes, which are not blind
    ],
)
def test_the_saved_file_is_the_same_with_xdist(workers, run, pytester, monkeypatch):
    if workers:
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    result = run(TESTS, "--memlab", "--memlab-save", "tests.json", *workers)

    result.assert_outcomes(passed=4)
    assert section(result.stdout.str(), "GPU memory").startswith(SUMMARY)
    text = (pytester.path / "tests.json").read_text()
    tests = load(text, "tests.json")
    assert {name.partition("::")[2]: one.peak >> 20 for name, one in tests.items()} == {
        "test_sizes[3]": 6,
        "test_sizes[5]": 10,
        "test_small": 2,
    }
    assert json.loads(text)["tests"]["test_it.py::test_small"]["holders"] == [
        {
            "file": "test_it.py",
            "line": line,
            "function": "step",
            "code": code,
            "size": 1 << 20,
        }
        for line, code in ((4, 'x = torch.ones(size << 18, device="cuda")'), (5, "return x * 2"))
    ]


@pytest.mark.parametrize("option", [(), ("--memlab-private",)])
def test_the_saved_file_has_paths_from_the_project_or_the_home(run, pytester, monkeypatch, option):
    home = pytester.path / "telling-home"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "of_home.py").write_text(
        "import torch\ndef make():\n    return torch.ones(1 << 18, device='cuda')\n"
    )
    project = pytester.mkdir("project")
    (project / "in_project.py").write_text(
        "import torch\ndef make():\n    return torch.ones(1 << 18, device='cuda')\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.syspath_prepend(home / "lib")
    monkeypatch.syspath_prepend(project)
    monkeypatch.chdir(project)
    test = """\
        def test_both():
            import in_project, of_home
            kept = [in_project.make(), of_home.make()]
        """
    (project / "test_both.py").write_text(dedent(test))
    save = ("--memlab-gpu=t4", "--memlab-save", "tests.json", *option)
    run("", *save, "--rootdir", str(project)).assert_outcomes(passed=1)

    text = (project / "tests.json").read_text()
    assert str(pytester.path) not in text
    holders = json.loads(text)["tests"]["test_both.py::test_both"]["holders"]
    assert {(one["file"], one["code"]) for one in holders} == {
        (name, "return torch.ones(1 << 18, device='cuda')")
        for name in ("in_project.py", "of_home.py" if option else "~/lib/of_home.py")
    }


def test_a_private_file_needs_a_name(run):
    result = run(TESTS, "--memlab-private")
    assert "--memlab-private is for --memlab-save FILE: give that too" in result.stderr.str()


GREW = """\
GPU memory grew from 6.0 MiB to 9.0 MiB (+50.0%), more than
  --memlab-fail-on-increase 10%
  peak 9.0 MiB in use on cuda:0 (simulated NVIDIA A100-SXM4-80GB)

lines that hold more or less:
    +3.0 MiB  test_it.py:7  step
              y = x + 1
"""


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_baseline(run):
    run(TESTS, "--memlab-save", "main.json")
    changed = TESTS.replace("return x * 2", "y = x + 1\n    return x * 2").replace(
        "[3, 5]", "[3, 6]"
    )
    changed = "\n# every line moves\n" + changed

    assert (
        section(run(changed, "--memlab-baseline=main.json").stdout.str(), "GPU memory") == COMPARED
    )
    result = run("", "--memlab-baseline=main.json", "--memlab-fail-on-increase=10%")
    result.assert_outcomes(passed=2, failed=2)
    assert section(result.stdout.str(), "test_sizes[3]") == GREW
    run("", "--memlab-baseline=main.json", "--memlab-fail-on-increase=50%").assert_outcomes(
        passed=4
    )
    run("", "--memlab-baseline=main.json", "--memlab-fail-on-increase=1MiB").assert_outcomes(
        passed=3, failed=1
    )


def test_a_baseline_of_another_gpu_is_not_compared(run):
    run(TESTS, "--memlab-save", "main.json")
    result = run(
        TESTS.replace("a100", "t4").replace("<< 18", "<< 19"),
        "--memlab-baseline=main.json",
        "--memlab-fail-on-increase=1%",
    )

    result.assert_outcomes(passed=4)
    assert "4.0 MiB  64.0 MiB  other GPU    test_it.py::test_small\n" in result.stdout.str()


def test_a_session_that_breaks_off_leaves_the_saved_file(run, pytester):
    file = pytester.path / "main.json"
    run(TESTS, "--memlab-save=main.json")
    before = file.read_text()

    broken = run("1 / 0\n", "--memlab-save=main.json")
    assert file.read_text() == before
    assert "no test ran: main.json is as it was\n" in broken.stdout.str()

    run("def test_plain(): pass\n", "--memlab-save=main.json")
    assert load(file.read_text(), "main.json") == {}


def test_a_baseline_of_other_tests(run):
    run(TESTS, "--memlab-save=main.json")
    result = run(TESTS.replace("def test_", "def test_other_"), "--memlab-baseline=main.json")

    assert section(result.stdout.str(), "GPU memory").endswith(
        "2.0 MiB  64.0 MiB     new    test_it.py::test_other_small\n"
        "no test is in the baseline: both runs need one folder of the project (rootdir), so write"
        " --memlab-baseline=FILE with =\n"
    )


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (None, ["--memlab-baseline=gone.json"], "cannot read gone.json: No such file or directory"),
        (
            "{",
            ["--memlab-baseline=main.json"],
            "main.json is no file of --memlab-save: it is no JSON; --memlab-save writes it again",
        ),
        ("{}", ["--memlab-baseline=main.json"], "main.json is JSON, but no file of --memlab-save"),
        (
            '{"format": "pytorch_memlab.tests", "version": 1, "tests": {"a": {}}}',
            ["--memlab-baseline=main.json"],
            "main.json is damaged: it has no 'device'",
        ),
        (
            '{"format": "pytorch_memlab.tests", "version": 9, "written_by": "7.0"}',
            ["--memlab-baseline=main.json"],
            "main.json was written by pytorch_memlab 7.0, this is 1.0.0.dev3: upgrade to read it",
        ),
        (
            None,
            ["--memlab-fail-on-increase=5%"],
            "--memlab-fail-on-increase compares with a baseline: give --memlab-baseline FILE",
        ),
        (
            None,
            ["--memlab-fail-on-increase=much"],
            "--memlab-fail-on-increase is a share such as 5% or a size such as 64MiB, not 'much'",
        ),
        (
            None,
            ["--memlab-save=no/such/file.json"],
            "cannot write no/such/file.json: no such folder, or no right to write there",
        ),
        (None, ["--memlab-gpu=a1000"], "unknown GPU 'a1000' (did you mean *"),
    ],
)
def test_options_that_cannot_be_carried_out(text, options, message, run, pytester):
    if text is not None:
        (pytester.path / "main.json").write_text(text)
    result = run(TESTS, *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {message.replace('[', '[[]')}"])


UNMARKED = """
import unittest

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
kept = torch.ones(1 << 18, device=DEVICE)

@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gpu():
    assert torch.cuda.get_device_name() == "Tesla T4"
    torch.ones(1 << 18, device=DEVICE)

class TestCase(unittest.TestCase):
    def test_method(self):
        torch.ones(2 << 18, device=DEVICE)
"""

OF_ALL = """\
peak of the memory in use while the test ran, on simulated Tesla T4
   peak  test
3.0 MiB  test_it.py::TestCase::test_method
2.0 MiB  test_it.py::test_gpu
"""


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_gpu_for_the_whole_session_measures_tests_without_marks(run):
    result = run(UNMARKED, "--memlab-gpu=t4", "--memlab")

    result.assert_outcomes(passed=2)
    assert section(result.stdout.str(), "GPU memory") == OF_ALL


def test_no_test_was_measured(run):
    result = run("def test_plain(): pass\n", "--memlab")

    assert section(result.stdout.str(), "GPU memory") == (
        "no test was measured: none that ran has a mark gpu_memory_limit or gpu_leaks, or uses"
        " gpu_memory; --memlab-gpu GPU measures all\n"
    )


def test_the_first_failure_and_the_last_ones(run):
    tests = TESTS.replace("64 MiB", "4 MiB")

    stopped = run(tests, "-x")
    stopped.assert_outcomes(passed=1, failed=1)
    run(tests).assert_outcomes(passed=2, failed=2)
    again = run(tests, "--lf")
    again.assert_outcomes(failed=2)
