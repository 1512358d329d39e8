"""``explain_oom`` and others that wait for an out-of-memory error: what is shown, and when."""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import subprocess
import sys
import textwrap
import threading
import weakref

import pytest
import torch
from support.python_process import run_python

import pytorch_memlab.reporter.oom_facts as search
from pytorch_memlab import LineProfiler, explain_oom, simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.errors import UsageError
from pytorch_memlab.simulation.machine import active

MIB = 2**20


def take(mib: int) -> torch.Tensor:
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")


class Ended:
    """A program that ran, and what is on its standard output and error."""

    def __init__(self, text: str, folder, capsys) -> None:
        path = folder / "train.py"
        path.write_text(text)
        linecache.checkcache(str(path))
        try:
            exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
        except Exception as error:  # what the interpreter does
            sys.excepthook(type(error), error, error.__traceback__)
        gc.collect()
        self.stdout, self.stderr = capsys.readouterr()


@pytest.fixture
def script(tmp_path, capsys):
    """Runs a text as a program."""
    yield lambda text: Ended(textwrap.dedent(text), tmp_path, capsys)
    for simulation in list(active.simulations.values()):
        simulation.__exit__()


SCRIPT = """\
import torch
from pytorch_memlab import LineProfiler, explain_oom, simulate

def take(mib):
    return torch.empty(mib * 2**20, dtype=torch.uint8, device="cuda")
"""


def parts(stderr: str) -> tuple[str, str]:
    """The text before the report, and the report."""
    assert stderr.count("Out of memory on cuda:0") == 1, stderr
    before, _, report = stderr.partition("\n\nOut of memory on cuda:0")
    return before, report


@pytest.mark.knows_simulation("what was made before has its line only if PyTorch recorded it")
@pytest.mark.parametrize(
    "block",
    [
        "with simulate('64MiB'):\n    kept = take(40)\n    take(40)",
        "with explain_oom(), simulate('64MiB'):\n    kept = take(40)\n    take(40)",
        "with simulate('64MiB'), explain_oom(), explain_oom():\n    kept = take(40)\n    take(40)",
        "@simulate('64MiB')\n@explain_oom\ndef run():\n    kept = take(40)\n    take(40)\n\nrun()",
        "@simulate('64MiB')\n@explain_oom()\ndef a():\n    kept = take(40)\n    take(40)\n\na()",
        "simulate('64MiB').__enter__()\nkept = take(40)\ntake(40)",
    ],
)
def test_the_report_is_the_last_thing_after_the_traceback(block, script):
    done = script(SCRIPT + block)
    before, report = parts(done.stderr)
    assert before.startswith("Traceback (most recent call last):")
    assert "\ntorch.OutOfMemoryError: CUDA out of memory." in before
    assert report.startswith(" at train.py:5, in take\n")
    assert "\n    40.0 MiB  train.py:5  " in report
    assert report.endswith("\n")


def test_an_error_that_another_was_raised_from_is_explained(script):
    done = script(
        SCRIPT
        + textwrap.dedent("""
            with simulate("64MiB"):
                try:
                    take(65)
                except torch.OutOfMemoryError as error:
                    raise RuntimeError("training failed") from error
        """)
    )
    before, _ = parts(done.stderr)
    assert before.endswith("RuntimeError: training failed")


def test_a_thread_that_runs_out_is_explained(capsys, monkeypatch):
    # As the interpreter has it, not as pytest does.
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    with simulate("64MiB"):
        thread = threading.Thread(target=take, args=(65,))
        thread.start()
        thread.join()
    before, _ = parts(capsys.readouterr().err)
    assert before.startswith("Exception in thread")


@pytest.mark.parametrize(
    "work",
    [
        # A program that looks for the largest batch.
        """
for size in (65, 64, 40):
    try:
        take(size)
    except torch.OutOfMemoryError:
        continue
    print(size)
    break
""",
        """
with explain_oom():
    try:
        take(65)
    except torch.OutOfMemoryError:
        print(64)
""",
    ],
)
def test_handled_errors_are_silent(work, script):
    done = script(SCRIPT + "with simulate('64MiB'):\n" + textwrap.indent(work, "    "))
    assert (done.stdout, done.stderr) == ("64\n", "")


def test_a_simulation_whose_error_is_handled_outside_is_silent(script):
    done = script(
        SCRIPT
        + textwrap.dedent("""
            try:
                with simulate("64MiB"):
                    take(65)
            except torch.OutOfMemoryError:
                print("does not fit")
        """)
    )
    assert (done.stdout, done.stderr) == ("does not fit\n", "")


