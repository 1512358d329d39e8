"""A cell that runs out of GPU memory: IPython shows the traceback, and the report follows it."""

from __future__ import annotations

import pytest

HELD = "held = torch.empty(40 * 2**20, dtype=torch.uint8, device='cuda')"
FAILS = "more = torch.empty(40 * 2**20, dtype=torch.uint8, device='cuda')"


@pytest.fixture
def cell(run, shell, capsys):
    """Runs a cell, and gives what it shows on standard output and error."""

    def shown(source: str) -> tuple[str, str]:
        run(source)
        out, err = capsys.readouterr()
        return out, err

    shown("import torch\nfrom pytorch_memlab import *\n%load_ext pytorch_memlab")
    yield shown
    run("del get_ipython().user_ns['held']\n%simulate off")


@pytest.mark.knows_simulation(
    "names of holders need the requests, which a simulation records by itself"
)
@pytest.mark.parametrize(
    "source",
    [
        f"with simulate('64MiB'), explain_oom():\n    {HELD}\n    {FAILS}",
        f"with simulate('64MiB'):\n    {HELD}\n    {FAILS}",
        f"@explain_oom\ndef work():\n    {HELD}\n    {FAILS}\nwith simulate('64MiB'):\n    work()",
        f"%%mlrun --simulate 64MiB\ndef work():\n    {HELD}\n    {FAILS}\nwork()",
    ],
    ids=["block", "simulation", "decorator", "mlrun"],
)
def test_the_report_follows_the_traceback(cell, source):
    out, err = cell(source)
    # IPython shows tracebacks on standard output.
    assert "OutOfMemoryError: CUDA out of memory." in out
    assert err.count("Out of memory on cuda:0 at ") == 1
    assert "  asked for a segment of 40.0 MiB\n" in err
    assert "  (held)\n" in err


def test_the_failing_row_of_a_profiled_cell_is_marked(cell):
    out, _ = cell(f"%%mlrun --simulate 64MiB\ndef work():\n    {HELD}\n    {FAILS}\nwork()")
    marked = [line for line in out.splitlines() if "# out of memory: asked for 40.0 MiB" in line]
    assert len(marked) == 1
    assert f"! {' ' * 4}{FAILS}" in marked[0]


def test_cells_of_a_lasting_simulation(cell):
    cell("%simulate 64MiB")
    assert cell(HELD)[1] == ""
    assert cell(FAILS)[1].count("Out of memory on cuda:0 at In[4]:1, in <module>") == 1
    assert cell("1 / 0")[1] == ""
    assert cell(f"try:\n    {FAILS}\nexcept torch.OutOfMemoryError:\n    pass")[1] == ""
    # The same error again is another one.
    assert cell(FAILS)[1].count("Out of memory on cuda:0") == 1


def test_nothing_is_left_after_the_report(cell, shell):
    import sys

    hook = sys.excepthook
    cell(f"with simulate('64MiB'):\n    {HELD}\n    {FAILS}")
    assert sys.excepthook is hook


def test_explain_oom_explains_the_last_error(cell, shell):
    cell("%simulate 64MiB")
    assert cell("explain_oom()")[0] == (
        "Out[3]: <explain_oom: there was no error yet; explain_oom() is for after one, or in a with"
        " statement>\n"
    )
    cell(HELD)
    _, report = cell(FAILS)
    assert report.count("Out of memory on cuda:0 at In[5]:1, in <module>") == 1
    out, err = cell("explain_oom()")
    assert (out.removeprefix("Out[6]: ").strip(), err) == (report.strip(), "")
    assert shell.user_ns["_oh"][6]._repr_html_().count("Out of memory on cuda:0") == 1
    out, err = cell(f"try:\n    {FAILS}\nexcept torch.OutOfMemoryError:\n    explain_oom()")
    assert out.startswith("Out of memory on cuda:0 at In[7]:2, in <module>\n")
    assert err == ""
    cell("1 / 0")
    assert cell("print(explain_oom())")[0] == (
        "<explain_oom: the last error, ZeroDivisionError, was not for lack of GPU memory>\n"
    )
    assert cell("with explain_oom() as it:\n    pass\nprint(repr(it))")[0] == (
        "<explain_oom: no such error>\n"
    )
