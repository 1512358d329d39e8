"""The examples of CONTRIBUTING.md are the code of the package, or they run."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.python_process import run_python

from pytorch_memlab import LineProfiler, simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice import causes
from pytorch_memlab.advice.catalogue import all_causes
from pytorch_memlab.cli import command_line, main
from pytorch_memlab.render import outputs
from pytorch_memlab.render.output_format import RunResults
from pytorch_memlab.render.outputs import output_formats
from pytorch_memlab.simulation.hardware.presets import PRESETS

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "pytorch_memlab"


def section(title):
    return re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", TEXT, re.DOTALL | re.MULTILINE)[1]


def blocks(title, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", section(title), re.DOTALL | re.MULTILINE)


def statements(source):
    """The statements of a module as text, without comments and docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module) and ast.get_docstring(
            node
        ):
            del node.body[0]
    return [ast.unparse(node) for node in tree.body]


def executed(source, **names):
    exec(compile(source, "CONTRIBUTING.md", "exec"), names)
    return names


@pytest.fixture
def step():
    """A function of which the first line keeps 4 MiB."""

    def step():
        kept = torch.empty(2**20, device="cuda")
        return kept.sum()

    return step


def test_the_targets_of_make_are_those_of_the_table():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE)) - {"help"}
    rows = re.findall(r"^\| (`make .*?) \|", TEXT, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`make ([\w-]+)`", row)} == targets
    shown = set(re.findall(r'^\t@echo "make ([\w-]+) ', makefile, re.MULTILINE))
    assert shown == targets


def test_the_command_that_runs_one_test_finds_tests():
    (command,) = re.findall(r"^\$ \.venv/bin/python (.*)$", section("Run one test"), re.MULTILINE)
    options = ("--collect-only", "-q", "-p", "no:cacheprovider")
    done = run_python([*shlex.split(command), *options], cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert "softmax" in done.stdout


def test_the_folders_that_the_text_names_exist():
    names = re.findall(r"`((?:pytorch_memlab|test|docs|examples)/[\w./]*)`", TEXT)
    assert len(names) > 10
    for name in names:
        assert (ROOT / name).exists(), name


def test_the_op_is_registered_as_shown():
    shown, _ = blocks("Add an op", "python")
    (definition,) = statements(shown)
    families = (PACKAGE / "simulation" / "ops").rglob("*.py")
    assert any(definition in statements(path.read_text()) for path in families)


def test_the_test_of_the_op_passes():
    _, shown = blocks("Add an op", "python")
    names = executed(shown, torch=torch)
    (test,) = (one for name, one in names.items() if name.startswith("test_"))
    test()


def test_the_gpu_is_a_preset_and_its_keys_describe_one(tmp_path):
    (shown,) = blocks("Add a GPU", "toml")
    assert shown in (PACKAGE / "simulation" / "hardware" / "presets.toml").read_text()
    lines = [line for line in shown.splitlines() if not re.match(r"\[|source|aliases", line)]
    file = tmp_path / "my_gpu.toml"
    file.write_text("\n".join(lines))
    with simulate(str(file)):
        assert torch.cuda.get_device_properties(0).total_memory == (
            PRESETS["rtx2080ti"].total_memory
        )


COLUMN_PROGRAM = """
import torch
from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.columns import column_of
from pytorch_memlab.profiles.merging import over_devices

def work(count):
    return [torch.ones(1, device="cuda") for _ in range(count)]

with simulate("1GiB"), LineProfiler(work) as profiler:
    for count in range(1, 41):
        work(count)
profiler.save("profile.json")
loaded = load("profile.json")
(table,) = loaded.display(columns="blocks").report.tables
print(table.rows)
column = column_of("blocks")
print(f"| `{column.name}` | {column.text} | {column.over_hits.value} |")
merged = over_devices(loaded.display(columns=["blocks", "peak"]).report)
print(merged.columns)
try:
    profiler.display(columns="blokcs")
except Exception as error:
    print(error)
"""


def test_a_measured_column_is_its_record_its_measuring_and_its_row(tmp_path):
    """In a copy of the package, in three files."""
    record, measuring = blocks("Add a column", "python")
    (row,) = blocks("Add a column", "markdown")
    shutil.copytree(PACKAGE, tmp_path / "pytorch_memlab")
    for name, place, added in [
        ("columns.py", ')\n"""Those that are no fields', f"{record.strip()},\n"),
        ("scopes/intervals.py", "\n_COMBINE: ", f"\n{measuring}\n"),
    ]:
        path = tmp_path / "pytorch_memlab" / name
        source = path.read_text()
        assert source.count(place) == 1
        path.write_text(source.replace(place, added + place))

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        command = [sys.executable, *arguments]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )

    (tmp_path / "program.py").write_text(COLUMN_PROGRAM)
    done = run("program.py")
    assert not done.stderr
    first, described, *others = done.stdout.splitlines()

    assert first == str({7: (0,), 8: (sum(range(1, 41)),)})
    assert described == row.strip()
    assert others == [
        "('blocks', 'peak max', 'peak min')",
        "unknown column 'blokcs': did you mean blocks?",
    ]
    page = run("-m", "pytorch_memlab", "run", "--help").stdout
    assert "blocks (how many blocks all hits allocated)" in " ".join(page.split())


def test_the_command_counts_the_lines_of_a_profile(step, tmp_path, monkeypatch, capsys):
    (shown,) = blocks("Add a command", "python")
    commands = {"lines": SimpleNamespace(**executed(shown))}
    for module in (command_line, main):
        monkeypatch.setattr(module, "COMMANDS", commands)
    with simulate("1GiB"), LineProfiler(step) as prof:
        step()
    prof.save(tmp_path / "profile.json")

    assert main.main(["lines", str(tmp_path / "profile.json")]) == 0
    assert capsys.readouterr().out == "3\n"
    assert main.main(["lines", str(tmp_path / "missing.json")]) == 2
    assert (
        "Count the lines of a saved profile." in command_line.command_parser("lines").format_help()
    )


def test_a_cause_is_one_file_that_every_report_reads(tmp_path, monkeypatch):
    (shown,) = blocks("Add a cause", "python")
    (tmp_path / "buffers.py").write_text(shown)
    monkeypatch.setattr(causes, "__path__", [*causes.__path__, str(tmp_path)])
    all_causes.cache_clear()
    try:
        with simulate("64MiB"):
            norm = torch.nn.BatchNorm1d(2**22, affine=False).cuda()
            with pytest.raises(torch.OutOfMemoryError) as caught:
                torch.empty(2**26, device="cuda")
            report = uncaught.add(caught.value)
        assert norm.running_mean is not None
        assert "buffers" in [cause.name.removeprefix("the ") for cause in all_causes()]
        assert "2. buffers take 32.0 MiB" in report.text
    finally:
        sys.modules.pop(f"{causes.__name__}.buffers", None)
        vars(causes).pop("buffers", None)
        all_causes.cache_clear()


def test_the_cause_is_recognised(tmp_path):
    (shown,) = blocks("Add a cause", "python")
    cause = executed(shown)["Buffers"]()
    with simulate("64MiB"):
        norm = torch.nn.BatchNorm1d(2**22, affine=False).cuda()
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2**26, device="cuda")
        facts = uncaught.add(caught.value).facts
    remedy = cause.remedy(facts)
    assert remedy.size == 2 * norm.running_mean.nbytes + 512  # and a counter of 8 bytes
    assert (remedy.cause, remedy.why) == ("the buffers", "buffers take 32.0 MiB")
    assert cause.order not in [known.order for known in all_causes()]


