"""Files of a run that are shared with others show no secrets of its command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytorch_memlab import load
from pytorch_memlab._common.text import shared_paths
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


@pytest.mark.knows_simulation("fit simulates GPUs, also where there are real ones")
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


TRAIN = """\
import os, sys
sys.path.insert(0, os.path.expanduser("~/lib"))
import shared_net
kept = shared_net.make()
"""
NET = """\
import torch
def make():
    return torch.ones(1 << 18, device='cuda')
"""


def test_paths_are_relative_to_the_working_folder_or_the_home(
    script, tmp_path, monkeypatch, capsys
):
    home = tmp_path / "home"
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "shared_net.py").write_text(
        "import torch\ndef make():\n    return torch.ones(1 << 18, device='cuda')\n"
    )
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(TRAIN)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(tmp_path / "work")
    outputs = [word for name in FILES if name != "o.pickle" for word in ("-o", name)]
    functions = ["-f", "<module>", "-f", "shared*:make"]

    assert main(["run", "--history", *outputs, *functions, f"{tmp_path}/work/train.py"]) == 0
    assert main(["peak", "o.json", "-o", "p.html", "-o", "p.csv", "-o", "p.speedscope.json"]) == 0
    capsys.readouterr()
    assert main(["peak", "o.json"]) == 0
    peak = capsys.readouterr().out

    names = [*FILES, "p.html", "p.csv", "p.speedscope.json"]
    for name in names:
        content = Path(name).read_text() if Path(name).exists() else ""
        assert str(tmp_path) not in content, name
    data = json.loads(Path("o.json").read_text())
    assert [one["filename"] for one in data["functions"]] == ["./train.py", "~/lib/shared_net.py"]
    assert data["runs"][0]["program"] == "./train.py"
    assert "return torch.ones(1 << 18, device='cuda')" in peak  # read from the file
    loaded = load("o.json").recorded()
    assert [one.filename for one in loaded.functions] == [
        f"{tmp_path}/work/train.py",
        f"{home}/lib/shared_net.py",
    ]
    monkeypatch.chdir(tmp_path)
    assert main(["show", str(tmp_path / "work" / "o.json")]) == 0
    assert "shared_net.py:3 in make" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path", ["train.py", "<stdin>", "", "/elsewhere/x.py", "In[3]", "../x.py", "/home"]
)
def test_other_paths_stay(path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert shared_paths.stored(path) == path
    assert shared_paths.restored(path) == path
