"""``--private``: no file of a run, or of its recordings, has an argument or a folder."""

from __future__ import annotations

import base64
import importlib
import json
import os
import pickle
import re
import sys
import zlib
from contextlib import suppress

import pytest
import torch

from pytorch_memlab import LineProfiler, load, simulate
from pytorch_memlab.cli.main import main

FOLDER = "telling-client"
ARGUMENT = "telling-argument"
PATH_ARGUMENT = "telling-data"

TRAIN = """\
import os, sys
import torch
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "lib"))
from private_net import Net

def step(net):
    return net(torch.ones(64, 1024, device="cuda")).sum()

net = Net()
step(net).backward()
torch.optim.SGD(net.parameters(), 0.1).step()
if "fail" in sys.argv:
    open(os.path.join(os.getcwd(), sys.argv[1]))
if "oom" in sys.argv:
    kept = [torch.ones(1 << 22, device="cuda") for _ in range(1000)]
"""
NET = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1024, 1024, device="cuda")

    def forward(self, x):
        return self.layer(x).relu()
"""
ENDINGS = ("json", "txt", "html", "pickle", "svg", "png")
FUNCTIONS = ("-f", "<module>,step", "-f", "private*:Net.*")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A program in a folder that tells something, and what it imports from a folder beside it."""
    folder = tmp_path / FOLDER / "project"
    folder.mkdir(parents=True)
    (tmp_path / FOLDER / "lib").mkdir()
    (folder / "train.py").write_text(TRAIN)
    (tmp_path / FOLDER / "lib" / "private_net.py").write_text(NET)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def outputs(tmp_path):
    """A folder for what is written."""
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


def arguments_of(outputs, *names):
    return [word for name in names for word in ("-o", str(outputs / name))]


def contents(path):
    """The bytes of a file, and all that is packed in it."""
    data = path.read_bytes()
    found = [data]
    if path.suffix == ".pickle":
        found.append(repr(pickle.loads(data)).encode())
    if path.suffix == ".png":
        found += [zlib.decompress(part) for part in _compressed_texts(data)]
    packed = re.findall(rb'"zlib": ?"([^"]+)"', data)
    found += [zlib.decompress(base64.b64decode(text)) for text in packed]
    return b"\n".join(found)


def _compressed_texts(png):
    """The compressed data of the chunks of text."""
    place = 8
    while place < len(png):
        length, kind = int.from_bytes(png[place : place + 4]), png[place + 4 : place + 8]
        body = png[place + 8 : place + 8 + length]
        if kind == b"zTXt":
            yield body[body.index(b"\0") + 2 :]
        place += length + 12


def assert_private(outputs, tmp_path):
    told = [FOLDER, ARGUMENT, PATH_ARGUMENT, str(tmp_path), tmp_path.name, os.path.expanduser("~")]
    files = sorted(outputs.iterdir())
    assert files
    for path in files:
        data = contents(path)
        assert [word for word in told if word.encode() in data] == [], path.name
        absolute = re.findall(rb"""(?<=["'\s(;])/[a-z][\w.-]*/[\w.-]+[^"'\s]*\.py""", data)
        assert absolute == [], path.name


def test_files_of_other_runs_have_arguments_and_folders(project, outputs, capsys):
    write = arguments_of(outputs, "o.json", "o.html", "o.svg", "o.pickle")
    assert main(["run", "--history", *write, *FUNCTIONS, "train.py", ARGUMENT]) == 0
    capsys.readouterr()

    for name in ("o.json", "o.html", "o.svg"):
        assert ARGUMENT.encode() in contents(outputs / name)
    for name in ("o.json", "o.pickle"):
        assert FOLDER.encode() in contents(outputs / name)  # the folder beside


@pytest.mark.parametrize(
    ("where", "end"),
    [
        ("in the folder", "well"),
        ("in the folder", "fail"),
        ("in the folder", "oom"),
        ("elsewhere", "well"),
        ("elsewhere", "oom"),
    ],
)
def test_no_file_has_an_argument_or_a_folder(
    project, outputs, tmp_path, monkeypatch, capsys, where, end
):
    if where == "elsewhere":
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
    names = [f"o.{ending}" for ending in ENDINGS]
    words = [f"/srv/{PATH_ARGUMENT}/x.pt", "--customer", ARGUMENT, end]
    words = [f"{PATH_ARGUMENT}.pt", *words[1:]] if end == "fail" else words
    options = ["--private", "--history", "--gpu", "1GiB", "--no-try", "--report", "--leaks"]
    options += [*arguments_of(outputs, *names), *FUNCTIONS]
    reports = ["oom.json", "oom.txt"] if end == "oom" else []
    for report in reports or ["no error"]:
        command = ["run", "--force", *options, "--oom-report", str(outputs / report)]
        with suppress(FileNotFoundError, torch.OutOfMemoryError):
            main([*command, str(project / "train.py"), *words])
    capsys.readouterr()

    assert {path.name for path in outputs.iterdir()} == {*names, *reports}
    assert_private(outputs, tmp_path)
    run = json.loads((outputs / "o.json").read_text())["runs"][0]
    assert run["program"] == ("./train.py" if where == "in the folder" else "train.py")
    assert run["arguments"] == []
    assert (
        run["exception"]
        == {
            "well": "",
            "fail": "FileNotFoundError",
            "oom": "torch.OutOfMemoryError",
        }[end]
    )


