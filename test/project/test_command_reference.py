"""The reference of the command line has every option of every command, with its own anchor."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from pytorch_memlab.cli.command_line import COMMANDS, command_parser

ROOT = Path(__file__).parents[2]

MERGE = """\
## merge

Make one profile of those of several ranks or runs.

The devices have the label of their run, such as "rank0 cuda:0". The tables that show makes of \
it have the sums of hits and time, and of every other column the maximum and the minimum \
over the devices.

Of the folder of a job it keeps what show tells of it, in a file that stays small with thousands \
of ranks.

```console
$ pytorch-memlab merge -o all.memlab.json out.rank0.json out.rank1.json
$ pytorch-memlab merge -o job.json job.memlab
```

```text
pytorch-memlab merge [options] (FILE FILE ... | FOLDER) -o OUTPUT
```

| arguments | |
|---|---|
| `FILE` | the saved profiles, or the folder of a job |

| output | |
|---|---|
| <a id="merge--output"></a>`-o FILE`, `--output FILE` | write this .json file |
| <a id="merge--force"></a>`--force` | overwrite it if it is there already |
"""


@pytest.fixture
def reference(monkeypatch):
    """The module that `make docs` generates the page with."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import command_reference

    yield command_reference
    sys.modules.pop("command_reference")


def test_the_section_of_a_command_is_made_from_its_parser(reference):
    (section,) = (one for one in reference.command_sections() if one.startswith("## merge\n"))
    assert section.startswith(MERGE)


def test_each_option_has_a_row_and_an_anchor_of_its_own(reference):
    text = "".join(reference.command_sections())
    anchors = re.findall(r'<a id="(.*?)"></a>', text)
    options = [
        reference.anchor(name, action)
        for name in COMMANDS
        for action in command_parser(name).shown_actions()
        if action.option_strings and "--help" not in action.option_strings
    ]
    assert sorted(anchors) == sorted(options)
    assert len(set(anchors)) == len(anchors) > 60
    assert {"run--strict-estimates", "fit--try", "diff--fail-over"} <= set(anchors)


def test_exit_codes_are_a_table(reference):
    (section,) = (one for one in reference.command_sections() if one.startswith("## fit\n"))
    assert re.findall(r"^\| (\d) \| (.*?)[:,;]? ", section, re.MULTILINE) == [
        ("0", "the"),
        ("1", "the"),
        ("2", "there"),
        ("3", "the"),
        ("4", "the"),
    ]
    # What stands on two lines of the help is one row.
    assert (
        "| 2 | there is no verdict: the command line cannot be carried out, the program" in section
    )
    assert "varies changes nothing |" in section
