"""README and docs: every command does what it shows, remedies work, and no link is dead."""

from __future__ import annotations

import difflib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_with_time import WITH_TIME
from support.python_process import run_python

from pytorch_memlab.simulation.machine.torch_release import RELEASE

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
DOCUMENTS = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in (README, *sorted((ROOT / "docs").rglob("*.md")))
    if "_generated" not in path.parts and "build" not in path.parts
}

SLOW = ("--large", "llama_step", "trainer", "accelerate_loop", "generate", "gpt2.py")
"""Programs that `make programs` runs: they need other packages, or half a minute."""

BY_HAND = {
    "make demo",
    "make test",
    "pip install .",
}
"""What a reader types to get the project: `.ci/run` and `test_wheel.py` do the same."""


@dataclass(frozen=True)
class Shown:
    """A command in a block of a document, and the output that the block shows."""

    command: str
    output: str


def blocks(language, text=None):
    """The fenced blocks of a language, of one document or of all."""
    found = []
    for document in DOCUMENTS.values() if text is None else (text,):
        found += re.findall(r"^```([\w-]*)\n(.*?)^```$", document, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def commands_of(block):
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield Shown(command.split(" #")[0].strip(), output)


SESSIONS = list(dict.fromkeys(tuple(commands_of(block)) for block in blocks("console")))
"""What is typed in one folder, one command after the other; each session once."""


def is_slow(command):
    return any(name in command for name in SLOW)


@pytest.fixture
def clone(tmp_path):
    """A folder that has the examples, as the root of a clone has them."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    return tmp_path


def run(command, clone):
    """Type a command as a reader would, in the root of the clone."""
    words = shlex.split(command)
    variables = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    if words[0] == "cat":
        return subprocess.run(words, cwd=clone, capture_output=True, text=True)
    assert words[0] == "pytorch-memlab"
    return run_python(["-c", WITH_TIME, *words[1:]], cwd=clone, env=os.environ | variables)


def pattern_of(output):
    """The pattern of an output; a line of three dots stands for any lines, as in doctests."""
    lines = [
        r"(?:.*\n)*?" if line.strip() == "..." else re.escape(line) + r" *\n"
        for line in output.splitlines()
    ]
    return re.compile("".join(lines))


def test_documents_show_commands_and_no_other_block_hides_one():
    commands = {one.command for session in SESSIONS for one in session}
    assert commands >= BY_HAND
    assert len(commands - BY_HAND) >= 5
    for language in ("", "bash", "sh", "shell"):
        assert not any("$ pytorch-memlab" in block for block in blocks(language))


def sessions(slow):
    """The sessions that are typed in a test: those with slow commands, or the others."""
    return pytest.mark.parametrize(
        "session",
        [
            session
            for session in SESSIONS
            if any(is_slow(one.command) for one in session) is slow
            and not any(one.command in BY_HAND for one in session)
        ],
        ids=lambda session: session[-1].command,
    )


shown_release = pytest.mark.skipif(
    RELEASE < (2, 13), reason="the documents show what commands print with torch 2.13"
)


@shown_release
@sessions(slow=False)
def test_commands_print_what_the_documents_show(session, clone):
    for one in session:
        done = run(one.command, clone)
        assert pattern_of(one.output).fullmatch(done.stdout), done.stdout + done.stderr


@pytest.mark.programs
@sessions(slow=True)
def test_slow_commands_print_what_the_documents_show(session, clone):
    test_commands_print_what_the_documents_show(session, clone)


def programs(slow):
    """The commands of the table of programs: the slow ones, or the others."""
    rows = re.findall(
        r"^\| [^|]+ \| `([^`]*pytorch-memlab run [^`]*)` \|$",
        DOCUMENTS["docs/simulation/programs.md"],
        re.MULTILINE,
    )
    plain = [re.sub(r" \[[^]]*\]", "", row) for row in rows]
    return pytest.mark.parametrize("command", [row for row in plain if is_slow(row) is slow])


@programs(slow=False)
def test_a_program_of_the_table_runs(command, clone):
    done = run(command.replace("run ", "run --dry-run ", 1), clone)
    assert done.returncode == 0, done.stderr
    assert "line  code" in done.stdout


@pytest.mark.programs
@programs(slow=True)
def test_a_slow_program_of_the_table_runs(command, clone):
    test_a_program_of_the_table_runs(command, clone)


def test_the_diff_of_the_guide_is_that_of_the_examples():
    (shown,) = blocks("diff", DOCUMENTS["docs/guides/from-error-to-fix.md"])
    before, after = (
        (ROOT / "examples" / name).read_text().splitlines(keepends=True)
        for name in ("gpt2.py", "gpt2_fixed.py")
    )
    diff = "".join(difflib.unified_diff(before, after))
    hunks = diff[diff.index("@@") :].split("\n@@ ")
    assert f"@@ {hunks[2]}\n@@ {hunks[3]}" == shown


STARTED = DOCUMENTS["docs/getting-started.md"]


def example():
    (block,) = (
        block
        for block in blocks("python", STARTED)
        if "def attention" in block and "randn" in block
    )
    return block


def test_the_example_is_the_file_that_the_command_runs():
    assert (ROOT / "examples" / "out_of_memory.py").read_text() == example()


def test_the_remedy_works_when_it_is_applied(clone):
    (remedy,) = (
        block
        for block in blocks("python", STARTED)
        if "def attention" in block and "randn" not in block
    )
    program, replaced = re.subn(
        r"^def attention.*?^    return [^\n]*\n",
        lambda _: remedy,
        example(),
        flags=re.DOTALL | re.MULTILINE,
    )
    assert replaced == 1
    (clone / "fixed.py").write_text(program)
    before = run("pytorch-memlab run --dry-run --gpu 2GiB examples/out_of_memory.py", clone)
    after = run("pytorch-memlab run --gpu 2GiB fixed.py", clone)
    assert (before.returncode, after.returncode) == (1, 0)
    assert "torch.OutOfMemoryError" in before.stderr
    (said,) = re.findall(r"the peak is (\S+) MiB", STARTED)
    peaks = [
        float(peak)
        for peak in re.findall(r"^ *([\d.]+) MiB .*attention\(", after.stdout, re.MULTILINE)
    ]
    assert max(peaks) == float(said)


def test_the_documentation_builds_and_no_link_in_it_is_dead(tmp_path):
    pytest.importorskip("furo", reason="Sphinx of this age needs Python 3.11")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "site"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("*.html")}
    sources = {Path(name) for name in DOCUMENTS} - {Path("README.md")}
    assert {path.relative_to("docs").with_suffix(".html") for path in sources} <= pages