def test_files_made_of_recordings(project, outputs, tmp_path, monkeypatch, capsys):
    words = [f"/srv/{PATH_ARGUMENT}/x.pt", "--customer", ARGUMENT]
    for name in ("one", "two"):
        write = ["-o", f"{name}.json", "-o", f"{name}.pickle"]
        assert main(["run", "--history", *write, *FUNCTIONS, "train.py", *words]) == 0
    monkeypatch.chdir(tmp_path / "home")
    recordings = [str(project / name) for name in ("one.json", "two.json", "one.pickle")]
    one, two, trace = recordings
    held = ("peak.html", "peak.txt", "peak.csv", "peak.speedscope.json", "peak.collapsed.txt")

    for file in (one, trace):
        assert main(["peak", "--private", file, *arguments_of(outputs, *held)]) == 0
        drawn = arguments_of(outputs, "t.html", "t.svg", "t.png")
        assert main(["timeline", "--private", file, *drawn]) == 0
        assert_private(outputs, tmp_path)
    shown = arguments_of(outputs, "s.html", "s.txt", "s.json")
    assert main(["show", "--private", one, *shown]) == 0
    assert main(["merge", "--private", one, two, "-o", str(outputs / "all.json")]) == 0
    capsys.readouterr()
    assert_private(outputs, tmp_path)
    assert main(["show", "--private", one]) == 0
    printed = capsys.readouterr()
    assert ARGUMENT not in printed.out
    assert "recorded of train.py on" in printed.out


def test_private_recordings_are_read_again(project, outputs, capsys):
    write = arguments_of(outputs, "o.json", "o.pickle")
    assert main(["run", "--private", "--history", *write, *FUNCTIONS, "train.py", ARGUMENT]) == 0
    for name in ("o.json", "o.pickle"):
        capsys.readouterr()
        assert main(["peak", str(outputs / name)]) == 0
        out = capsys.readouterr().out
        assert "train.py:7" in out
        assert 'return net(torch.ones(64, 1024, device="cuda")).sum()' in out
        assert "private_net.py:6" in out  # and no line of torch, which is a library
        assert "linear.py" not in out
    frames = [
        frame["filename"]
        for trace in pickle.loads((outputs / "o.pickle").read_bytes())["device_traces"]
        for event in trace
        for frame in event["frames"]
    ]
    assert {"train.py", "private_net.py"} <= set(frames)
    assert any(name.startswith("site-packages/torch/nn/") for name in frames)


def test_a_private_pickle_shares_its_stacks(project, outputs, capsys):
    for option in ((), ("--private",)):
        name = f"o{len(option)}.pickle"
        assert main(["run", *option, *arguments_of(outputs, name), "train.py"]) == 0
    capsys.readouterr()
    plain, private = ((outputs / f"o{count}.pickle").stat().st_size for count in (0, 1))
    assert private <= plain


def test_the_page_of_a_private_run(project, outputs, capsys):
    write = arguments_of(outputs, "o.html", "o.svg")
    assert main(["run", "--private", *write, *FUNCTIONS, "train.py", ARGUMENT]) == 0
    capsys.readouterr()
    page = (outputs / "o.html").read_text()
    assert re.search(r"<title>train\.py: peak [\d.]+ MiB</title>", page)
    assert set(re.findall(r'data-file="([^"]+)"', page)) == {"train.py", "private_net.py"}
    assert "train.py · " in (outputs / "o.svg").read_text()


@pytest.mark.parametrize("is_loaded", [False, True], ids=["profiler", "loaded"])
def test_files_of_a_profiler(project, outputs, tmp_path, monkeypatch, is_loaded):
    monkeypatch.syspath_prepend(tmp_path / FOLDER / "lib")
    monkeypatch.chdir(tmp_path / "home")
    monkeypatch.setattr("sys.argv", [str(project / "train.py"), "--customer", ARGUMENT])
    with simulate("8GiB", compute=False):
        private_net = importlib.import_module("private_net")
        with LineProfiler(private_net.Net, history=True) as profiler:
            net = private_net.Net()
            net(torch.ones(64, 1024, device="cuda")).sum().item()  # a value that a note names
    sys.modules.pop("private_net")
    profile = profiler
    if is_loaded:
        profiler.save(tmp_path / "open.json")
        profile = load(tmp_path / "open.json")
    profile.to_html(tmp_path / "open.html")
    assert FOLDER.encode() in contents(tmp_path / "open.html")
    profile.save(outputs / "o.json", private=True)
    profile.to_html(outputs / "o.html", private=True)
    assert_private(outputs, tmp_path)
    assert "private_net.py" in (outputs / "o.html").read_text()


@pytest.mark.knows_simulation("fit simulates GPUs, also where there are real ones")
def test_the_curve_of_a_search(project, outputs, capsys):
    (project / "vary.py").write_text(
        "import os, torch\nx = torch.ones(int(os.environ['BATCH']) << 18, device='cuda')\n"
    )
    command = ["fit", "--gpu", "50MiB", "--vary", "BATCH=1:9"]
    program = ["vary.py", "--customer", ARGUMENT]
    assert main([*command, *arguments_of(outputs, "c.svg"), *program]) == 0
    assert ARGUMENT.encode() in contents(outputs / "c.svg")
    assert main([*command, "--private", *arguments_of(outputs, "c.svg"), *program]) == 0
    capsys.readouterr()
    assert_private(outputs, tmp_path=project.parent.parent)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["fit", "--private", "train.py"], "--private is for the picture of --output"),
        (["fit", "--private", "--vary", "A=1:2", "train.py"], "--private is for the picture of"),
    ],
)
def test_it_asks_for_the_file_that_it_is_for(project, capsys, words, error):
    assert main(words) == 2
    assert error in capsys.readouterr().err