def test_what_left_an_explained_block_is_explained_once_also_if_it_is_handled_outside(capsys):
    with simulate("64MiB"):
        try:
            with explain_oom():
                take(65)
        except torch.OutOfMemoryError:
            assert capsys.readouterr().err == ""
        gc.collect()
    assert capsys.readouterr().err.count("Out of memory on cuda:0") == 1


def test_other_errors_are_not_explained(capsys):
    with pytest.raises(ZeroDivisionError), explain_oom() as block:
        1 / 0  # noqa: B018
    with pytest.raises(torch.OutOfMemoryError), explain_oom() as other:
        raise torch.OutOfMemoryError("not from a GPU")
    assert (block.report, other.report) == (None, None)
    gc.collect()
    assert capsys.readouterr().err == ""


def test_only_functions_are_decorated():
    with pytest.raises(UsageError, match="@explain_oom takes a function"):
        explain_oom(7)


def test_the_hooks_are_given_back():
    before = (sys.excepthook, threading.excepthook)
    with simulate("64MiB"):
        assert sys.excepthook is not before[0]
        with explain_oom():
            pass
    assert (sys.excepthook, threading.excepthook) == before

    try:
        with simulate("64MiB"):
            take(65)
    except torch.OutOfMemoryError:
        assert sys.excepthook is not before[0]  # it is not known yet who handles it
    gc.collect()
    assert (sys.excepthook, threading.excepthook) == before


def test_a_hook_of_the_program_stays():
    mine = sys.excepthook = lambda *_: None
    try:
        with simulate("64MiB"):
            other = sys.excepthook = lambda *_: None
        assert sys.excepthook is other
    finally:
        assert mine is not None
        sys.excepthook = sys.__excepthook__


def test_a_hook_over_a_hook_that_has_ended_reports_each_error_once(capsys, monkeypatch):
    # As torch.distributed.init_process_group does it.
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    told = []
    for _ in range(2):
        with simulate("64MiB"):
            below = sys.excepthook
            sys.excepthook = lambda *args, below=below: below(*args)
    monkeypatch.setattr(uncaught, "told", [lambda *args: told.append(args)])
    try:
        with simulate("64MiB"):
            take(65)
    except torch.OutOfMemoryError as error:
        show = sys.excepthook
        show(type(error), error, error.__traceback__)
    assert len(told) == 1
    gc.collect()
    capsys.readouterr()

    with pytest.raises(torch.OutOfMemoryError) as handled:
        raise torch.OutOfMemoryError("after the simulations")
    sys.excepthook(handled.type, handled.value, handled.tb)
    assert capsys.readouterr().err.endswith("torch.OutOfMemoryError: after the simulations\n")
    assert len(told) == 1


def fails(kept: list[weakref.ref[torch.Tensor]]) -> None:
    tensor = take(40)
    kept.append(weakref.ref(tensor))
    take(40)


def test_a_report_keeps_no_tensor_alive_and_allocates_nothing():
    kept: list[weakref.ref[torch.Tensor]] = []
    with simulate("64MiB") as machine:
        try:
            with explain_oom() as block:
                fails(kept)
        except torch.OutOfMemoryError:
            count = machine.gpus[0].allocator.memory_stats()["allocation"]["all"]["allocated"]
            assert count == 1
        assert kept[0]() is None
        assert torch.cuda.memory_allocated() == 0
    assert block.report is not None


@pytest.mark.parametrize("kind", [MemoryError, RecursionError, ValueError])
def test_a_part_that_fails_is_named_and_the_rest_is_shown(kind, monkeypatch):
    def fail(*_: object) -> None:
        raise kind

    monkeypatch.setattr(search, "live_objects", fail)
    with simulate("64MiB"), pytest.raises(torch.OutOfMemoryError), explain_oom() as block:
        fails([])
    assert block.report is not None
    assert f"could not find out: the tensors ({kind.__name__})" in block.report
    assert "asked for a segment of 40.0 MiB" in block.report


def test_a_report_that_fails_altogether_says_so_and_the_error_goes_on(monkeypatch):
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(search, "facts_of", fail)
    words = "Tried to allocate"
    with (
        simulate("64MiB"),
        pytest.raises(torch.OutOfMemoryError, match=words),
        explain_oom() as block,
    ):
        take(65)
    assert block.report == "pytorch_memlab: the out-of-memory report failed: MemoryError\n"


