"""``simulate(strict=...)`` fails where the line profiler would mark a line."""

from __future__ import annotations

import pytest
import torch
from support.computed_or_dry import computed_or_dry
from support.python_process import run_python
from torch import nn
from torch.nn import functional

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import (
    AssumedValueError,
    EstimatedMemoryError,
    StrictSimulationError,
    UnmodelledOpError,
    UsageError,
)
from pytorch_memlab.records import mark


def convolve():
    functional.conv2d(torch.ones(1, 3, 8, 8).cuda(), torch.ones(4, 3, 3, 3).cuda())


def convolve_backward():
    weight = torch.ones(4, 3, 3, 3).cuda()
    tensor = torch.ones(1, 3, 8, 8).cuda().requires_grad_()
    with torch.backends.cudnn.flags(enabled=False):
        result = functional.conv2d(tensor, weight)
    result.sum().backward()


def normalize():
    nn.BatchNorm2d(3).cuda()(torch.ones(2, 3, 8, 8).cuda())


def transform():
    torch.fft.rfft(torch.ones(64).cuda())


def factorize():
    torch.linalg.qr(torch.eye(8).cuda())


def add_up():
    torch.ones(100_000).cuda().cumsum(0)


def multiply():
    torch.ones(2, 8, 8).cuda() @ torch.ones(2, 8, 8).cuda()


def read():
    (torch.ones(100_000).cuda() * 2).sum().item()


UNKNOWN = {
    convolve: "aten.convolution.default takes cuDNN workspaces, whose size is not known",
    normalize: "aten.cudnn_batch_norm.default takes cuDNN workspaces, whose size is not known",
    transform: "aten._fft_r2c.default takes cuFFT work areas, whose size is not known",
    factorize: "aten.linalg_qr.default has no memory model",
}


@computed_or_dry
@pytest.mark.parametrize("strict", [True, "estimates"])
@pytest.mark.parametrize("work", UNKNOWN)
def test_what_is_not_counted_is_an_error(work, strict, compute):
    with simulate("a100", compute=compute, strict=strict):
        with pytest.raises(UnmodelledOpError, match=f"^{UNKNOWN[work]}") as raised:
            work()
        assert "without strict=True (--strict)" in str(raised.value)
        assert str(raised.value).endswith("and the line is marked ?")


def test_the_message_says_which_op_what_is_unknown_and_what_to_do():
    with simulate("a100", strict=True), pytest.raises(UnmodelledOpError) as raised:
        convolve()
    assert str(raised.value) == (
        "aten.convolution.default takes cuDNN workspaces, whose size is not known: the peak is a "
        "lower bound; without strict=True (--strict) the rest is counted, and the line is marked ?"
    )


def test_an_error_gives_all_memory_of_its_op_back():
    with simulate("a100", strict=True):
        tensor = torch.ones(64, device="cuda")
        before = torch.cuda.memory_allocated()
        with pytest.raises(UnmodelledOpError):
            torch.fft.rfft(tensor)
        assert torch.cuda.memory_allocated() == before


def test_a_backward_pass_is_as_strict():
    takes = pytest.raises(UnmodelledOpError, match=r"^aten\.convolution_backward\.default takes")
    with simulate("a100", strict=True):
        tensor = torch.ones(1, 3, 8, 8).cuda().requires_grad_()
        with torch.backends.cudnn.flags(enabled=False):
            loss = functional.conv2d(tensor, torch.ones(4, 3, 3, 3).cuda()).sum()
        with torch.backends.cudnn.flags(enabled=True), takes:
            loss.backward()


def test_estimates_pass_until_they_are_errors_too():
    with simulate("a100", strict=True):
        add_up()
        multiply()
    with simulate("a100", strict="estimates"):
        multiply()
        with pytest.raises(EstimatedMemoryError) as raised:
            add_up()
    assert str(raised.value) == (
        "aten.cumsum.default takes an estimated 1023 bytes of kernel memory, which no recording "
        "confirms; strict=True (--strict) counts them, and the line is marked ~"
    )


