"""``gpu_memory_limit`` and the fixture ``gpu_memory``: whole messages, and what counts."""

from __future__ import annotations

import pytest
from inner_runs import section

pytest_plugins = "pytester"

LIMIT = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(256, 1024))

    def forward(self, x):
        return (x * self.weight).exp()


@pytest.fixture
def net():
    lost = torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    return Net().cuda()


@pytest.mark.gpu_memory_limit("{size}", gpu="a100")
def test_net(net):
    x = torch.ones(256, 1024, device="cuda")
    assert net(x).sum().item() > 0
"""

OVER = """\
GPU memory is over the limit of 3.0 MiB: peak 4.0 MiB in use on cuda:0
  (simulated NVIDIA A100-SXM4-80GB)
  1.0 MiB were in use before it began, by fixtures or earlier tests

held by these lines:
     2.0 MiB   50.0%  test_it.py:9  forward
                        return (x * self.weight).exp()
     1.0 MiB   25.0%  test_it.py:15  net
                        return Net().cuda()
     1.0 MiB   25.0%  test_it.py:20  test_net
                        x = torch.ones(256, 1024, device="cuda")
as: 2.0 MiB temporaries, 1.0 MiB activations saved for backward, 1.0 MiB
  parameters
in modules: 2.0 MiB Net
"""


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_limit_that_is_passed_and_one_that_holds(run):
    # What the fixture took and gave back does not count, what it holds does.
    failed = run(LIMIT.format(size="3 MiB"))
    failed.assert_outcomes(failed=1)
    assert section(failed.stdout.str(), "test_net") == OVER

    run(LIMIT.format(size="4 MiB")).assert_outcomes(passed=1)
    run(LIMIT.format(size="4 Mib")).assert_outcomes(passed=1)  # as --gpu reads sizes


def test_the_closest_mark_counts_and_parameters_have_limits_of_their_own(run):
    result = run(
        """
        pytestmark = pytest.mark.gpu_memory_limit("1 MiB")

        @pytest.mark.gpu_memory_limit("4 MiB", gpu="t4")
        class TestClass:
            @pytest.mark.parametrize(
                "size", [4, pytest.param(8, marks=pytest.mark.gpu_memory_limit("8 MiB")), 9]
            )
            def test_of_class(self, size):
                torch.empty(size << 20, dtype=torch.uint8, device="cuda")

        def test_of_module():
            torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
        """,
        "-rfp",
    )

    outcomes = {line for line in result.outlines if line.startswith(("PASSED", "FAILED"))}
    assert {line.split(" - ")[0].replace("test_it.py::", "") for line in outcomes} == {
        "PASSED TestClass::test_of_class[4]",
        "PASSED TestClass::test_of_class[8]",
        "FAILED TestClass::test_of_class[9]",
        "FAILED test_of_module",
    }


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        (
            'gpu_memory_limit("2 Gob")',
            "gpu_memory_limit takes a size such as \"2 GiB\", or bytes, not '2 Gob'",
        ),
        ("gpu_leaks(-1)", 'gpu_leaks takes a size such as "1 MiB", or bytes, not -1'),
        (
            "gpu_memory_limit",
            (
                'gpu_memory_limit takes a size and a GPU, such as gpu_memory_limit("2 GiB",'
                ' gpu="a100"), not gpu_memory_limit()'
            ),
        ),
        (
            'gpu_leaks("1 MiB", gpus="t4")',
            (
                'gpu_leaks takes a size and a GPU, such as gpu_leaks("1 MiB", gpu="a100"),'
                " not gpu_leaks('1 MiB', gpus='t4')"
            ),
        ),
        (
            'gpu_memory_limit("2")',
            (
                "gpu_memory_limit takes a size such as \"2 GiB\", or bytes, not '2' (did you mean"
                " 2MiB or 2GiB?)"
            ),
        ),
        (
            "gpu_memory_limit(1, gpu=3)",
            'gpu_memory_limit takes a GPU such as gpu="a100" or gpu="24GiB", not 3',
        ),
        (
            'gpu_memory_limit(1, gpu="t4")\n@pytest.mark.gpu_leaks(1, gpu="l4")',
            "gpu_memory_limit has gpu='t4' and gpu_leaks has gpu='l4': a test runs on one",
        ),
    ],
)
def test_a_mark_that_cannot_be_read_is_one_line(mark, message, run):
    result = run(f"@pytest.mark.{mark}\ndef test_typo(): pass\ndef test_other(): pass\n")

    result.assert_outcomes(errors=1, passed=1)
    assert section(result.stdout.str(), "ERROR at setup of test_typo") == f"{message}\n"


def test_an_unknown_gpu(run):
    result = run('@pytest.mark.gpu_memory_limit(1, gpu="a1000")\ndef test_typo(): pass\n')

    text = section(result.stdout.str(), "ERROR at setup of test_typo")
    assert text.startswith("unknown GPU 'a1000' (did you mean a100 or ")
    assert text.count("\n") == 1


def test_a_test_that_runs_out_of_memory_fails_with_its_own_error_and_why(run):
    result = run(
        """
        @pytest.mark.gpu_memory_limit("1 MiB", gpu="1GiB")
        def test_oom():
            kept = torch.empty(600 << 20, dtype=torch.uint8, device="cuda")
            torch.empty(600 << 20, dtype=torch.uint8, device="cuda")

        @pytest.mark.gpu_memory_limit("1 GiB", gpu="1GiB")
        def test_handled():
            with pytest.raises(torch.OutOfMemoryError):
                torch.empty(2 << 30, dtype=torch.uint8, device="cuda")

        @pytest.fixture
        def large():
            return torch.empty(2 << 30, dtype=torch.uint8, device="cuda")

        @pytest.mark.gpu_memory_limit("1 GiB", gpu="1GiB")
        def test_fixture(large):
            pass
        """
    )

    result.assert_outcomes(failed=1, errors=1, passed=1)
    text = result.stdout.str()
    assert "over the limit" not in text
    assert (
        "E       torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 600.00 MiB." in text
    )
    explained = text.partition("- GPU memory -")[2]
    assert explained.count("Out of memory on cuda:0 at") == 2
    assert "Out of memory on cuda:0 at test_it.py:6, in test_oom\n" in explained
    assert " 600.0 MiB  test_it.py:5  kept = torch.empty(600 << 20" in explained
    assert "Out of memory on cuda:0 at test_it.py:15, in large\n" in explained
    assert "made no CUDA tensor" not in text
    assert result.stderr.str() == ""


def test_kinds_of_tests(run, pytester):
    pytester.makeconftest(
        """
        import asyncio, inspect, pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            if inspect.iscoroutinefunction(pyfuncitem.obj):
                asyncio.run(pyfuncitem.obj())
                return True
        """
    )
    result = run(
        """
        import asyncio, threading, unittest

        def fill(size):
            return torch.empty(size << 20, dtype=torch.uint8, device="cuda")

        @pytest.mark.gpu_memory_limit("4 MiB")
        async def test_coroutine():
            kept = fill(2)
            await asyncio.sleep(0)
            fill(3)

        @pytest.mark.gpu_memory_limit("4 MiB")
        def test_thread():
            thread = threading.Thread(target=fill, args=(5,))
            thread.start()
            thread.join()

        @pytest.mark.gpu_memory_limit("4 MiB")
        class TestCase(unittest.TestCase):
            def setUp(self):
                self.kept = fill(3)

            def test_fits(self):
                fill(1)

            def test_over(self):
                fill(2)

            def test_fails_itself(self):
                fill(2)
                self.fail("its own words")

            @unittest.expectedFailure
            def test_expected(self):
                self.fail()

            def test_skipped(self):
                self.skipTest("why")

        class TestSetup:
            def setup_method(self):
                self.kept = fill(3)

            @pytest.mark.gpu_memory_limit("4 MiB")
            def test_method(self):
                fill(2)

        @pytest.mark.gpu_memory_limit("4 MiB")
        @pytest.mark.xfail(reason="known", strict=True)
        def test_xfail():
            fill(5)

        @pytest.mark.gpu_memory_limit("4 MiB")
        @pytest.mark.skip
        def test_skip():
            fill(5)

        @pytest.mark.gpu_memory_limit("4 MiB")
        @pytest.mark.skipif("not torch.cuda.is_available()")
        def test_that_needs_a_gpu():
            fill(1)

        def test_without_a_mark():
            assert not torch.cuda.is_available()
        """
    )

    result.assert_outcomes(passed=3, failed=5, skipped=2, xfailed=2)
    failed = [line for line in result.outlines if line.startswith("FAILED")]
    over = [line.split(" - ")[0].rpartition("::")[2] for line in failed if "over the" in line]
    assert sorted(over) == ["test_coroutine", "test_method", "test_over", "test_thread"]
    assert "AssertionError: its own words" in result.stdout.str()


def test_tensors_of_a_module_stay_on_their_gpu_and_others_do_not_count(run):
    run(
        """
        @pytest.fixture(scope="module")
        def weight():
            return torch.ones(1 << 20, device="cuda")

        class Circle:
            def __init__(self):
                self.own, self.data = self, torch.ones(2 << 20, device="cuda")

        @pytest.mark.gpu_memory_limit("100 MiB")
        def test_first(weight, gpu_memory):
            Circle()
            weight.view(1024, 1024) @ weight.view(1024, 1024)  # its workspace stays

        def test_without_a_gpu():
            assert not torch.cuda.is_available()

        @pytest.mark.xfail(strict=True)
        @pytest.mark.gpu_memory_limit("100 MiB")
        def test_that_fails(weight):
            held = torch.ones(3 << 20, device="cuda")
            assert not weight.is_cuda

        @pytest.mark.gpu_memory_limit("100 MiB")
        def test_second(weight, gpu_memory):
            assert weight.is_cuda
            assert torch.cuda.memory_allocated() == gpu_memory.peak == 4 << 20
            assert (weight * 2).is_cuda
            assert gpu_memory.peak == 8 << 20
        """
    ).assert_outcomes(passed=3, xfailed=1)


def test_what_the_fixture_gives(run):
    run(
        """
        def test_it(gpu_memory):
            assert torch.cuda.get_device_name() == "NVIDIA H100 80GB HBM3"
            assert (gpu_memory.peak, gpu_memory.in_use) == (0, 0)
            kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
            torch.empty(2 << 20, dtype=torch.uint8, device="cuda")
            torch.cuda.reset_peak_memory_stats()
            assert (gpu_memory.peak, gpu_memory.in_use) == (3 << 20, 1 << 20)
            lines = [(one.line, one.size >> 20) for one in gpu_memory.holders.by_line()]
            assert lines == [(7, 2), (6, 1)]
            assert gpu_memory.holders.peak.active == gpu_memory.peak
            assert gpu_memory.reserved == 22 << 20
            assert repr(gpu_memory) == "<gpu_memory: peak 3,145,728 bytes, 1,048,576 in use>"
        """
    ).assert_outcomes(passed=1)


NOTHING_MEASURED = (
    "has a mark for GPU memory and made no CUDA tensor, so nothing was measured: a device that was"
    " chosen when the file was imported is the CPU; choose it in the test or in a fixture"
)


def test_a_mark_of_a_test_that_uses_no_gpu_fails_it(run):
    result = run(
        """
        DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

        @pytest.mark.gpu_memory_limit("1 MiB")
        def test_it():
            torch.empty(8 << 20, dtype=torch.uint8, device=DEVICE)

        @pytest.mark.gpu_leaks("1 MiB")
        def test_leak():
            torch.empty(8 << 20, dtype=torch.uint8, device=DEVICE)

        @pytest.mark.gpu_leaks("1 MiB")
        @pytest.mark.gpu_memory_limit("1 MiB")
        def test_error():
            assert torch.empty(8, device=DEVICE).is_cuda
        """
    )

    result.assert_outcomes(failed=3, warnings=0)
    assert f"test_it {NOTHING_MEASURED}" in result.outlines
    assert f"test_leak {NOTHING_MEASURED}" in result.outlines
    assert f"test_error {NOTHING_MEASURED}" not in result.outlines


def test_a_mark_of_a_module_warns_of_a_test_that_uses_no_gpu(run):
    result = run(
        """
        pytestmark = pytest.mark.gpu_memory_limit("1 MiB")

        def test_it():
            torch.empty(8 << 20, dtype=torch.uint8)
        """
    )

    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines([f"*PytestWarning: test_it {NOTHING_MEASURED}"])
