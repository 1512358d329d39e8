"""The report of ``run`` and ``show``: whole ones, word for word, and its options."""

from __future__ import annotations

import sys
from io import StringIO
from pathlib import Path

import pytest
import torch
from rich.text import Text

from pytorch_memlab import load
from pytorch_memlab.cli import output
from pytorch_memlab.cli.main import main
from pytorch_memlab.profiles.merging import merged

LAYERS = """\
import torch


class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size, size))

    def forward(self, x):
        scaled = x * 2
        return scaled * self.weight
"""

TRAIN = """\
import torch

from layers import Layer

layer = Layer(512).cuda()
for step in range(2):
    x = torch.ones(512, 512, device="cuda")
    loss = (layer(x) + 1).exp().sum()
    loss.backward()
    layer.zero_grad()
"""

LOOP_REPORT = """\
peak 5.0 MiB on cuda:0, less than 0.1% of 24.00 GiB (simulated)
  at train.py:9 in <module>: loss.backward()
  held by 2.0 MiB temporaries, 2.0 MiB activations saved for backward, 1.0 MiB
    parameters
  most of it from
     2.0 MiB  train.py:8  loss = (layer(x) + 1).exp().sum()
     1.0 MiB  layers.py:10  scaled = x * 2
     1.0 MiB  train.py:5  layer = Layer(512).cuda()
  peak 6.0 MiB reserved of 24.00 GiB: fits, 23.99 GiB free

## <module>  train.py:1
   peak    kept temporary line  code
1.0 MiB 1.0 MiB         0    5  layer = Layer(512).cuda()
3.0 MiB 1.0 MiB   1.0 MiB    7      x = torch.ones(512, 512, device="cuda")
5.0 MiB 2.0 MiB   1.0 MiB    8      loss = (layer(x) + 1).exp().sum()
5.0 MiB 1.0 MiB   1.0 MiB    9      loss.backward()  <- peak
3.0 MiB       0         0   10      layer.zero_grad()

3 lines added nothing: --all shows them

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)
"""

FILL = """\
import torch


def fill(count):
    kept = []
    for _ in range(count):
        kept.append(torch.empty(4 << 20, dtype=torch.uint8, device="cuda"))
    return kept


fill(2)
kept = fill(20)
"""

OUT_OF_MEMORY_REPORT = """\
peak 60.0 MiB on cuda:0, 94% of 64.0 MiB (simulated)
  at script.py:7 in fill: kept.append(torch.empty(4 << 20, dtype=torch.uint8, d…
  held by 60.0 MiB inputs and other tensors
  peak 60.0 MiB reserved of 64.0 MiB: does not fit
  grows by 4.0 MiB an iteration, 15 times in a row: the loop at script.py:6 in
    fill
out of memory at script.py:7 in fill, asked for 4.0 MiB

## fill  script.py:4
    peak     kept temporary line  code
60.0 MiB  3.8 MiB         0    7!         kept.append(torch.empty(4 << 20, dtype=torch.uint8, \
device="cuda"))  # out of memory: asked for 4.0 MiB  <- peak

## <module>  script.py:1
    peak     kept temporary line  code
 8.0 MiB        0   8.0 MiB   11  fill(2)
60.0 MiB 60.0 MiB         0   12! kept = fill(20)  # out of memory: asked for 4.0 MiB

6 lines added nothing: --all shows them

simulated GPU: Simulated GPU (64.00 MiB) (cuda:0)
"""

TWO_GPUS = """\
import torch


def put(size, device):
    return torch.ones(size, device=device) * 2


small = put(4 << 18, "cuda:1")
large = put(6 << 18, "cuda:0")
"""

