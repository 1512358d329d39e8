"""``run -f``: lists, patterns, methods of any class, and modules as they are imported."""

from __future__ import annotations

import re
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from support.python_process import run_python

from pytorch_memlab.cli.main import main
from pytorch_memlab.cli.run import targets

SCRIPT = """\
import json

class Block:
    def __init__(self): self.x = 1
    def forward(self):
        def inner(): return self.x
        return inner()

class Net:
    def forward(self): return Block().forward()

def train(): return Net().forward()
def idle(): pass
train()
"""


@pytest.fixture
def packages():
    """Forgets the modules that a test has imported."""
    for name in [one for one in sys.modules if one.partition(".")[0] == "package"]:
        del sys.modules[name]  # another test's
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def profiled(capsys):
    """The names of the functions whose tables were printed, and the notes below."""
    lines = capsys.readouterr().out.splitlines()
    notes = [line for line in lines if line.startswith(("no function", "did not"))]
    return [line.removeprefix("## ") for line in lines if line.startswith("## ")] + notes


@pytest.mark.parametrize(
    ("options", "functions"),
    [
        (["-f", "Net,train"], ["Net.forward", "train"]),
        (["-f", "Block.*,train"], ["Block.__init__", "Block.forward", "inner", "train"]),
        (["-f", "train", "--function", "Net.*"], ["train", "Net.forward"]),
        (["-f", "*.forward"], ["Block.forward", "Net.forward"]),
        (["-f", "[BN]*.forward"], ["Block.forward", "Net.forward"]),
        (["-f", "forward"], ["Block.forward", "Net.forward"]),
        (["-f", "inner"], ["inner"]),
        (["-f", "script:Net.*"], ["Net.forward"]),
        (["-f", "__main__:t*"], ["train"]),
        (["-f", "scr*:t*"], ["train"]),
        (["-f", "*"], ["Block.__init__", "Block.forward", "inner", "Net.forward", "train"]),
        (["-f", "json.decoder:*.decode"], ["JSONDecoder.decode"]),
    ],
)
def test_lists_and_patterns(options, functions, write, capsys):
    full = ["Block.forward.<locals>.inner" if name == "inner" else name for name in functions]

    main(["run", "-c", "hits", *options, write(SCRIPT + "\njson.loads('[]')\n")])

    assert profiled(capsys) == full


def test_a_function_of_this_very_name_goes_before_methods(write, capsys):
    text = SCRIPT + "def forward(): pass\nforward()\n"

    main(["run", "-c", "hits", "-f", "forward", write(text)])

    assert profiled(capsys) == ["forward"]


def test_named_functions_that_did_not_run_are_said_beside_patterns(write, capsys):
    main(["run", "-c", "hits", "-f", "idle,Net.*", write(SCRIPT)])

    assert "## Net.forward\n" in (out := capsys.readouterr().out)
    assert "\nidle did not run while profiled\n" in out


def test_patterns_of_which_nothing_ran_say_so(write, capsys):
    main(["run", "-c", "hits", "-f", "id*", write(SCRIPT)])

    assert "idle did not run while profiled\n" in capsys.readouterr().out


PACKAGE = """\
from package.deep import blocks
blocks.Block().forward()
blocks.make()()
"""
BLOCKS = """\
class Block:
    def forward(self):
        return 1

def make():
    def forward(): return 2
    return forward

import_time = make()()
"""


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_modules_that_match_are_profiled_as_the_program_imports_them(write, capsys, packages):
    write("", "package/__init__.py")
    write("", "package/deep/__init__.py")
    write(BLOCKS, "package/deep/blocks.py")
    write("raise ImportError('not of this program')", "package/deep/other.py")
    get_code = SourceFileLoader.get_code

    main(["run", "-c", "hits", "-f", "package.*:*forward", write(PACKAGE)])

    assert capsys.readouterr().out == (
        "## Block.forward\n"
        "\n"
        "hits line  code\n"
        "   1    2      def forward(self):\n"
        "   1    3          return 1\n"
        "\n"
        "\n"
        "## make.<locals>.forward\n"
        "\n"
        "hits line  code\n"
        "   2    6      def forward(): return 2\n"
        "\n"
        "simulated GPU: NVIDIA H100 80GB HBM3 (cuda:0)\n"
    )
    assert SourceFileLoader.get_code == get_code
    assert "get_code" not in vars(SourceFileLoader)


def test_modules_that_were_imported_before_are_profiled_too(write, capsys):
    text = "import torch\ntorch.nn.functional.relu(torch.ones(2))\n"

    main(["run", "-c", "hits", "-f", "torch.nn.f*:rel[u]", write(text)])

    assert profiled(capsys) == ["relu"]


def test_all_of_torch_can_be_named(write, capsys):
    """A module such as torch.classes makes an attribute, or an error, of any name."""
    text = "import torch\ntorch.nn.functional.relu(torch.ones(2))\n"
    odd = "torch.[co][lp]*s:*,torch._[co]*s:*,torch.backends*:*"  # torch.classes, ops, and others

    main(["run", "-c", "hits", "-f", f"{odd},torch.nn.functional:relu", write(text)])

    assert "relu" in profiled(capsys)


