"""``pytorch-memlab show``, and the profiles that ``run -o FILE.json`` writes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab import clear_global_line_profiler, load
from pytorch_memlab.cli.main import main

ROOT = Path(__file__).parents[3]

SCRIPT = """\
import sys

import torch

from pytorch_memlab import profile


class Net(torch.nn.Module):
    def forward(self, x):
        return torch.cat([x, x])


def main():
    kept = Net()(torch.zeros(1024, device="cuda"))
    if "fails" in sys.argv:
        raise RuntimeError("no\\nluck")
    if "exits" in sys.argv:
        sys.exit(3)
    return kept


main()
"""

Write = Callable[..., str]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A folder to work in, and a function that writes a script there."""
    monkeypatch.chdir(tmp_path)
    clear_global_line_profiler()

    def write(text: str = SCRIPT, name: str = "script.py") -> str:
        (tmp_path / name).write_text(text)
        return name

    return write


def notes(text: str) -> list[str]:
    """The lines on the run, without what differs from run to run."""
    text = re.sub(r"on \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00 \(\d+\.\d s", "on DAY (0.0 s", text)
    text = re.sub(r"pytorch_memlab [^)]*\)", "VERSIONS)", text)
    return text.splitlines()


def test_show_prints_what_the_run_printed_and_of_what_run_it_is(
    script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", script(), "--lr", "1"])
    printed = capsys.readouterr().out
    main(["run", "--gpu", "24GiB", "-o", "p.memlab.json", script(), "--lr", "1"])
    capsys.readouterr()

    assert main(["show", "p.memlab.json"]) == 0

    shown = capsys.readouterr().out
    assert shown.startswith(printed)
    assert notes(shown.removeprefix(printed)) == [
        "recorded of script.py --lr 1 on DAY (0.0 s; VERSIONS)"
    ]


PEAKS = "12.00K active, 12.00K allocated, 2.00M reserved"

TABLE = """\
## Net.forward

hits delta active_bytes line  code
                    all
                   peak
   1 0.00B        4.00K    9      def forward(self, x):
   1 8.00K       12.00K   10          return torch.cat([x, x])
"""


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_other_functions_and_columns_than_the_run_showed(
    script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-c", "time", "-o", "p.json", script()])
    capsys.readouterr()
    columns = "hits,delta,active_bytes.all.peak"
    for name in ("Net.forward", "Net"):
        assert main(["show", "-f", name, "-c", columns, "p.json"]) == 0
        verdict = "peak 2.0 MiB reserved of 24.00 GiB: fits, 24.00 GiB free"
        assert capsys.readouterr().out.startswith(f"{TABLE}\n{verdict}\nsimulated GPU")


@pytest.mark.parametrize("options", [["-f", "Net.forward"], ["-f", "main", "-c", "hits"]])
def test_named_functions_are_what_show_shows(
    options: list[str], script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", *options, script()])
    printed = capsys.readouterr().out
    main(["run", "--gpu", "24GiB", *options, "-o", "p.json", script()])
    main(["show", "p.json"])
    assert capsys.readouterr().out.startswith(printed)


def test_decorated_functions_are_shown_and_all_are_saved(
    script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    name = script(SCRIPT.replace("def main", "@profile(columns='delta')\ndef main"))
    main(["run", "--gpu", "24GiB", name])
    printed = capsys.readouterr().out
    assert printed.count("## ") == 1
    clear_global_line_profiler()
    main(["run", "--gpu", "24GiB", "-o", "p.json", name])
    main(["show", "p.json"])
    assert capsys.readouterr().out.startswith(printed)
    names = [function.qual_name for function in load("p.json").recorded().functions]
    assert names == ["main", "Net.forward", "<module>"]


@pytest.mark.parametrize(
    ("argument", "status", "exception", "said"),
    [
        ("", 0, "", "VERSIONS)"),
        ("exits", 3, "", "VERSIONS); exit status 3"),
        ("fails", 1, "RuntimeError: no", "VERSIONS); ended with RuntimeError: no"),
    ],
)
def test_how_the_program_ended(
    argument: str,
    status: int,
    exception: str,
    said: str,
    script: Write,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["run", "--gpu", "24GiB", "-o", "p.json", script(), argument]
    if status:
        with pytest.raises((RuntimeError, SystemExit)):
            main(command)
    else:
        main(command)
    (run,) = load("p.json").recorded().runs
    assert (run.exit_status, run.exception) == (status, exception)
    main(["show", "p.json"])
    assert notes(capsys.readouterr().out)[-1].endswith(said)


def test_a_page_text_and_a_profile_of_a_profile(
    script: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", script()])
    capsys.readouterr()
    for name in ("a.txt", "a.html", "a.json"):
        assert main(["show", "-f", "Net", "-c", "hits", "-o", name, "p.json"]) == 0
        assert capsys.readouterr() == ("", f"memory profile written to {name}\n")
    main(["show", "-f", "Net", "-c", "hits", "p.json"])
    text = capsys.readouterr().out
    assert (tmp_path / "a.txt").read_text() == text
    page = (tmp_path / "a.html").read_text()
    assert "<h1>script.py</h1>" in page
    assert page.count('<section class="function"') == page.count('data-name="Net.forward"') == 1
    main(["show", "a.json"])
    assert capsys.readouterr().out == text
    assert load("a.json").recorded().entries == load("p.json").recorded().entries


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["other.json"], "other.json is JSON, but no profile of pytorch_memlab"),
        (["missing.json"], "cannot read missing.json: No such file or directory"),
        (["p.json", "-f", "Nett"], "there is no function Nett in the file: it has <module>, Net"),
        (["p.json", "-c", "peek"], "unknown column 'peek': did you mean peak?"),
        (
            ["p.json", "-o", "a.pdf"],
            "cannot tell the format of a.pdf: end it in .txt, .html, .json",
        ),
        (["p.json", "-o", "p.json"], "p.json is there already: --force "),
        (["p.json", "-o", "no/a.txt"], "cannot write no/a.txt: no such folder"),
    ],
)
def test_what_cannot_be_shown_is_said_in_one_line(
    arguments: list[str], message: str, script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.json").write_text('{"format": 1, "tables": []}')
    main(["run", "--gpu", "24GiB", "-o", "p.json", script()])
    capsys.readouterr()
    assert main(["show", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"pytorch-memlab show: error: {message}")
    assert err.count("\n") == 1


def test_a_second_run_does_not_overwrite_the_profile_of_the_first(
    script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "--gpu", "24GiB", "-o", "p.json"]
    main([*command, script(), "first"])
    capsys.readouterr()
    assert main([*command, script("print('runs')")]) == 2
    assert capsys.readouterr().err == (
        "pytorch-memlab run: error: p.json is there already: --force (force=True) overwrites it,"
        " and {pid} in the name gives every run its own file\n"
    )
    assert load("p.json").recorded().runs[0].arguments == ("first",)
    assert main([*command, "--force", script(), "second"]) == 0
    assert load("p.json").recorded().runs[0].arguments == ("second",)


def test_a_profile_that_another_process_wrote_since_is_kept(
    script: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = script("open('p.json', 'w').write('of another process')")
    main(["run", "--gpu", "24GiB", "-o", "p.json", name])
    own = f"p.{os.getpid()}.json"
    assert (tmp_path / "p.json").read_text() == "of another process"
    assert load(own).recorded().runs[0].program == "script.py"
    assert f"memory profile written to {own}\n" in capsys.readouterr().err


def test_a_profile_that_cannot_be_written_leaves_its_tables_and_no_rest(
    script: Write,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    status = main(["run", "--gpu", "24GiB", "-o", "p.json", script()])
    out, err = capsys.readouterr()
    assert "\n\n## Net.forward  script.py:9\n" in out
    assert err.endswith("cannot write p.json: No space left on device\n")
    assert status == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


def test_nothing_that_a_file_says_runs_or_is_imported(tmp_path: Path, script: Write) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", script()])
    data = json.loads((tmp_path / "p.json").read_text())
    del data["checksum"]
    data["functions"][0]["filename"] = data["runs"][0]["program"] = "/nowhere/evil.py"
    (tmp_path / "q.json").write_text(json.dumps(data))
    done = run_python(
        ["-m", "pytorch_memlab", "show", "q.json"],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "recorded of evil.py" in done.stdout


def test_each_of_several_ranks_writes_its_own_profile(
    script: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        main(["run", "--gpu", "24GiB", "-o", "p.memlab.json", script()])
    for rank in (0, 1):
        (run,) = load(tmp_path / f"p.memlab.rank{rank}.json").recorded().runs
        assert (run.rank, run.world_size) == (rank, 2)


def test_a_file_from_before_there_was_a_report_has_one_without_what_it_lacks(
    script: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["run", "--gpu", "24GiB", "-o", "p.json", script()])
    data = json.loads((tmp_path / "p.json").read_text())
    del data["checksum"], data["devices"][0]["taken"]
    varying = [name for name in data["fields"] if name not in data["zero_fields"]]
    if "temporary" in varying:
        for row in data["rows"]:
            del row[varying.index("temporary")]
    for fields in ("fields", "zero_fields"):
        data[fields] = [name for name in data[fields] if name != "temporary"]
    (tmp_path / "old.json").write_text(json.dumps(data))
    capsys.readouterr()

    assert main(["show", "old.json"]) == 0

    text = capsys.readouterr().out
    assert "  fits" not in text
    assert "12.0 KiB 8.0 KiB             10          return torch.cat([x, x])  <- peak\n" in text


def test_several_runs_have_tables_and_no_report(
    script: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", "2")
        main(["run", "--gpu", "24GiB", "-o", f"p{rank}.json", script()])
    main(["merge", "-o", "both.json", "p0.json", "p1.json"])
    capsys.readouterr()

    assert main(["show", "--top", "3", "both.json"]) == 2

    assert capsys.readouterr().err == (
        "pytorch-memlab show: error: the profile is of several runs: --top, --sort and --all are "
        "for the report of one run\n"
    )