TWO_GPUS_REPORT = """\
peak 12.0 MiB on cuda:0, less than 0.1% of 24.00 GiB (simulated)
  at script.py:5 in put: return torch.ones(size, device=device) * 2
  held by 6.0 MiB inputs and other tensors, 6.0 MiB temporaries
  peak 20.0 MiB reserved of 24.00 GiB: fits, 23.98 GiB free
peak 8.0 MiB on cuda:1, less than 0.1% of 24.00 GiB (simulated)
  at script.py:5 in put: return torch.ones(size, device=device) * 2
  held by 4.0 MiB inputs and other tensors, 4.0 MiB temporaries
  peak 20.0 MiB reserved of 24.00 GiB: fits, 23.98 GiB free

## put  script.py:4  on cuda:0
    peak    kept temporary line  code
12.0 MiB 3.0 MiB   6.0 MiB    5      return torch.ones(size, device=device) * 2  <- peak

## put  script.py:4  on cuda:1
    peak    kept temporary line  code
 8.0 MiB 2.0 MiB   4.0 MiB    5      return torch.ones(size, device=device) * 2  <- peak

## <module>  script.py:1  on cuda:0
    peak    kept temporary line  code
12.0 MiB 6.0 MiB   6.0 MiB    9  large = put(6 << 18, "cuda:0")

## <module>  script.py:1  on cuda:1
    peak    kept temporary line  code
 8.0 MiB 4.0 MiB   4.0 MiB    8  small = put(4 << 18, "cuda:1")

3 lines added nothing: --all shows them

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0, cuda:1)
"""

ON_THE_CPU = "import torch\n\n\ndef work():\n    return torch.ones(3)\n\n\nwork()\n"

ON_THE_CPU_REPORT = """\
no memory was in use on cuda:0 (simulated)

simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)
"""

SORTED = """\
import torch


def keeps(size):
    return torch.ones(size << 18, device="cuda")


def borrows():
    torch.ones(6 << 18, device="cuda") * 2


def nothing():
    return 0


all_kept = [keeps(1)]
all_kept.append(keeps(2))
borrows()
nothing()
"""


def printed(capsys, *arguments):
    """The standard output of a run."""
    main(["run", "--gpu", "24GiB", *arguments])
    return capsys.readouterr().out


def heads(text):
    return [line for line in text.splitlines() if line.startswith("## ")]


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_training_loop_at_the_top_level_and_a_class_in_a_module(write, capsys):
    write(LAYERS, "layers.py")

    assert printed(capsys, write(TRAIN, "train.py")) == LOOP_REPORT


@pytest.mark.parametrize("file", ["exponents.py", "exponents/__init__.py"])
@pytest.mark.knows_simulation("PyTorch's history tells neither who freed a block nor its module")
def test_lines_of_other_files_that_hold_most_are_named(file, write, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [*sys.path])
    write(LAYERS.replace("* self.weight", "* self.weight.exp().exp().exp()"), f"lib/{file}")
    # The folder is known to the program alone.
    finds = f"import sys\nsys.path.append({str(tmp_path / 'lib')!r})\n"
    train = write(finds + TRAIN.replace("layers", "exponents"), "train.py")
    name = Path(file).name

    named = (
        "  held by 5.0 MiB activations saved for backward, 2.0 MiB temporaries, 1.0 MiB\n"
        "    parameters\n"
        "  most of it from\n"
        f"     3.0 MiB  {name}:11  return scaled * self.weight.exp().exp().exp()\n"
        "     2.0 MiB  train.py:10  loss = (layer(x) + 1).exp().sum()\n"
        f"     1.0 MiB  {name}:10  scaled = x * 2\n"
        f"  -f '*exponents:*' profiles the lines of {name}\n"
    )
    texts = []
    for options in ([], ["-f", "*exponents:*"]):
        texts.append(printed(capsys, *options, train))
        del sys.modules["exponents"]
    assert named in texts[0]
    assert heads(texts[1]) == [f"## Layer.forward  {name}:9"]
    assert "profiles the lines of" not in texts[1]


@pytest.mark.knows_simulation("approximations of ops")
def test_the_peak_is_a_lower_bound_also_if_no_profiled_line_is(write, capsys):
    write(
        """\
        import torch

        def convolve(x):
            return torch.conv2d(x, x)

        def double(x):
            return x * 2

        double(convolve(torch.ones(4, 4, 8, 8, device="cuda")))
        """
    )
    bounds = (
        "peak 4.5 KiB to 452.6 KiB on cuda:0",
        "fits either way, ",
        "up to 448.1 KiB not counted",
    )

    for function in ("convolve", "double"):
        printed(capsys, "-f", function, "-o", f"{function}.json", "script.py")
        main(["show", f"{function}.json"])
        shown = " ".join(capsys.readouterr().out.split())
        assert all(bound in shown for bound in bounds)


