"""Programs that run out of memory for different reasons: the first cause named is the right one."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import pytest
import torch
from support.oom_programs import OomProgram, program, programs
from support.ran_out import written
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab import explain_oom, simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab._common.text.prose_size import prose_size
from pytorch_memlab.advice import causes
from pytorch_memlab.advice.catalogue import all_causes, candidates, remedies
from pytorch_memlab.history.model import Category

pytestmark = pytest.mark.usefixtures("short_search")

MIB = 2**20
PROGRAMS = programs()

_OF_SAVED_TENSORS = {
    *("activations", "backward_of_sum", "kept_graphs", "no_grad"),
    *("retained_graph", "running_sum"),
}

MODULES = {cause.name: type(cause).__module__.rpartition(".")[2] for cause in all_causes()}
"""By the name of a cause, its module."""


def marks(one: OomProgram) -> list[pytest.MarkDecorator]:
    return [knows_saved_tensors] if one.options["cause"] in _OF_SAVED_TENSORS else []


def run(one: OomProgram, text: str, folder: Path, others: str) -> None:
    path = folder / f"{one.name}.py"
    path.write_text(text)
    linecache.checkcache(str(path))
    with simulate(one.options["gpu"], compute=False, others=others):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})


def explained(one: OomProgram, folder: Path) -> Any:
    """The report of a program that fails."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        run(one, one.text, folder, one.options.get("others", "0"))
    report = uncaught.add(caught.value)
    assert report is not None
    return report


def test_there_are_more_than_fifteen_different_causes():
    assert len({one.options["cause"] for one in PROGRAMS}) >= 15


@pytest.mark.parametrize(
    "one", [pytest.param(one, id=one.name, marks=marks(one)) for one in PROGRAMS]
)
def test_the_right_cause_is_named_first_and_its_remedy_helps(one, tmp_path, monkeypatch):
    report = explained(one, tmp_path)

    assert MODULES[remedies(report.facts)[0].cause] == one.options["cause"]
    assert not report.facts.missing
    lines = report.text.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    facts = report.facts
    assert sum(size for _, size in facts.by_category()) == facts.in_use
    assert sum(holder.size for holder in facts.by_line()) == facts.in_use
    assert facts.in_use + facts.cached == facts.request.reserved
    # The remedy is in the second version of the program, which runs through.
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", one.options.get("settings", ""))
    run(one, one.fixed, tmp_path, one.options.get("fixed others", one.options.get("others", "0")))


def sizes(name: str, folder: Path) -> dict[str, int]:
    return {
        MODULES[one.cause]: one.size for one in remedies(explained(program(name), folder).facts)
    }


def test_bytes_of_a_remedy_are_those_of_the_blocks(tmp_path):
    # 26 results of 1024 x 1024 float32 were kept; the parameters were copied once, 12 matrices
    # of 4 MiB and their biases of 4 KiB; the gradients are as large as the parameters.
    assert sizes("kept_results", tmp_path)["kept_results"] == 26 * 4 * MIB
    assert sizes("copied_model", tmp_path)["model_twice"] == 12 * (4 * MIB + 4096)
    assert sizes("gradients_kept", tmp_path)["gradients_kept"] == 12 * (4 * MIB + 4096)
    # Of 4 x 8 heads; the weights of a layer, which have the shape of one matrix, do not count.
    attention = sizes("attention_in_a_model", tmp_path)["attention_matrices"]
    assert attention % (4 * 8 * 4 * MIB) == 0
    assert sizes("too_large", tmp_path)["too_large"] == 16384 * 16384 * 4
    temporaries = sizes("optimizer_temporaries", tmp_path)["optimizer_temporaries"]
    assert temporaries == 12 * (4 * MIB + 4096) * 3 // 4  # the peak moves to the backward pass
    # Adafactor keeps a number for each row and column of a matrix, and for each one of a bias.
    kept = 12 * (2 * 1024 + 1024) * 4
    state = sizes("optimizer_state", tmp_path)["optimizer_state"]
    assert state == 2 * 12 * (4 * MIB + 4096) - kept