def test_a_file_with_an_output_format_is_found_and_writes_the_lines_of_a_report(
    step, tmp_path, monkeypatch, capsys
):
    (format_shown,) = blocks("Add an output format", "python")
    folder = tmp_path / "outputs"
    folder.mkdir()
    (folder / "lines_file.py").write_text(format_shown)
    monkeypatch.setattr(outputs, "__path__", [*outputs.__path__, str(folder)])
    monkeypatch.delitem(sys.modules, f"{outputs.__name__}.lines_file", raising=False)
    assert [*output_formats(RunResults)] == [".txt", ".html", ".json", ".csv"]

    with simulate("1GiB"), LineProfiler(step) as prof:
        step()
    report = prof.display(columns=("kept", "hits")).report
    first = step.__code__.co_firstlineno
    profile = prof.recorded()
    results = RunResults(report, None, profile, profile, report)
    assert output_formats(RunResults)[".csv"].render(results) == (
        "function,line,kept,hits\n"
        f"{step.__qualname__},{first},0,1\n"
        f"{step.__qualname__},{first + 1},{2**22},1\n"
        f"{step.__qualname__},{first + 2},512,1\n"
    )
    assert "4.00M" in output_formats(RunResults)[".txt"].render(results)

    (tmp_path / "program.py").write_text("import torch\ntorch.ones(1 << 20, device='cuda')\n")
    monkeypatch.chdir(tmp_path)
    assert main.main(["run", "--gpu", "t4", "-c", "kept", "-o", "out.csv", "program.py"]) == 0
    assert (tmp_path / "out.csv").read_text().endswith("\n<module>,2,0\n")
    capsys.readouterr()
    assert main.main(["run", "--gpu", "t4", "-o", "out.csw", "program.py"]) == 2
    assert "end it in .txt, .html, .json, .csv, " in capsys.readouterr().err