def test_the_names_of_other_files_cut_nothing_off(write, capsys):
    name = "exponents_of_the_weights_of_the_layers_of_a_network"
    write(LAYERS.replace("* self.weight", "* self.weight.exp().exp().exp()"), f"{name}.py")

    text = printed(capsys, write(TRAIN.replace("layers", name), "train.py"))
    assert f"-f '*{name}:*' profiles the lines of {name}.py" in " ".join(text.split())


def test_what_a_function_keeps_is_not_charged_to_its_caller_again(write, capsys):
    write(LAYERS, "layers.py")
    options = ["-f", "layers:Layer,<module>"]
    text = printed(capsys, *options, write(TRAIN, "train.py"))

    assert heads(text) == ["## Layer.forward  layers.py:9", "## <module>  train.py:1"]
    assert "1 function and 4 lines added nothing: --all shows them\n" in text


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_out_of_memory(write, capsys):
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--gpu", "64MiB", write(FILL)])

    assert capsys.readouterr().out == OUT_OF_MEMORY_REPORT


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_two_gpus(write, capsys):
    assert printed(capsys, "--num-gpus", "2", write(TWO_GPUS)) == TWO_GPUS_REPORT


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_a_program_on_the_cpu(write, capsys):
    assert printed(capsys, write(ON_THE_CPU)) == ON_THE_CPU_REPORT


@pytest.mark.knows_simulation("the memory of the process, which NVML tells")
def test_another_error_ends_the_verdict_where_it_ended_the_program(write, capsys):
    with pytest.raises(ZeroDivisionError):
        main(["run", write("import torch\nkept = torch.ones(256).cuda()\n1 / 0\n")])

    assert (
        "\n  peak 2.0 MiB reserved + 601.0 MiB context of 79.19 GiB: fitted until the\n"
        "    program ended early, 78.60 GiB free\n"
    ) in capsys.readouterr().out


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_the_file_and_a_saved_profile_have_the_same_report(write, capsys):
    write(LAYERS, "layers.py")
    printed(capsys, "-o", "out.txt", "-o", "p.json", write(TRAIN, "train.py"))
    main(["show", "p.json"])

    assert Path("out.txt").read_text() == LOOP_REPORT
    assert capsys.readouterr().out.startswith(f"{LOOP_REPORT}recorded of train.py on ")


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ([], ["borrows", "keeps", "<module>"]),
        (["--sort", "kept"], ["keeps", "borrows", "<module>"]),
        (["--sort", "temporary"], ["borrows", "keeps", "<module>"]),
        (["--sort", "peak"], ["borrows", "<module>", "keeps"]),
        (["--sort", "name"], ["<module>", "borrows", "keeps"]),
        (["--sort", "line"], ["<module>", "keeps", "borrows"]),
        (["--top", "1"], ["borrows"]),
        (["--all"], ["keeps", "borrows", "nothing", "<module>"]),
        (["--all", "--sort", "name"], ["<module>", "borrows", "keeps", "nothing"]),
    ],
)
def test_order_and_number_of_functions(options, order, write, capsys):
    text = printed(capsys, *options, write(SORTED))

    assert [head.split()[1] for head in heads(text)] == order


def test_top_limits_functions_and_lines_and_says_how_many_are_left(write, capsys):
    name = write(SORTED)
    assert (
        "\n\n2 functions more: a larger --top shows them\n1 function and 1 line added"
        in printed(capsys, "--top", "1", name)
    )

    text = printed(capsys, "--top", "1", "--sort", "line", name)
    assert (
        "## <module>  script.py:1\n"
        "    peak kept temporary line  code\n"
        "15.0 MiB    0  12.0 MiB   18  borrows()\n"
        "\n"
        "2 functions and 2 lines more: a larger --top shows them\n"
    ) in text


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_all_shows_every_line_of_the_source(write, capsys):
    text = printed(capsys, "--all", "-f", "nothing", write(SORTED))

    assert (
        "\n  outside of the profiled lines, of which the highest is\n"
        "  3.0 MiB at script.py:12 in nothing\n"
    ) in text
    assert text.endswith(
        "## nothing  script.py:12\n"
        "   peak kept temporary line  code\n"
        "3.0 MiB    0         0   12  def nothing():\n"
        "3.0 MiB    0         0   13      return 0\n"
        "\n"
        "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)\n"
    )


