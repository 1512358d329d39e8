"""Variables that --vary may name, and how a trial gets a value."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from pathlib import Path

import pytest

from pytorch_memlab.errors import UsageError
from pytorch_memlab.fitting.config_value import changed_text, replaced_file
from pytorch_memlab.fitting.variable import read_variable, variables_of

_EXAMPLES = (
    "an option of the program (--batch-size=1:512), an environment variable (BATCH=1:512) or a"
    " value of a file (config.yaml:train.batch_size=1:512)"
)
_TOO_MANY = "a range has at most 1,000,000 values"
_RANGES = "values are a range such as 1:512, with a step 8:512:8, or a list such as 1,2,4,8"


@pytest.mark.parametrize(
    ("text", "given", "expected"),
    [
        ("--batch=1:9", "", "--batch=5"),
        ("--batch=1:9", "--lr 1 --batch 2 --x", "--lr 1 --batch=5 --x"),
        ("--batch 1:9", "--lr 1 --batch 2 --x", "--lr 1 --batch 5 --x"),
        ("--batch 1:9", "--batch=2", "--batch=5"),
        ("--batch=1:9", "--batch 2 --batch 3", "--batch 2 --batch=5"),
        ("--batch=1:9", "--batch --x", "--batch=5 --x"),
        ("--batch=1:9", "--batch -1 --x", "--batch=5 --x"),
        ("--batch=1:9", "--batch-size 2", "--batch-size 2 --batch=5"),
        ("--batch=1:9", "a -- --batch 3", "a --batch=5 -- --batch 3"),
        ("-b=1:9", "-v -b 2", "-v -b 5"),
        ("-b 1:9", "", "-b 5"),
        ("train.batch=1:9", "lr=1", "lr=1 train.batch=5"),
        ("batch=1:9", "batch=2 lr=1", "batch=5 lr=1"),
    ],
)
def test_an_option_gets_its_value(text: str, given: str, expected: str) -> None:
    arguments = tuple(given.split())

    setting = read_variable(text, arguments).place.set_to(5)

    assert setting.arguments(arguments) == tuple(expected.split())
    assert setting.environment() == {}


def test_an_environment_variable_gets_its_value() -> None:
    variable = read_variable("BATCH=1:64", ("BATCHES=3",))
    setting = variable.place.set_to(5)

    assert (variable.name, setting.name) == ("BATCH", "BATCH=5")
    assert setting.environment() == {"BATCH": "5"}
    assert setting.arguments(("x",)) == ("x",)


@pytest.mark.parametrize(
    ("text", "values", "is_range"),
    [
        ("-b=1:512", range(1, 513), True),
        ("-b=8:30:8", range(8, 31, 8), True),
        ("-b=7:7", range(7, 8), True),
        ("-b=16,4,4,8", (4, 8, 16), False),
        ("-b=32", (32,), False),
        ("--dtype=bf16, fp32", ("bf16", "fp32"), False),
    ],
)
def test_values(text: str, values: object, is_range: bool) -> None:
    variable = read_variable(text)

    assert (variable.values, variable.is_range) == (values, is_range)
    assert (variable.numbers is None) == ("bf16" in text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "512",
            f"--vary takes {_EXAMPLES}, not '512'",
        ),
        ("-b=512:1", "--vary -b=512:1: the range ends before it begins, write 1:512"),
        (
            "-b=1:3000000:2",
            f"--vary -b=1:3000000:2: {_TOO_MANY}, so give it a step: 1:3000000:4",
        ),
        ("-b=1:9:0", "--vary -b=1:9:0: a step is 1 or more, not 0"),
        (
            "-b=1:x",
            f"--vary -b=1:x: {_RANGES}",
        ),
        ("absent.yaml:a=1:2", "--vary cannot read absent.yaml: No such file or directory"),
    ],
)
def test_what_it_does_not_take(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        read_variable(text)

    assert str(error.value) == message


YAML = "train: &t  # of all\n  batch_size: 4  # items\n  layers: [1, 'two']\nother: *t\n"
TOML = '[model]\nbatch_size = 4\n[train]\nbatch_size = 4 # items\nname = "4"\n'
NAN = 'lr = 8.0\ntemperature = nan\nname = "a # b"  # c\nlength = 8\n'
ANCHORED = "size: &size 8  # items\neval: *size\nnumber: !!int '9'\n"
PYTHON = (
    "batch_size = 4  # ä\n"
    "class Config:\n    batch_size: int = 2 * 2\n"
    "config = dict(train={'batch_size': 4}, é=1)\n"
)


@pytest.mark.parametrize(
    ("path", "text", "key", "value", "expected"),
    [
        ("a.yaml", YAML, "train.batch_size", 9, YAML.replace(": 4", ": 9")),
        ("a.yml", YAML, "train.layers.1", "three", YAML.replace("'two'", "three")),
        ("a.toml", TOML, "train.batch_size", 9, TOML.replace("4 #", "9 #")),
        ("a.toml", TOML, "train.name", "nine", TOML.replace('"4"', '"nine"')),
        ("a.toml", NAN, "length", 8, NAN),
        ("a.toml", NAN, "lr", 8, NAN.replace("8.0", "8")),
        ("a.toml", NAN, "name", "x", NAN.replace("a # b", "x")),
        ("a.yaml", ANCHORED, "size", 9, ANCHORED.replace("8", "9")),
        ("a.yaml", ANCHORED, "number", 8, ANCHORED.replace("'9'", "8")),
        ("a.py", PYTHON, "batch_size", 9, PYTHON.replace("= 4  #", "= 9  #")),
        ("a.py", PYTHON, "Config.batch_size", 9, PYTHON.replace("2 * 2", "9")),
        ("a.py", PYTHON, "config.train.batch_size", 9, PYTHON.replace(": 4}", ": 9}")),
        ("a.py", PYTHON, "config.é", "x", PYTHON.replace("é=1", "é='x'")),
    ],
)
def test_a_value_of_a_file(path: str, text: str, key: str, value: int, expected: str) -> None:
    assert changed_text(path, text, key, value) == expected


def test_a_value_of_a_json_file() -> None:
    text = '{"train": {"sizes": [1, 2]}, "lr": 0.1}'

    changed = changed_text("a.json", text, "train.sizes.1", 9)

    assert json.loads(changed) == {"train": {"sizes": [1, 9]}, "lr": 0.1}


@pytest.mark.parametrize(
    ("path", "text", "key", "message"),
    [
        (
            "a.yaml",
            YAML,
            "train.batchsize",
            "a.yaml has no batchsize of train.batchsize: did you mean batch_size?",
        ),
        ("a.json", '{"a": 1, "b": 2}', "zzz", "a.json has no zzz: there is a, b"),
        ("a.json", "{", "a", "cannot read a.json: Expecting property name enclosed in"),
        ("a.toml", "a = ", "a", "cannot read a.toml: Invalid value"),
        ("a.yaml", "a: [", "a", "cannot read a.yaml: while parsing a flow node"),
        ("a.yaml", YAML, "train", "cannot read a.yaml: train is no plain value"),
        ("a.py", "a = (", "a", "cannot read a.py: '(' was never closed"),
        ("a.py", PYTHON, "Config", "cannot read a.py: Config is no plain value"),
        ("a.py", "def f(): pass", "a", "a.py has no a: there is nothing"),
    ],
)
def test_a_file_that_has_no_such_value(path: str, text: str, key: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        changed_text(path, text, key, 9)

    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_yaml_files_need_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(UsageError, match=r"^YAML files need PyYAML: pip install pyyaml$"):
        changed_text("a.yaml", YAML, "train.batch_size", 9)


def test_the_program_reads_the_value_and_the_file_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "settings_of_test.py"
    path.write_text("batch = 4\n")
    importlib.import_module(path.stem)  # leaves compiled code, which must not be taken
    variable = read_variable("settings_of_test.py:batch=1:64")
    setting = variable.place.set_to(9)
    os.chdir("/")  # as a program may do
    del sys.modules[path.stem]

    with setting.applied():
        assert setting.finding() == "the program does not read settings_of_test.py"
        with open(path) as as_text, open(str(path), "rb") as as_bytes:
            assert (as_text.read(), as_bytes.read()) == ("batch = 9\n", b"batch = 9\n")
        with io.open_code(str(path)) as as_code:
            assert as_code.read() == b"batch = 9\n"
        assert path.read_text() == "batch = 9\n"
        assert setting.finding() is None
        assert importlib.import_module(path.stem).batch == 9
        with open(path, "r+") as itself:
            assert itself.read() == "batch = 4\n"

    del sys.modules[path.stem]
    assert path.read_text() == "batch = 4\n"
    assert importlib.import_module(path.stem).batch == 4
    del sys.modules[path.stem]


def test_a_file_that_begins_with_a_mark_of_its_encoding(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("\ufeff" + '{"batch": 4}')
    setting = read_variable(f"{path}:batch=1:64").place.set_to(9)

    with setting.applied(), open(path, encoding="utf-8-sig") as opened:
        assert json.load(opened) == {"batch": 9}


def test_other_files_and_links(tmp_path: Path) -> None:
    path, link, other = (tmp_path / name for name in ("a.json", "link", "xa.json"))
    path.write_text("1")
    other.write_text("2")
    link.symlink_to(path)

    with replaced_file(str(path), b"one"):
        assert [one.read_text() for one in (path, link, other)] == ["one", "one", "2"]
        with open(os.open(path, os.O_RDONLY)) as by_number:
            assert by_number.read() == "1"


def test_values_of_keyword_arguments() -> None:
    def values(given: object) -> object:
        (variable,) = variables_of({"batch_size": given}, is_function=True)
        assert variable.name == "batch_size"
        return variable.values

    assert values((1, 512)) == range(1, 513)
    assert values(range(8, 65, 8)) == range(8, 65, 8)
    assert values([4, 1, 4]) == (1, 4)
    assert values(("bf16", "fp32")) == ("bf16", "fp32")
    change = variables_of({"batch_size": (1, 512)}, is_function=True)[0].place.set_to(9)
    assert change.name == "batch_size=9"
    assert change.keywords({"length": 3}) == {"length": 3, "batch_size": 9}
    for wrong in (512, [], (1.5, 2), "1:512", {1: 2}):
        with pytest.raises(UsageError) as error:
            values(wrong)
        assert str(error.value) == (
            f"vary={{'batch_size': {wrong!r}}}: values are the two ends of a range such as"
            " (1, 512), or a list such as [1, 2, 4, 8]"
        )
    with pytest.raises(UsageError, match="the range ends before it begins, write 1:512"):
        values((512, 1))


def test_a_dict_of_variables() -> None:
    (option,) = variables_of({"--batch-size": (1, 512)}, is_function=False)
    assert option.place.set_to(9).arguments(()) == ("--batch-size=9",)
    for wrong in ([1], {3: (1, 2)}):
        with pytest.raises(UsageError) as error:
            variables_of(wrong, is_function=True)  # type: ignore[arg-type]
        assert str(error.value) == (
            f"vary is a dict such as {{'batch_size': (1, 512)}}, not {wrong!r}"
        )