def test_a_report_that_fails_after_the_traceback_says_so(script, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("no words")

    monkeypatch.setattr(uncaught, "told", [fail])
    done = script("""
        import torch
        from pytorch_memlab import simulate
        with simulate("64MiB"):
            torch.empty(65 << 20, dtype=torch.uint8, device="cuda")
    """)
    assert done.stderr.endswith(
        "\npytorch_memlab: the out-of-memory report failed: RuntimeError: no words\n"
    )


@pytest.mark.parametrize("stream", [None, "closed", "broken"])
def test_standard_error_that_takes_nothing_changes_nothing(stream, monkeypatch):
    class Broken(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError("no space left")

    replaced = {None: None, "closed": io.StringIO(), "broken": Broken()}[stream]
    if stream == "closed":
        replaced.close()
    with simulate("64MiB"):
        try:
            with explain_oom():
                take(65)
        except torch.OutOfMemoryError:
            monkeypatch.setattr(sys, "stderr", replaced)
        gc.collect()
    monkeypatch.undo()


def test_a_failed_request_of_an_outer_simulation_is_explained_after_an_inner_one():
    with simulate("64MiB"):
        with simulate("32MiB"), pytest.raises(torch.OutOfMemoryError):
            take(33)
        with pytest.raises(torch.OutOfMemoryError), explain_oom() as block:
            fails([])
    assert "of 64.0 MiB" in block.report


def test_explained_functions_of_all_kinds():
    @explain_oom
    def numbers():
        yield 1
        take(65)

    @explain_oom
    async def work():
        take(65)

    with simulate("64MiB"):
        with pytest.raises(torch.OutOfMemoryError):
            list(numbers())
        with pytest.raises(torch.OutOfMemoryError) as caught:
            work().send(None)
        report = uncaught.add(caught.value)
        assert report.is_asked_for
        report.is_asked_for = False


def test_profile_marks_the_row_and_its_report_follows_the_tables(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "from pytorch_memlab import profile, simulate\n"
        "@profile(columns='peak')\n"
        "def work():\n"
        "    kept = torch.empty(40 * 2**20, dtype=torch.uint8, device='cuda')\n"
        "    more = torch.empty(40 * 2**20, dtype=torch.uint8, device='cuda')\n"
        "with simulate('64MiB'):\n"
        "    work()\n"
    )
    done = run_python([path], stderr=subprocess.STDOUT)
    assert done.returncode == 1
    traceback, tables, report = (
        done.stdout.split("\n## work\n")[0],
        *parts(done.stdout.split("\n## work\n")[1]),
    )
    assert traceback.startswith("Traceback (most recent call last):")
    assert "device='cuda')  # out of memory: asked for 40.0 MiB" in tables
    assert report.startswith(" at train.py:6, in work\n")


def test_a_profiled_block_marks_its_row_and_forgets_it_with_the_rest(capsys):
    with simulate("64MiB"):
        profiler = LineProfiler(fails)
        with pytest.raises(torch.OutOfMemoryError), profiler:
            fails([])
        profiler.print_stats()
        assert capsys.readouterr().out.count("# out of memory: asked for 40.0 MiB") == 1
        profiler.clear()
        profiler.add_function(fails)
        with profiler, contextlib.suppress(torch.OutOfMemoryError):
            fails([])
        profiler.print_stats()
    assert "out of memory" not in capsys.readouterr().out


def test_variables_of_a_function_that_goes_on_die_when_it_deletes_them():
    with simulate("512MiB", compute=False):
        q = torch.empty(4, 4096, 64, device="cuda")
        more = take(300)
        try:
            with explain_oom() as block:
                torch.nn.functional.scaled_dot_product_attention(q, q, q)
        except torch.OutOfMemoryError:
            assert "has 3 dimensions" in block.report
        kept = [weakref.ref(q), weakref.ref(more)]
        del q, more
        assert [each() for each in kept] == [None, None]


ATTENTION = """
kept = []
with simulate("1GiB"):
    three = torch.empty(4, 4096, 64, device="cuda", requires_grad=True)
    four = torch.empty(1, 4, 4096, 64, device="cuda", requires_grad=True)
    for q in (QUERIES):
        kept.append(torch.nn.functional.scaled_dot_product_attention(q, q, q))
    take(900)
"""


@pytest.mark.knows_simulation("what was made before has its line only if PyTorch recorded it")
@pytest.mark.parametrize("queries", ["three,", "four, three"])
def test_attention_that_ran_is_told_by_its_largest_block(queries, script):
    done = script(SCRIPT + ATTENTION.replace("QUERIES", queries))
    _, report = parts(done.stderr)
    assert "attention (line 12) has 3 dimensions, so no fused kernel runs" in " ".join(
        report.split()
    )