@pytest.mark.knows_simulation("the words that name a simulated GPU")
def test_columns_alone_are_tables_and_with_another_option_those_of_the_report(write, capsys):
    name = write(SORTED)
    options = ["-f", "keeps", "-c", "kept,temporary,hits"]

    assert printed(capsys, *options, name) == (
        "## keeps\n"
        "\n"
        " kept temporary hits line  code\n"
        "0.00B     0.00B    2    4  def keeps(size):\n"
        '1.50M     0.00B    2    5      return torch.ones(size << 18, device="cuda")\n'
        "\n"
        "peak 22.0 MiB reserved of 24.00 GiB: fits, 23.98 GiB free\n"
        "simulated GPU: Simulated GPU (24.00 GiB) (cuda:0)\n"
    )
    assert (
        "## keeps  script.py:4\n"
        "   kept temporary hits line  code\n"
        '1.5 MiB         0    2    5      return torch.ones(size << 18, device="cuda")\n'
    ) in printed(capsys, *options, "--sort", "name", name)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--top", "0"], "--top is a number from 1 on, not 0"),
        (["--top", "3", "--all"], "--all shows everything, --top a part: give one of them"),
        (["--sort", "size"], "argument --sort: invalid choice: 'size'"),
    ],
)
def test_what_the_options_do_not_take(options, said, write, capsys):
    try:
        code = main(["run", *options, write("print('runs')\n")])
    except SystemExit as ending:
        code = ending.code

    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


class Terminal(StringIO):
    def isatty(self):
        return True


_REQUEST = pytest.mark.knows_simulation(
    "CUDA tells the segment that a request needed, not its size"
)