@pytest.mark.parametrize("shape", [(64, 32, 3, 3), (512,), (300, 700)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_adafactor_would_keep_is_what_it_keeps(shape, dtype):
    with simulate("1GiB", compute=False):
        parameters = [torch.ones(shape, dtype=dtype, device="cuda", requires_grad=True)]
        adam = torch.optim.AdamW(parameters)
        parameters[0].grad = torch.ones_like(parameters[0])
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(2**30, dtype=torch.uint8, device="cuda")
        report = uncaught.add(caught.value)
        adafactor = torch.optim.Adafactor(parameters)
        adafactor.step()
        state = adafactor.state[parameters[0]].values()
        kept = sum(one.nbytes for one in state if one.is_cuda)
    [facts] = [one for one in report.facts.optimizers if one.name == type(adam).__name__]
    assert (facts.factored, facts.parameters) == (kept, parameters[0].nbytes)


@knows_saved_tensors
def test_the_line_that_keeps_tensors_is_named(tmp_path):
    kept = remedies(explained(program("kept_graphs"), tmp_path).facts)[0]

    source = program("kept_graphs").text.splitlines()
    line = source.index("        losses.append(loss)") + 1
    assert kept.why.startswith(f"losses (line {line}) keeps 7 tensors with their graphs: ")
    assert written(kept) == ("backward() of each value at once, not of all that losses keeps",)
    assert kept.change is None


def test_samples_times_heads_count_for_the_samples(tmp_path):
    facts = explained(program("batch_of_heads"), tmp_path).facts
    [batch] = [one for one in remedies(facts) if one.cause == "the size of the batch"]

    with_shape = facts.of_category(Category.SAVED, Category.OTHERS)
    assert {block.shape[0] for block in facts.blocks if block.shape} >= {24, 24 * 8}
    whole = prose_size(with_shape + facts.request.requested)
    assert batch.why == f"tensors whose first dimension is 24 or a multiple of it take {whole}"


def test_settings_are_proposed_only_if_the_requests_fit_with_them(tmp_path):
    facts = explained(program("fragmentation"), tmp_path).facts
    assert [(check.settings, check.fits) for check in facts.checks] == [
        ("expandable_segments:True", True)
    ]
    assert facts.checks[0].requests == 8

    # Live tensors leave no room for the request, whichever way they lie.
    full = OomProgram(
        "full",
        {"gpu": "256MiB"},
        "import torch\n"
        "def take(mib):\n"
        "    return torch.empty(mib * 2**20, dtype=torch.uint8, device='cuda')\n"
        "large = [take(60) for _ in range(4)]\n"
        "del large\n"
        "kept = [take(31) for _ in range(4)]\n"
        "more = [take(20) for _ in range(4)]\n"
        "result = take(80)\n",
        "",
    )
    facts = explained(full, tmp_path).facts
    assert all(not check.fits for check in facts.checks)
    assert "fragmentation" not in [MODULES[remedy.cause] for remedy in remedies(facts)]


def test_a_training_step_is_not_told_to_use_no_grad(tmp_path):
    for name in ("activations", "batch", "logits"):
        found = remedies(explained(program(name), tmp_path).facts)
        assert "no_grad" not in [MODULES[remedy.cause] for remedy in found]


def test_the_block_has_the_text_of_its_report(tmp_path):
    one = program("kept_results")
    with pytest.raises(torch.OutOfMemoryError), explain_oom() as block:
        run(one, one.text, tmp_path, "0")
    assert block.report is not None
    assert block.report.startswith("Out of memory on cuda:0 at kept_results.py:8, in <module>\n")


def test_each_cause_is_one_module_with_a_place_of_its_own():
    assert len(MODULES) == len(set(MODULES.values())) == len(all_causes())
    orders = [cause.order for cause in all_causes()]
    assert orders == sorted(set(orders))
    files = Path(causes.__file__).parent.glob("[!_]*.py")
    assert {path.stem for path in files} == set(MODULES.values())


def test_a_name_that_only_a_parameter_view_holds_is_not_freed_with_a_list(tmp_path):
    # A linear layer saves a view of its weight. A list of results with graphs does not keep it.
    text = (
        "import torch\n"
        "net = torch.nn.Linear(4096, 4096, bias=False).cuda()\n"
        "history = []\n"
        "for _ in range(9):\n"
        "    history.append(net(torch.ones(8, 4096, device='cuda', requires_grad=True)).sum())\n"
        "torch.empty(2**30, dtype=torch.uint8, device='cuda')\n"
    )
    facts = explained(OomProgram("views", {"gpu": "1GiB"}, text, ""), tmp_path).facts
    [history] = [group for group in facts.groups if group.name == "history"]
    inputs = 9 * 8 * 4096 * 4
    assert (history.tensors, history.elements) == (9, 1)
    assert history.graphs <= inputs
    assert facts.of_category(Category.PARAMETERS) == 4096 * 4096 * 4


TRAINS = """\
import torch
from torch import nn

model = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(256, 256), nn.GELU())])
model.cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(size):
    loss = model(torch.randn(size, 256, device="cuda")).sum()
    loss.backward()
    optimizer.step()


def validate(size):
    outputs = []
    for _ in range(8):
        logits = model(torch.randn(size, 256, device="cuda"))
        outputs.append(logits)
    return torch.stack(outputs)


def main():
    train(64)
    validate(2048)


main()
"""


@knows_saved_tensors
def test_no_grad_goes_around_the_evaluation_and_not_around_the_training(tmp_path, monkeypatch):
    program = OomProgram("trains", {"gpu": "128MiB"}, TRAINS, "")
    first, *_ = remedies(explained(program, tmp_path).facts)
    line = TRAINS.splitlines().index("def validate(size):") + 1
    assert MODULES[first.cause] == "no_grad"
    assert first.code == (f"# trains.py before line {line}:", "@torch.no_grad()")
    fixed = TRAINS.replace("def validate", "@torch.no_grad()\ndef validate")
    run(program, fixed, tmp_path, "0")


@knows_saved_tensors
def test_tensors_of_several_elements_are_detached(tmp_path):
    text = TRAINS.replace("train(64)", "pass").replace("def validate", "def collect")
    text = text.replace("validate(2048)", "loss = collect(2048).mean()\n    loss.backward()")
    facts = explained(OomProgram("collects", {"gpu": "128MiB"}, text, ""), tmp_path).facts
    assert all(MODULES[remedy.cause] != "no_grad" for remedy in remedies(facts))
    [outputs] = [group for group in facts.groups if group.name == "outputs"]
    assert outputs.elements == 2048 * 256


CALLS_WITH_X = """\
import torch
class Twice(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 256)
    def forward(self, x):
        return x + self.second(self.first(x).relu())
class Outer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Twice()
    def forward(self, x):
        return x + self.inner(x.tanh())
net = torch.nn.Sequential(*(Outer() for _ in range(8))).cuda()
x = torch.randn(4096, 256, device="cuda")
net(x).sum().backward()
"""


@knows_saved_tensors
def test_a_variable_of_several_calls_is_no_list(tmp_path):
    one = OomProgram("calls_with_x", {"gpu": "100MiB"}, CALLS_WITH_X, "")
    facts = explained(one, tmp_path).facts
    [group] = [group for group in facts.groups if group.name == "x"]
    assert (group.tensors, group.is_variable) == (3, True)
    assert "kept_graphs" not in [MODULES[cause.name] for cause, _ in candidates(facts)]
