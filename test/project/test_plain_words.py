"""The words that `make lint` refuses, in documents, strings and names, and long docstrings."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "plain_words.py"
WORDS = runpy.run_path(str(SCRIPT))

DOCUMENT = """\
# A page

Meanwhile the model
runs anew, `anew` or not.

```
besides
```

[whoever](whoever.md)
"""

PROGRAM = '''\
"""Whether it runs."""

import os

TEXT = f"made anew in {os.sep}"  # besides


class PeakLedger:
    """The laps of a run."""

    def laps(self):
        """Return the text of
        nobody."""
        return "what is whole stays: elapsed, overlap, Whatever"
'''


def found(kind, text):
    return [tuple(one) for one in WORDS[kind](text)]


def test_sentences_of_a_document_are_read_and_code_is_not():
    assert found("in_document", DOCUMENT) == [
        (3, "'meanwhile': write 'while'"),
        (4, "'anew': write again"),
        (10, "'whoever': write a subject"),
    ]


def test_strings_comments_names_and_openings_of_a_program_are_read():
    assert found("in_program", PROGRAM) == [
        (1, "a docstring begins with 'Whether': write a statement"),
        (5, "'anew': write again"),
        (5, "'besides': write 'and' or 'with'"),
        (8, "name PeakLedger: write 'peak tracker'"),
        (9, "'laps': write 'restart'"),
        (11, "name laps: write 'restart'"),
        (13, "'nobody': write a subject"),
    ]


def test_variables_and_parameters_of_the_package_say_what_they_hold():
    program = """\
class Profile:
    shown: int = 0
    known = 1

def add(found, *, many):
    for one in many:
        given = {each: found.shown for each in one}
    found += lambda known: known
    with open(given) as shown:
        match shown:
            case [one, *found]:
                return one
    try:
        return shown
    except OSError as known:
        return known
"""
    assert [tuple(problem) for problem in WORDS["vague_variables"](program)] == [
        (line, f"variable {name}: say what it holds")
        for line, name in [
            (5, "found"),
            (6, "one"),
            (7, "each"),
            (7, "given"),
            (8, "found"),
            (8, "known"),
            (9, "shown"),
            (11, "found"),
            (11, "one"),
            (15, "known"),
        ]
    ]


DOCUMENT_FOR_USERS = """\
Call `Shown.to_frame()` or

```python
from pytorch_memlab.places import Imported
```

but not Named.
"""

MODULES = (
    """\
_NAMES = {"lines": ("profile",)}
""",
    '''\
"""Of a module,
any lines."""

__all__ = ["Listed"]


def profile(path: str) -> Result | None:
    """For users.

    Args:
        path: of a file.
    """

    def work():
        """Internal,

        in two lines."""


class Base:
    """Of a public class.

    So it is public.
    """

    def method(self):
        """As this is.

        Two lines.
        """

    def _part(self):
        """This is not.

        Two lines.
        """


class Listed(Base):
    def frame(self) -> pd.Frame[Rows]:
        """For users.

        Two lines.
        """


class Rows:
    """What a public method returns.

    Two lines.
    """


class Imported:
    """Of a document.

    Two lines.
    """


class Named:
    """Of no code.

    Two lines.
    """

    def short(self):
        """One line with an example.

        >>> Named().short()
        """

    def method(self):
        """Of an internal class.

        >>> Named().method()

        Two lines.
        """

    @line_magic
    def mlrun(self, line):
        """Help.

        Two lines.
        """


class RunCommand:
    """Help.

    Two lines.
    """
''',
)


def test_docstrings_of_internal_names_have_one_line():
    trees = [ast.parse(text) for text in MODULES]
    public = WORDS["public_names"](trees, [DOCUMENT_FOR_USERS])
    assert [
        found.problem for tree in trees for found in WORDS["long_docstrings"](tree, public)
    ] == [
        f"docstring of {name}: write one line, and reasons as comments"
        for name in ("work", "_part", "Named", "method")
    ]


LONG = '    """A line.\n\n    Another.\n    """\n'


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a word, a vague variable, and a long docstring where users read none."""
    texts = {
        "README.md": "It runs anew, `Peak` is public.\n",
        "pytorch_memlab/scopes/peak.py": '"""Nobody, whoever, anew."""\n',
        "pytorch_memlab/scopes/row.py": f"one = 1\nclass Peak:\n{LONG}\n\ndef b():\n{LONG}",
        "pytorch_memlab/_generated/row.py": '"""Nobody."""\n',
        "scripts/run.py": "one = 1\n",
        "scripts/plain_words.py": '"""Nobody."""\n',
    }
    for name, text in texts.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setitem(WORDS["main"].__globals__, "ROOT", tmp_path)
    return tmp_path


def test_each_place_of_a_project_is_shown_and_fails_it(project, capsys):
    assert WORDS["main"]() == 1
    assert capsys.readouterr().out.splitlines() == [
        "README.md:1: 'anew': write again",
        "pytorch_memlab/scopes/peak.py:1: 'anew': write again",
        "pytorch_memlab/scopes/peak.py:1: 'nobody': write a subject",
        "pytorch_memlab/scopes/peak.py:1: 'whoever': write a subject",
        "pytorch_memlab/scopes/row.py:1: variable one: say what it holds",
        "pytorch_memlab/scopes/row.py:10: docstring of b: write one line, and reasons as comments",
    ]


@pytest.mark.parametrize(
    ("text", "status"), [(f"class Peak:\n{LONG}", 0), (f"class Row:\n{LONG}", 1), ("one = 1\n", 1)]
)
def test_a_word_or_a_long_docstring_alone_fails_a_project(project, text, status):
    (project / "README.md").write_text("It runs again, `Peak` is public.\n")
    (project / "pytorch_memlab/scopes/peak.py").write_text("")
    (project / "pytorch_memlab/scopes/row.py").write_text(text)
    assert WORDS["main"]() == status