@pytest.mark.parametrize("width", [pytest.param(80, marks=_REQUEST), 50])
def test_a_terminal_has_no_line_wider_than_it_is(width, write, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal()
    monkeypatch.setattr(output, "write_to_stdout", lambda write_report: write_report(terminal))
    with pytest.raises(torch.OutOfMemoryError):
        main(["run", "--gpu", "64MiB", write(FILL)])

    lines = [Text.from_ansi(line).plain for line in terminal.getvalue().splitlines()]
    assert max(map(len, lines)) <= width
    whole = "60.0 MiB  3.8 MiB         0    7!"
    assert any(line.startswith((whole, "        0    7!")) for line in lines)
    if width == 80:
        (failed,) = [line for line in lines if line.endswith("<- peak")]
        assert failed.endswith("  # out of memory: asked for 4.0 MiB  <- peak")
    assert "\x1b[1;35m  <- peak" in terminal.getvalue() or width == 50


GROWTH = """\
import torch

net = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6))).cuda()
optimizer = torch.optim.Adam(net.parameters())
history = []


def data():
    return torch.ones(64, 512, device="cuda")


def step(leaks):
    loss = net(data()).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if leaks:
        history.append(net(data()).mean())


def train(steps, leaks):
    for _ in range(steps):
        step(leaks)


"""


def growth(text):
    """The part of a report that tells of growth, on one line."""
    found = " ".join(text.split()).partition("grows by ")[2]
    return found.partition(" ## ")[0]


def test_a_loop_that_keeps_graphs_grows_and_one_that_keeps_nothing_does_not(write, capsys):
    text = printed(capsys, "--gpu", "1GiB", write(f"{GROWTH}train(8, leaks=True)\n", "a.py"))
    # The inputs of six layers, 128 KiB each, and their mean.
    assert growth(text) == "768.5 KiB an iteration, 7 times in a row: the loop at a.py:22 in train"
    text = printed(capsys, "--gpu", "1GiB", write(f"{GROWTH}train(8, leaks=False)\n", "b.py"))
    assert growth(text) == ""


GENERATION = """\
import torch


def generate(steps):
    cache = torch.empty(0, 1024, device="cuda")
    while len(cache) < steps:
        cache = torch.cat([cache, torch.ones(1, 1024, device="cuda")])
    return cache


class Layers(torch.nn.Module):
    def forward(self, x):
        for _ in range(8):
            x = x.exp()
        return x


def build():
    return [torch.nn.Linear(256, 256, device="cuda") for _ in range(3)]


def build_in_a_loop():
    layers = torch.nn.ModuleList()
    for _ in range(8):
        layers.append(torch.nn.Linear(256, 256, device="cuda"))
    return layers


"""


@pytest.mark.parametrize(
    ("call", "grows"),
    [
        (
            "kept = generate(9)",
            "4.0 KiB an iteration, 9 times in a row: the loop at script.py:6 in generate",
        ),
        ("kept = generate(2)", ""),
        ("Layers()(torch.ones(1024, device='cuda', requires_grad=True)).sum().backward()", ""),
        ("kept = build_in_a_loop(), build()", ""),
    ],
)
def test_a_growing_cache_is_told_and_depth_and_construction_are_not(call, grows, write, capsys):
    assert growth(printed(capsys, write(f"{GENERATION}{call}\n"))) == grows


def test_growth_is_kept_in_a_recording_and_in_merged_ones(write, capsys):
    printed(capsys, "--gpu", "1GiB", "-o", "a.json", write(f"{GENERATION}kept = generate(9)\n"))
    main(["show", "a.json"])
    assert growth(capsys.readouterr().out).startswith("4.0 KiB an iteration, 9 times in a row")
    first, second = (load("a.json").recorded() for _ in range(2))
    both = merged({"a": first, "b": second})
    assert [one.device for one in both.growing] == ["run1 cuda:0", "run2 cuda:0"]
    names = {both.functions[one.function].qual_name for one in both.growing}
    assert names == {"generate"}


LIBRARY = """\
import torch

def loss(logits):
    return logits.exp().sum()

def train(x):
    kept = x * 2
    return kept, loss(kept + 1)
"""


def test_below_a_call_of_a_library_stand_the_lines_of_the_library(write, capsys, tmp_path):
    """As ``trainer.train()`` is one line of the program, and all memory is below it."""
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    write(LIBRARY, "lib/python3.11/site-packages/trainer_library.py")
    finds = f"import sys\nsys.path.append({str(folder)!r})\n"
    program = (
        "import torch\nfrom trainer_library import train\n"
        'x = torch.ones(1 << 20, device="cuda", requires_grad=True)\nkept = train(x)\n'
    )
    text = printed(capsys, write(f"{finds}{program}", "train.py"))
    del sys.modules["trainer_library"]
    assert (
        "  most of it from\n"
        "    12.0 MiB  train.py:6  kept = train(x)\n"
        "       4.0 MiB  trainer_library.py:4 in loss\n"
        "       4.0 MiB  trainer_library.py:7 in train\n"
        "       4.0 MiB  trainer_library.py:8 in train\n"
        '     4.0 MiB  train.py:5  x = torch.ones(1 << 20, device="cuda", requires_grad=…\n'
    ) in text


@pytest.mark.parametrize(
    ("lines", "named", "rest"),
    [(4, 4, ""), (5, 3, "       8.0 MiB  2 other lines of libraries\n")],
)
def test_of_many_lines_of_a_library_the_largest_are_named(
    lines, named, rest, write, capsys, tmp_path
):
    """No three lines of a trainer hold half of what it does."""
    folder = tmp_path / "lib" / "python3.11" / "site-packages"
    made = "".join(f"    kept.append(x + {number})\n" for number in range(lines))
    library = f"def train(x):\n    kept = []\n{made}    return kept\n"
    write(library, "lib/python3.11/site-packages/long_library.py")
    finds = f"import sys\nsys.path.append({str(folder)!r})\n"
    program = (
        'import torch\nfrom long_library import train\nx = torch.ones(1 << 20, device="cuda")\n'
    )
    text = printed(capsys, write(f"{finds}{program}kept = train(x)\n", "train.py"))
    del sys.modules["long_library"]
    below = "".join(f"       4.0 MiB  long_library.py:{3 + one} in train\n" for one in range(named))
    assert (
        f"  most of it from\n    {4 * lines}.0 MiB  train.py:6  kept = train(x)\n{below}{rest}"
        '     4.0 MiB  train.py:5  x = torch.ones(1 << 20, device="cuda")\n'
    ) in text