def test_a_pattern_of_modules_that_matched_nothing_is_said(write, capsys):
    main(["run", "-c", "hits", "-f", "no_such.*:*,train", write(SCRIPT)])

    assert profiled(capsys) == [
        "train",
        "no function matched -f no_such.*:* in the modules that the program imported",
    ]


def test_an_error_in_a_module_that_matches_shows_the_programs_frames_only(write, capsys, packages):
    write("def f(:\n", "broken_module.py")
    name = write("import broken_module\n")
    done = [
        run_python([*command, name])
        for command in ([], ["-m", "pytorch_memlab", "run", "-f", "broken*:*"])
    ]

    assert done[1].stderr.endswith(done[0].stderr)
    assert done[1].stderr.count("\n") == done[0].stderr.count("\n") + 1  # which GPU is simulated


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "Blok.forward",
            (
                "there is no function Blok.forward; script.py has Block.forward,"
                " Block.forward.inner, Net.forward. Functions of other modules are written"
                " module:function"
            ),
        ),
        (
            "xyz",
            (
                "there is no function xyz; script.py has Block.__init__, Block.forward,"
                " Block.forward.inner, Net.forward. Functions of other modules are written"
                " module:function"
            ),
        ),
        (
            "Blok.*",
            (
                "no function matches Blok.*; script.py has Block.__init__, Block.forward,"
                " Block.forward.inner, Net.forward"
            ),
        ),
        ("json:*.nothing", "no function of json matches *.nothing"),
        (
            "no_such_package:*",
            (
                "cannot import no_such_package, which -f no_such_package:* names: No module named"
                " 'no_such_package'; 'no_such_package*:*' waits until the program imports it"
            ),
        ),
        (
            "no_such:f",
            (
                "there is no function no_such:f (No module named 'no_such'; 'no_such*:f' waits"
                " until the program imports it); script.py has Block.__init__, Block.forward,"
                " Block.forward.inner, Net.forward. Functions of other modules are written"
                " module:function"
            ),
        ),
        ("", "-f names no function: give one such as train or Net.forward"),
        ("train,", "-f names no function: give one such as train or Net.forward"),
    ],
)
def test_names_that_mean_nothing(name, said, write, capsys):
    code = main(["run", "-f", name, write(SCRIPT)])

    assert code == 2
    assert capsys.readouterr() == ("", f"pytorch-memlab run: error: {said}\n")


def test_a_pattern_of_all_modules_tells_how_many_functions_it_watches(write, capsys):
    script = 'import torch\nx = torch.ones(1000, device="cuda")\nx.add_(1)\n'
    main(["run", "-c", "hits", "-f", "*:*", write(script)])
    printed = capsys.readouterr()
    [line] = [one for one in printed.err.splitlines() if "watches" in one]
    found = re.fullmatch(
        r"pytorch-memlab: -f watches ([\d,]+) functions of ([\d,]+) modules, and those of modules "
        r"that the program imports: a narrower pattern takes less time",
        line,
    )
    functions, modules = (int(number.replace(",", "")) for number in found.groups())
    assert functions > 10_000
    assert 100 < modules < len(sys.modules)
    assert "\n## SimulatedFunctionMode" not in printed.out


def test_the_source_of_functions_that_did_not_run_is_not_read(write, capsys, monkeypatch):
    read = []
    original = targets.function_source
    monkeypatch.setattr(
        targets, "function_source", lambda code, name: read.append(name) or original(code, name)
    )
    script = "import textwrap\nprint(textwrap.dedent('  a'))\n"
    main(["run", "-c", "hits", "-f", "textwrap*:*", write(script)])
    assert read == ["dedent"]
    assert "def dedent(text):" in capsys.readouterr().out


RAISING = {
    "raise ValueError('boom')": "ValueError: boom",
    "{}['key']": "KeyError: 'key'",
    "def (": "SyntaxError: invalid syntax",
    "raise SystemExit('usage: helper')": "SystemExit: usage: helper",
    "None.nothing": "AttributeError: 'NoneType' object has no attribute 'nothing'",
}


@pytest.mark.parametrize("name", ["raises:f", "raises:*"])
@pytest.mark.parametrize("source", RAISING)
def test_a_module_that_raises_when_it_is_imported(source, name, write, capsys):
    Path("raises.py").write_text(source)
    script = write("print('ran')\n")

    code = main(["run", "-f", name, script])

    assert code == 2
    assert capsys.readouterr() == (
        "",
        (
            f"pytorch-memlab run: error: cannot import raises, which -f {name} names:"
            f" {RAISING[source]}; python -c 'import raises' shows where\n"
        ),
    )


def test_a_module_that_cannot_import_a_name(write, capsys):
    Path("raises.py").write_text("from json import nothing_of_it")
    script = write("print('ran')\n")

    assert main(["run", "-f", "raises:f", script]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "pytorch-memlab run: error: cannot import raises, which -f raises:f names: cannot import"
        " name 'nothing_of_it' from 'json'"
    )
