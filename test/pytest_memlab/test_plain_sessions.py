"""Sessions that the plugin leaves as they are, and what it says where it cannot measure."""

from __future__ import annotations

import pytest

pytest_plugins = "pytester"


def test_switched_off_tests_run_plainly(run, monkeypatch):
    monkeypatch.setenv("PYTORCH_MEMLAB", "0")
    result = run(
        """
        @pytest.mark.gpu_memory_limit("wrong")
        def test_it(gpu_memory):
            assert not torch.cuda.is_available()
            assert (gpu_memory.peak, gpu_memory.in_use) == (0, 0)
        """,
        "--memlab-gpu=t4",
    )

    result.assert_outcomes(passed=1)


@pytest.mark.parametrize("options", [(), ("--memlab",), ("--memlab-gpu=t4",)])
def test_a_switch_that_is_neither_on_nor_off(options, run, monkeypatch):
    monkeypatch.setenv("PYTORCH_MEMLAB", "yes")
    result = run("def test_it(gpu_memory): pass", *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert result.errlines == ["ERROR: PYTORCH_MEMLAB is 0 (off) or 1 (on), not 'yes'", ""]


def test_the_fixture_that_comes_too_late(run):
    result = run(
        """
        def test_it(request):
            request.getfixturevalue("gpu_memory")

        @pytest.fixture
        def through_another(gpu_memory):
            return gpu_memory

        def test_other(through_another):
            torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            assert through_another.peak == 1 << 20
        """
    )

    result.assert_outcomes(failed=1, passed=1)
    assert (
        "gpu_memory measures tests that name it, or whose fixtures do: request.getfixturevalue"
        " comes too late\n"
    ) in result.stdout.str()


def test_an_older_pytest_is_told_at_once_and_only_where_a_test_asks(run, monkeypatch):
    monkeypatch.setattr(pytest, "version_tuple", (7, 4, 0))
    run("def test_it(): pass\n").assert_outcomes(passed=1)
    result = run("@pytest.mark.gpu_leaks(1)\ndef test_it(): pass\n")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    version = pytest.__version__
    message = f"pytorch-memlab measures tests with pytest 8 or later, this is {version}"
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


def test_settings_of_the_allocator_that_cannot_be_read(run, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "no_such_setting:1")
    result = run("@pytest.mark.gpu_leaks(1)\ndef test_it(): pass\ndef test_other(): pass\n")

    result.assert_outcomes(errors=1, passed=1)
    assert "no_such_setting" in result.stdout.str()


def test_marks_are_listed(run):
    shown = run("", "--markers").stdout.str()

    assert "@pytest.mark.gpu_memory_limit(size, gpu=None): fail if more than size, such as" in shown
    assert "@pytest.mark.gpu_leaks(size, gpu=None): fail if more than size stays in use" in shown