@pytest.mark.parametrize("strict", [True, "estimates"])
def test_a_value_that_a_dry_run_assumes_is_an_error(strict):
    with simulate("a100", compute=False, strict=strict):
        with pytest.raises(AssumedValueError) as raised:
            read()
        torch.arange(3, device="cuda").tolist()  # it is known
    line = read.__code__.co_firstlineno + 1
    assert str(raised.value) == (
        f"{__file__}:{line}: Tensor.item reads values that a dry run does not have (assumed 0 "
        "otherwise): do not read them, or run without compute=False (--dry-run); without "
        "strict=True (--strict) the line is marked *"
    )
    with simulate("a100", strict=True):
        read()


def test_a_size_that_a_dry_run_assumes_is_an_error_and_one_that_is_given_is_none():
    dry = simulate("a100", compute=False, strict=True)
    with dry, pytest.raises(AssumedValueError) as raised:
        torch.rand(9000, device="cuda").nonzero()
    assert str(raised.value).endswith(
        ": nonzero reads values that a dry run does not have (assumed every element True "
        "otherwise): do not read them, give the size (assume, --assume), or run without "
        "compute=False (--dry-run); without strict=True (--strict) the line is marked *"
    )
    with simulate("a100", compute=False, strict=True, assume={"nonzero": 9}):
        assert len(torch.rand(9000, device="cuda").nonzero()) == 9


MARKS = {
    **dict.fromkeys(UNKNOWN, "?"), add_up: "~", multiply: "", read: "*", convolve_backward: "?"
}  # fmt: skip


@pytest.mark.parametrize("strict", [False, True, "estimates"])
@pytest.mark.parametrize("work", MARKS)
def test_what_is_marked_fails_and_all_else_runs(work, strict):
    """Marks and errors say the same of every program."""
    fails = MARKS[work] in {False: "", True: "?*", "estimates": "?*~"}[strict] and MARKS[work]
    with simulate("a100", compute=False, strict=strict), LineProfiler(work) as profiler:
        if fails:
            with pytest.raises(StrictSimulationError):
                work()
        else:
            work()
    if not strict:
        [table] = profiler.display().report.tables
        marks = {mark(approximations) for approximations in table.approximations.values()} - {"~"}
        assert (
            marks
            or {mark(approximations) for approximations in table.approximations.values()}
            or {""}
        ) == {MARKS[work]}


@pytest.mark.parametrize("strict", ["estimate", "", None, 1, "True"])
def test_any_other_strictness_is_refused(strict):
    with pytest.raises(UsageError, match=r'^strict must be True, False or "estimates", not '):
        simulate("a100", strict=strict)


# On the command line


SCRIPT = """\
import sys
import torch

assert sys.argv[1:] == ["--strict=no", "estimates"], sys.argv
x = torch.ones(100_000, device="cuda")
{work}
"""


def run(tmp_path, work, *options):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(work=work))
    command = ["-m", "pytorch_memlab", "run", "--gpu", "a100", *options]
    command += [str(path), "--strict=no", "estimates"]
    return run_python(command, cwd=tmp_path)


@pytest.mark.parametrize(
    ("option", "work", "error"),
    [
        ("--strict", "x.cumsum(0)", None),
        ("--strict", "torch.fft.rfft(x)", "UnmodelledOpError: aten._fft_r2c.default takes cuFFT"),
        ("--strict=estimates", "x.relu()", None),
        ("--strict=estimates", "x.cumsum(0)", "EstimatedMemoryError: aten.cumsum.default takes"),
    ],
)
def test_the_option_leaves_the_script_and_its_arguments_alone(tmp_path, option, work, error):
    done = run(tmp_path, work, option)
    if error is None:
        assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
    else:
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith(f"pytorch_memlab.errors.{error}")


def test_any_other_value_of_the_option_is_refused(tmp_path, capsys):
    (tmp_path / "train.py").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["run", "--strict=all", str(tmp_path / "train.py")])
    assert ended.value.code == 2
    assert "--strict" in capsys.readouterr().err
