"""The number of a program that is its batch: in the source, or on the command line."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.made_up_facts import MIB, made_up_facts, place
from support.ran_out import written

from pytorch_memlab.advice.batch_size import BatchNumber, batch_number
from pytorch_memlab.advice.causes.batch import Batch
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import BlockInUse, OutOfMemory

LOADS = """\
import argparse
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
{option}
args = parser.parse_args()
{rest}
for x, y in loader:
    model(x.cuda())
"""


def facts_of(folder, option: str, rest: str, *arguments: str) -> OutOfMemory:
    text = LOADS.format(option=option, rest=rest)
    block = BlockInUse(100 * MIB, Category.SAVED, None, "x", (64, 1000))
    facts = made_up_facts(place(text, folder, "model(x.cuda())"), [block])
    return replace(facts, arguments=arguments)


def number_of(*program) -> BatchNumber | None:
    return batch_number(facts_of(*program), [64])


NAMED = 'parser.add_argument("-b", "--batch-size", default=16, type=int)'
OTHER = 'parser.add_argument("--n", default=64, type=int)'
LOADER = "loader = DataLoader(data, args.n, shuffle=True)"


@pytest.mark.parametrize(
    ("option", "rest", "arguments", "with_half"),
    [
        (NAMED, "loader = DataLoader(data, args.batch_size)", ["--batch-size", "64"], None),
        (NAMED, "loader = DataLoader(data, args.batch_size)", ["--lr=1", "-b", "64"], None),
        (NAMED, "loader = DataLoader(data, args.batch_size)", ["--batch-size=64", "data"], None),
        (NAMED, "loader = DataLoader(data, args.batch_size)", ["--batch", "64"], None),
        # A library declares it.
        ("", "loader = Trainer(args).loader()", ["--per_device_train_batch_size", "64"], None),
        ("", "loader = make(config)", ["train.batch_size=64"], None),
        (OTHER, LOADER, ["--n", "64", "--lr", "64"], ["--n", "32", "--lr", "64"]),
        (OTHER, "n = args.n\nloader = DataLoader(data, batch_size=n)", ["--n", "64"], None),
        (
            OTHER.replace("--n", "--many"),
            "def load(count):\n    return DataLoader(data, count)\nloader = load(args.many)",
            ["--many", "64"],
            None,
        ),
        (
            OTHER.replace("--n", "--many"),
            "def f():\n def g(m):\n  return DataLoader(data, m)\n return g(args.many)\nx = f()",
            ["--many", "64"],
            None,
        ),
    ],
)
def test_an_option_of_the_command_line_is_the_batch(option, rest, arguments, with_half, tmp_path):
    number = number_of(tmp_path, option, rest, *arguments)
    assert number is not None
    assert number.value == 64
    smaller = number.changed_to(64).with_value(32)
    expected = with_half or [word.replace("64", "32") for word in arguments]
    assert list(smaller.arguments(arguments)) == expected
    [code] = written(smaller)
    assert code == f"{' '.join(code.split()[:-5])}  # on the command line"
    assert " ".join(expected).count(code.partition("  #")[0]) == 1


@pytest.mark.parametrize(
    ("option", "rest", "code"),
    [
        (OTHER, LOADER, 'parser.add_argument("--n", default=32, type=int)'),
        (
            'parser.add_argument("--n", default=64, dest="many")',
            "loader = DataLoader(data, args.many)",
            'parser.add_argument("--n", default=32, dest="many")',
        ),
        ("many = 64", "loader = DataLoader(data, many)", "many = 32"),
        ("many = 64", "loader = iter(lambda: load(bsz=many), None)", "many = 32"),
        (
            "many = 64",
            "while True:\n    x = torch.randn(many, 1000)",
            "many = 32",
        ),
        (
            "@dataclass\nclass Config:\n    pictures: int = 64",
            "config = Config()\nloader = DataLoader(data, config.pictures)",
            "pictures: int = 32",
        ),
        (
            "@dataclass\nclass Config:\n    pictures: int = 2",
            "config = Config(pictures=64)\nloader = DataLoader(data, config.pictures)",
            "config = Config(pictures=32)",
        ),
        (
            'settings = {"data": {"rows": 64, "columns": 8}, "lr": 64}',
            'loader = DataLoader(data, settings["data"]["rows"])',
            'settings = {"data": {"rows": 32, "columns": 8}, "lr": 64}',
        ),
        (
            "settings = dict(rows=64, columns=8)",
            'loader = DataLoader(data, settings["rows"])',
            "settings = dict(rows=32, columns=8)",
        ),
        (
            "",
            "def main(pairs=64, steps=8):\n    loader = DataLoader(data, pairs)\nmain(steps=2)",
            "def main(pairs=32, steps=8):",
        ),
    ],
)
def test_a_number_of_another_name_is_the_batch_where_it_is_used_as_one(
    option, rest, code, tmp_path
):
    number = number_of(tmp_path, option, rest)
    assert number is not None
    assert written(number.changed_to(32)) == (code,)


@pytest.mark.parametrize(
    ("option", "rest", "arguments"),
    [
        (OTHER, "loader = DataLoader(data)", []),  # nothing uses it as a batch
        (OTHER, LOADER, ["--n", "128"]),  # no tensor has so many
        (OTHER, LOADER + "\nnet = nn.Linear(args.n, 10)", []),  # a layer has as many inputs
        ("many = 64", "net = Net(many)\nloader = DataLoader(data, many)", []),
        # Two dictionaries have the key, and a caller gives another number than the default.
        ('a = {"rows": 64}', 'b = {"rows": 8}\nloader = DataLoader(data, c["rows"])', []),
        ("", "def main(pairs=64):\n    loader = DataLoader(data, pairs)\nmain(count())", []),
        ("many = 64", "many = 32\nloader = DataLoader(data, many)", []),
        (NAMED, "loader = DataLoader(data, args.batch_size)", ["--batch-size", "100"]),
        ("", "class Net:\n    def __init__(self, n):\n        torch.ones(n)\nNet(64)", []),
    ],
)
def test_another_number_is_not_the_batch(option, rest, arguments, tmp_path):
    assert number_of(tmp_path, option, rest, *arguments) is None


def test_the_batch_of_the_command_line_goes_before_that_of_the_program(tmp_path):
    facts = facts_of(
        tmp_path, NAMED, "loader = DataLoader(data, args.batch_size)", "--batch-size", "64"
    )
    remedy = Batch().remedy(facts)
    assert remedy is not None
    assert remedy.why.startswith("64 samples at a time take ")
    assert written(remedy)[0].startswith("--batch-size ")
    assert remedy.change is not None


def test_a_number_beside_the_batch_that_is_equal_by_chance_stays(tmp_path):
    rest = "while True:\n    x, y = torch.rand(64, 64, 1000), torch.ones(64, 64)"
    number = number_of(tmp_path, "", rest)
    assert number is not None
    assert written(number.changed_to(16)) == (
        "x, y = torch.rand(16, 64, 1000), torch.ones(16, 64)",
    )


def unit_of(folder, *blocks: BlockInUse) -> str:
    """The word for what the program has 64 of at a time."""
    text = "batch = 64\nfor x in load(batch):\n    model(x.cuda())\n"
    kept = BlockInUse(100 * MIB, Category.SAVED, None, "", (64, 500, 1000), "float32")
    remedy = Batch().remedy(made_up_facts(place(text, folder, "model(x.cuda())"), [kept, *blocks]))
    assert remedy is not None
    number, unit, rest = remedy.why.split(maxsplit=2)
    assert number == "64"
    assert rest.startswith("at a time take ")
    return unit


def block(*shape: int, dtype: str = "float32", node: str = "") -> BlockInUse:
    category = Category.SAVED if node else Category.OTHERS
    return BlockInUse(MIB, category, None, "", shape, dtype, node)


WORDS = block(64, 500, dtype="int64")
SAVED_WORDS = block(64, 500, dtype="int64", node="EmbeddingBackward0")


@pytest.mark.parametrize(
    ("unit", "blocks"),
    [
        ("sequences", [WORDS]),
        ("sequences", [SAVED_WORDS]),
        ("sequences", [block(64, 500, dtype="int32")]),
        # Masks, scores and heads of attention beside them.
        ("sequences", [WORDS, block(64, 1, 500, 500)]),
        ("sequences", [WORDS, block(64, 4, 500, 500)]),
        ("sequences", [SAVED_WORDS, block(64, 12, 500, 64, node="SoftmaxBackward0")]),
        ("sequences", [SAVED_WORDS, block(64, 4, 500, 64, node="SoftmaxBackward0")]),
        ("sequences", [WORDS, block(64, 1, 500, 500, dtype="bool")]),
        ("images", [block(64, 3, 224, 224)]),
        ("images", [block(64, 1, 28, 28), block(64, dtype="int64")]),
        ("images", [block(64, 4, 64, 64, dtype="bfloat16")]),
        ("images", [block(64, 3, 224, 224, dtype="uint8")]),
        ("images", [block(64, 3, 224, 224, node="ConvolutionBackward0")]),
        ("images", [block(64, 3, 224, 224), block(64, 224, 224, dtype="int64")]),  # a mask each
        ("samples", [block(64, 3, 224, 224), block(64, 77, dtype="int64")]),  # with captions
        ("samples", [block(64, 64, 56, 56, node="ConvolutionBackward0")]),  # of any layer
        ("samples", [block(64, 12, 500, 500)]),
        ("samples", [block(64, 4, 500, 500)]),
        ("samples", [block(64, 4, 500, 64, node="SoftmaxBackward0")]),
        ("samples", [block(64, 500)]),
        ("samples", [block(64, 1, dtype="int64")]),  # a class each
        ("samples", [block(32, 500, dtype="int64")]),  # of something else
        ("samples", [block(64, 16, 3, 112, 112)]),  # films
    ],
)
def test_the_unit_of_a_batch_is_that_of_its_inputs(unit, blocks, tmp_path):
    assert unit_of(tmp_path, *blocks) == unit


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        ("for t in range(9):\n    torch.zeros(args.n, 8)\nloader = []", "tensors of --n 64 take"),
        (LOADER, "64 samples at a time take"),
    ],
)
def test_a_dimension_without_a_name_is_called_by_its_option(rest, why, tmp_path):
    remedy = Batch().remedy(facts_of(tmp_path, OTHER, rest, "--n", "64"))
    assert remedy is not None
    assert remedy.why == f"{why} 100.0 MiB"
    assert remedy.code == ("--n 32  # on the command line",)
