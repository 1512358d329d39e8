"""Files of a run that are shared with others show no secrets of its command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytorch_memlab.cli.main import main

SCRIPT = """\
import torch
x = torch.ones(1 << 18, device="cuda")
"""
ARGUMENTS = [
    "--password",
    "hunter2",
    "--api-key=hunter2",
    "WANDB_KEY=hunter2",
    "--url",
    "https://me:hunter2@host",
    "--max-tokens",
    "77",
]
SHOWN = (
    "script.py --password *** --api-key=*** WANDB_KEY=*** --url https://***@host --max-tokens 77"
)
FILES = ["o.json", "o.txt", "o.html", "o.pickle", "o.svg"]


@pytest.fixture
def script(write):
    return write(SCRIPT)


def test_no_file_of_a_run_has_a_secret(script, capsys):
    outputs = [word for name in FILES for word in ("-o", name)]
    assert main(["run", "--history", *outputs, script, *ARGUMENTS]) == 0
    assert main(["run", "--gpu", "t4", script, *ARGUMENTS]) == 0
    assert main(["fit", "--gpu", "t4", script, *ARGUMENTS]) == 0
    told = capsys.readouterr()

    assert f"{SHOWN.partition(' --url')[0]} --url" in " ".join(told.out.split())
    assert "hunter2" not in told.out + told.err
    for name in FILES:
        assert b"hunter2" not in Path(name).read_bytes(), name
    arguments = json.loads(Path("o.json").read_text())["runs"][0]["arguments"]
    assert ["script.py", *arguments] == SHOWN.split(" ")
    assert SHOWN in Path("o.html").read_text()
    assert SHOWN.partition(" --url")[0] in Path("o.svg").read_text()


def test_a_file_of_an_older_release_is_shown_without_its_secrets(script, capsys):
    main(["run", "-o", "o.json", script, *ARGUMENTS])
    data = json.loads(Path("o.json").read_text())
    del data["checksum"]
    data["runs"][0]["arguments"] = ARGUMENTS
    Path("old.json").write_text(json.dumps(data))
    capsys.readouterr()

    main(["show", "old.json"])
    main(["show", "old.json", "-o", "o.html", "-o", "new.json"])
    main(["merge", "old.json", "o.json", "-o", "merged.json"])

    assert SHOWN in capsys.readouterr().out
    for name in ("o.html", "new.json", "merged.json"):
        assert b"hunter2" not in Path(name).read_bytes(), name
