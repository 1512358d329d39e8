"""The page of a run: from ``run``, from ``show``, from Python."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import pytest
import torch

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.cli.main import main
from pytorch_memlab.errors import UsageError

SCRIPT = """\
import torch

def work():
    kept = torch.ones(1 << 20, device="cuda")
    freed = torch.ones(1 << 22, device="cuda")
    del freed
    return kept

kept = work()
"""


def figure(page):
    """The timeline of a page; empty if it has none."""
    found = re.search("<figure.*?</figure>", page, re.DOTALL)
    return found[0] if found else ""


def headline(page):
    (found,) = re.findall('<p class="headline">(.*?)</p>', page, re.DOTALL)
    return re.sub("<[^>]*>", "", found).strip()


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_simulated_run_draws_its_memory_over_time(write, capsys):
    main(["run", "--gpu", "24GiB", "-o", "report.html", "-o", "p.json", write(SCRIPT)])

    page = Path("report.html").read_text()
    assert headline(page) == (
        "Peak 20.0 MiB of 24.00 GiB (0.1%) at script.py:5 in work, 100% of it inputs and"
        " other tensors."
    )
    assert "cuda:0: 20.0 MiB in use at the peak, 20.0 MiB reserved" in figure(page)
    assert "Capacity 24.00 GiB" in figure(page)
    assert load("p.json").recorded().history is None  # which --history asks for
    capsys.readouterr()
    main(["show", "-o", "shown.html", "p.json"])
    shown = Path("shown.html").read_text()
    assert headline(shown) == headline(page)
    assert figure(shown) == ""
    assert "run --history -o FILE.json keeps it" in shown


def test_a_run_without_memory_says_so(write):
    main(["run", "--gpu", "24GiB", "-o", "report.html", write("print(1)\n")])

    page = Path("report.html").read_text()
    assert headline(page) == "No memory of cuda:0 was in use."
    assert "The memory over time was not recorded" not in page


def test_a_saved_history_draws_the_same_page(write):
    main(["run", "--history", "-o", "report.html", "-o", "p.json", write(SCRIPT)])
    main(["show", "-o", "shown.html", "p.json"])

    page = Path("report.html").read_text()
    assert figure(page)
    assert figure(Path("shown.html").read_text()) == figure(page)


def test_a_merged_profile_has_a_tab_for_each_rank(write, monkeypatch):
    name = write("import os, torch\nkept = torch.ones(1 << 20 + int(os.environ['RANK'])).cuda()\n")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        main(["run", "-o", f"p{rank}.json", name])
    main(["merge", "-o", "all.json", "p0.json", "p1.json"])
    main(["show", "-o", "all.html", "all.json"])

    page = Path("all.html").read_text()
    assert re.findall('data-tab="(rank.*?)"', page) == ["rank0 cuda:0", "rank1 cuda:0"]
    assert headline(page).startswith("Peak 8.0 MiB of ")
    assert " on rank1 cuda:0 at script.py:2 in &lt;module&gt;" in headline(page)


def test_a_profiler_writes_the_page_of_its_saved_profile(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def work():
        return torch.ones(1 << 20, device="cuda")

    with simulate("24GiB"):
        profiler = LineProfiler(work, history=True)
        with profiler:
            kept = work()
        profiler.to_html("page.html")
        profiler.save("p.json")
    del kept
    load("p.json").to_html("loaded.html")

    page = Path("page.html").read_text()
    assert page == Path("loaded.html").read_text()
    assert headline(page).startswith("Peak 4.0 MiB of 24.00 GiB (0.0%) at test_page.py:")
    assert figure(page)
    with pytest.raises(UsageError, match=r"^cannot write no/page\.html: no such folder"):
        profiler.to_html("no/page.html")


def test_a_program_that_fails_has_its_page_too(write):
    with pytest.raises(torch.OutOfMemoryError):
        main(
            [
                "run",
                "--gpu",
                "1GiB",
                "-o",
                "report.html",
                write("import torch\ntorch.ones(1 << 29, device='cuda')\n"),
            ]
        )

    page = Path("report.html").read_text()
    assert "Out of memory at script.py:2." in page
    assert "# out of memory: asked for 2.00 GiB" in page
    assert "ended with torch.OutOfMemoryError: CUDA out of memory" in page


OOM = """\
import torch

def evaluate():
    kept = []
    for _ in range(99):
        kept.append(torch.ones(1 << 18, device="cuda"))

try:
    int("no number")
except ValueError:
    evaluate()
"""


def test_a_page_and_a_recording_have_the_error_as_the_terminal_shows_it(write, capsys):
    script = write(OOM)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        main(["run", "--gpu", "16MiB", "--no-try", "-o", "report.html", "-o", "p.json", script])
    (error,) = load("p.json").recorded().errors
    lines = error.traceback.splitlines()
    assert lines[1] == '  File "script.py", line 9, in <module>'
    assert [line for line in lines if line.startswith("  File")] == [
        '  File "script.py", line 9, in <module>',
        '  File "script.py", line 11, in <module>',
        '  File "script.py", line 6, in evaluate',
    ]
    assert lines[-1] == f"torch.OutOfMemoryError: {caught.value}"
    assert error.explanation.startswith("Out of memory on cuda:0 at script.py:6, in evaluate")
    assert "  in use 16.0 MiB, cached 0 B" in error.explanation
    page = Path("report.html").read_text()
    assert error.explanation in unescape(page)
    capsys.readouterr()
    main(["show", "-o", "shown.html", "p.json"])
    assert lines[-1] in unescape(Path("shown.html").read_text())


def test_a_private_page_has_no_traceback(write):
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--gpu", "16MiB", "--no-try", "--private", "-o", "p.html", write(OOM)])
    page = Path("p.html").read_text()
    assert "Out of memory on cuda:0 at script.py:6, in evaluate" in page
    assert "Traceback" not in page


def test_an_ordinary_error_is_on_the_page_and_an_interrupt_is_not(write):
    with pytest.raises(ZeroDivisionError):
        main(["run", "--gpu", "1GiB", "-o", "p.html", write(f"{SCRIPT}\n1 / 0\n")])
    page = Path("p.html").read_text()
    assert "ZeroDivisionError: division by zero\n</pre>" in page
    with pytest.raises(KeyboardInterrupt):
        main(
            ["run", "--gpu", "1GiB", "-o", "i.html", write(f"{SCRIPT}\nraise KeyboardInterrupt\n")]
        )
    assert "Traceback" not in Path("i.html").read_text()
