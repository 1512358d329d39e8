"""The exact edits and words of causes, from made-up facts of programs that do not run."""

from __future__ import annotations

import copy
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from textwrap import indent

import pytest
from support.made_up_facts import MIB, made_up_facts, place
from support.ran_out import written

from pytorch_memlab import simulate
from pytorch_memlab.advice import this_program, trials
from pytorch_memlab.advice.around_program import Outcome
from pytorch_memlab.advice.block_survey import Survey
from pytorch_memlab.advice.catalogue import all_causes
from pytorch_memlab.advice.cause import Cause, Remedy
from pytorch_memlab.advice.causes.activations import Checkpointing
from pytorch_memlab.advice.causes.batch import Batch
from pytorch_memlab.advice.causes.double_precision import DoublePrecision
from pytorch_memlab.advice.causes.full_precision_base import FullPrecisionBase
from pytorch_memlab.advice.causes.growing_buffer import GrowingBuffer
from pytorch_memlab.advice.causes.kept_graphs import KeptGraphs
from pytorch_memlab.advice.causes.missed_autocast import MissedAutocast
from pytorch_memlab.advice.causes.model_twice import ModelTwice, second_copy
from pytorch_memlab.advice.causes.prefetch import Prefetch
from pytorch_memlab.advice.causes.results_of_cells import ResultsOfCells
from pytorch_memlab.advice.causes.retained_graph import RetainedGraph
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.advice.evidence import is_kept
from pytorch_memlab.advice.forward_only import reaches_backward, results_without_backward
from pytorch_memlab.advice.smallest_checkpointing import _set_of
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import BlockInUse, ModelFacts, OutOfMemory, TensorGroup


def lines_of(remedy: Remedy | None) -> list[tuple[int, int, tuple[str, ...]]]:
    """The lines of an edit: first and last line, and their new text."""
    assert remedy is not None
    assert isinstance(remedy.change, EditedSource)
    return [(edit.first, edit.last, edit.lines) for edit in remedy.change.edits]


# Precision


def test_float64_tensors_become_float32_where_they_are_moved_and_nowhere_else(tmp_path):
    text = (
        "import torch\n"
        "x = torch.from_numpy(rows).cuda()\n"
        "labels = torch.tensor(classes).cuda()\n"
        "print(len(rows))\n"
    )
    at = place(text, tmp_path, "x = torch.from_numpy(rows).cuda()")
    x = BlockInUse(80 * MIB, Category.OTHERS, at, "x", (10, 10), "float64")
    remedy = DoublePrecision().remedy(made_up_facts(at, [x]))
    assert lines_of(remedy) == [(2, 2, ("x = torch.from_numpy(rows).float().cuda()",))]


FROZEN = """\
from transformers import TrainingArguments
model = build()
for parameter in model.parameters():
    parameter.requires_grad_(False)
args = TrainingArguments("out")
"""


def frozen(folder: Path, *, float32: int) -> OutOfMemory:
    at = place(FROZEN, folder, 'args = TrainingArguments("out")')
    facts = made_up_facts(at, [BlockInUse(100 * MIB, Category.PARAMETERS, None, "model.p")])
    return replace(facts, model=ModelFacts(name="model", float32=float32, frozen=100 * MIB))


def test_frozen_parameters_become_bfloat16_behind_the_last_line_that_freezes_some(tmp_path):
    remedy = FullPrecisionBase().remedy(frozen(tmp_path, float32=110 * MIB))
    assert remedy is not None
    assert remedy.size == 50 * MIB
    cast = (
        "for parameter in model.parameters():",
        "    if not parameter.requires_grad:",
        "        parameter.data = parameter.data.to(torch.bfloat16)",
    )
    assert lines_of(remedy) == [
        (1, 0, ("import torch",)),
        (5, 4, cast),
        (5, 5, ('args = TrainingArguments("out", bf16=True)',)),
    ]


def test_a_model_that_is_frozen_as_a_whole_has_no_base(tmp_path):
    assert FullPrecisionBase().remedy(frozen(tmp_path, float32=100 * MIB)) is None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('torch.autocast("cpu")', 'torch.autocast("cuda")'),
        ('torch.autocast(device_type="cpu")', 'torch.autocast(device_type="cuda")'),
        ('torch.autocast("cuda", enabled=False)', 'torch.autocast("cuda", enabled=True)'),
    ],
)
def test_autocast_of_another_device_is_that_of_the_gpu(before, after, tmp_path):
    text = f"import torch\nwith {before}:\n    loss = model(x)\n"
    at = place(text, tmp_path, "loss = model(x)")
    saved = BlockInUse(90 * MIB, Category.SAVED, at, "", (9, 9), "float32")
    remedy = MissedAutocast().remedy(made_up_facts(at, [saved]))
    assert lines_of(remedy) == [(2, 2, (f"with {after}:",))]


def test_a_program_that_prepares_nothing_misses_no_autocast(tmp_path):
    at = place("loss = model(x)\n", tmp_path, "loss = model(x)")
    saved = BlockInUse(90 * MIB, Category.SAVED, at, "", (9, 9), "float32")
    assert MissedAutocast().remedy(made_up_facts(at, [saved])) is None


# A second copy

COPIED = """\
import copy
model = build()
average = copy.deepcopy(model)
"""


def copied(folder: Path, text: str = COPIED) -> OutOfMemory:
    at = place(text, folder, "average = copy.deepcopy(model)")
    shapes = ((512, 512), (512, 256))
    blocks = [
        *(BlockInUse(30 * MIB, Category.PARAMETERS, None, f"model.{n}", shapes[n]) for n in (0, 1)),
        *(BlockInUse(30 * MIB, Category.PARAMETERS, at, f"memo[{n}]", shapes[n]) for n in (0, 1)),
    ]
    return made_up_facts(at, blocks, functions=(("deepcopy", copy.__file__),))


def test_a_copy_has_the_name_that_its_statement_gives_it(tmp_path):
    facts = copied(tmp_path)
    assert second_copy(facts) == ("average", 60 * MIB)
    assert lines_of(ModelTwice().remedy(facts)) == [
        (3, 3, ("average = copy.deepcopy(model).cpu()",))
    ]


@pytest.mark.parametrize("use", ["average(x)", "for one in average:\n    one(x)"])
def test_a_copy_that_computes_stays_on_the_gpu(use, tmp_path):
    remedy = ModelTwice().remedy(copied(tmp_path, f"{COPIED}{use}\n"))
    assert remedy is not None
    assert remedy.change is None
    assert written(remedy) == ('average on the CPU: map_location="cpu", or .cpu()',)


def test_what_nothing_leads_to_is_what_the_program_reads_from_a_file(tmp_path):
    at = place("best = torch.load(path)\n", tmp_path, "best = torch.load(path)")
    blocks = [
        BlockInUse(30 * MIB, category, None, f"{name}{shape[1]}" if name else "", shape)
        for category, name in (
            (Category.PARAMETERS, "model."),
            (Category.OTHERS, ""),
            (Category.OTHERS, "batch_"),
        )
        for shape in ((512, 512), (512, 256))
    ]
    facts = made_up_facts(at, blocks, functions=(("load", "/site/torch/serialization.py"),))
    assert second_copy(facts) == ("best", 60 * MIB)


# Containers, graphs and cells


def test_batches_of_a_queue_are_moved_when_they_are_taken(tmp_path):
    text = (
        "waiting = deque()\n"
        "for batch in loader:\n"
        "    waiting.append(batch.cuda())\n"
        "while waiting:\n"
        "    train(waiting.popleft())\n"
    )
    at = place(text, tmp_path, "waiting.append(batch.cuda())")
    blocks = [BlockInUse(30 * MIB, Category.OTHERS, at, f"waiting[{n}]") for n in range(4)]
    group = TensorGroup("waiting", 4, own=120 * MIB, graphs=0)
    facts = replace(made_up_facts(at, blocks), groups=(group,))
    remedy = Prefetch().remedy(facts)
    assert remedy is not None
    assert remedy.size == 90 * MIB
    assert lines_of(remedy) == [
        (3, 3, ("    waiting.append(batch)",)),
        (5, 5, ("    train(waiting.popleft().cuda())",)),
    ]


def test_a_list_of_graphs_is_kept_and_a_single_variable_is_not(tmp_path):
    at = place("losses.append(loss)\n", tmp_path, "losses.append(loss)")
    facts = made_up_facts(at, [BlockInUse(MIB, Category.SAVED, at)])
    group = TensorGroup("losses", 3, own=0, graphs=60 * MIB)
    assert is_kept(replace(facts, groups=(group,)), 100 * MIB)
    for other in (
        replace(group, is_variable=True),
        replace(group, tensors=2),
        replace(group, graphs=50 * MIB),
    ):
        assert not is_kept(replace(facts, groups=(other,)), 100 * MIB)


@pytest.mark.parametrize(
    ("tensors", "words"), [(1, "1 tensor with its graph"), (2, "2 tensors with their graphs")]
)
def test_the_graphs_of_a_list_are_as_many_as_its_tensors(tensors, words, tmp_path):
    at = place("losses.append(loss)\n", tmp_path, "losses.append(loss)")
    group = TensorGroup("losses", tensors, own=0, graphs=60 * MIB)
    facts = made_up_facts(at, [BlockInUse(60 * MIB, Category.SAVED, at)])

    remedy = KeptGraphs().remedy(replace(facts, groups=(group,)))

    assert remedy is not None
    assert remedy.why == f"losses (line 1) keeps {words}: 60.0 MiB"


def remedy_for_retained_graph(at, text):
    facts = made_up_facts(at, [BlockInUse(90 * MIB, Category.SAVED, at)])
    frame = replace(
        facts.frames[0],
        calls_with=frozenset({"retain_graph"}),
        source=dict(enumerate(text.splitlines(), 1)),
    )
    return RetainedGraph().remedy(replace(facts, frames=(frame,)))


def test_a_backward_pass_keeps_its_other_arguments_when_its_graph_goes(tmp_path):
    text = (
        "for x in data:\n"
        "    state = cell(x, state)\n"
        "    state.backward(gradient=ones, retain_graph=True)\n"
    )
    source = "state.backward(gradient=ones, retain_graph=True)"
    remedy = remedy_for_retained_graph(place(text, tmp_path, source), text)
    assert lines_of(remedy) == [
        (3, 3, ("    state.backward(gradient=ones)", "    state = state.detach()")),
    ]


def test_a_window_of_states_gives_none_with_its_graph_to_the_next_step(tmp_path):
    text = (
        "for x in data:\n"
        "    out, h = rnn(x, h)\n"
        "    memory.append(h)\n"
        "    loss = score(torch.stack(list(memory))).mean()\n"
        "    loss.backward(retain_graph=True)\n"
        "    queue.appendleft(out)\n"
        "    seen.append(len(queue))\n"
    )
    at = place(text, tmp_path, "loss.backward(retain_graph=True)")
    remedy = remedy_for_retained_graph(at, text)
    assert remedy is not None
    assert remedy.why == (
        "retain_graph=True (line 5) and memory (line 3) and queue (line 6) keep the graphs of all"
        " steps: about 90.0 MiB"
    )
    new = ("    loss.backward()", "    h = h.detach()", "    memory[-1] = memory[-1].detach()")
    assert lines_of(remedy) == [(5, 6, (*new, "    queue.appendleft(out.detach())"))]


STATES = (
    "for x in data:\n"
    "    out, h = rnn(x, h)\n"
    "    states.append(h)\n"
    "    if len(states) > 100:\n"
    "        train(states)\n"
)


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        (STATES, True),
        # A step trains with states of earlier steps.
        (f"def train(states):\n    rnn(x, states[0]).sum().backward()\n{STATES}", True),
        # The backward pass of a step needs its state, and "without retain_graph" is another edit.
        (f"{STATES}    score(states[-1]).backward()\n", False),
        # One backward pass runs through the whole loop.
        (f"{STATES}torch.stack(states).sum().backward()\n", False),
        (STATES.replace("rnn(x, h)", "rnn(x)"), False),
    ],
)
def test_states_of_all_steps_keep_their_graphs_where_the_newest_has_them_too(
    text, is_named, tmp_path
):
    at = place(text, tmp_path, "states.append(h)")
    facts = made_up_facts(at, [BlockInUse(90 * MIB, Category.SAVED, at)])
    group = TensorGroup("states", 4, own=8 * MIB, graphs=0, shared=60 * MIB)
    remedy = KeptGraphs().remedy(replace(facts, groups=(group,)))
    if not is_named:
        assert remedy is None
        return
    assert remedy is not None
    assert remedy.why == (
        f"states (line {at.line}) keeps 4 tensors with their graphs, and h those of all steps:"
        " 60.0 MiB"
    )
    assert lines_of(remedy) == [
        (at.line, at.line, ("    states.append(h.detach())",)),
        (at.line + 3, at.line + 2, ("    h = h.detach()",)),
    ]


def test_results_of_cells_are_named_by_their_cell(tmp_path):
    at = place("x = f()\n", tmp_path, "x = f()")
    blocks = [
        BlockInUse(10 * MIB, Category.OTHERS, None, "Out[2]"),
        BlockInUse(10 * MIB, Category.OTHERS, None, "Out[2][1]"),
        BlockInUse(5 * MIB, Category.OTHERS, None, "Out[7]"),
        BlockInUse(75 * MIB, Category.OTHERS, None, "kept"),
    ]
    remedy = ResultsOfCells().remedy(made_up_facts(at, blocks, requested=25 * MIB))
    assert remedy is not None
    assert (remedy.size, remedy.why, written(remedy)) == (
        25 * MIB,
        "IPython keeps 25.0 MiB as results of cells: Out[2], Out[7]",
        ("%reset -f out", "get_ipython().user_ns_hidden.update(_=0, __=0, ___=0)"),
    )
    assert ResultsOfCells().remedy(made_up_facts(at, blocks, requested=26 * MIB)) is None


def test_the_tensor_that_grows_is_named_and_not_the_small_one_before_it(tmp_path):
    text = (
        "for x in data:\n"
        "    steps = torch.cat([steps, one])\n"
        "    bank = torch.cat([bank, x])\n"
        "print(bank.shape)\n"
    )
    at = place(text, tmp_path, "bank = torch.cat([bank, x])")
    small = replace(at, line=2, source="steps = torch.cat([steps, one])")
    blocks = [
        BlockInUse(MIB, Category.OTHERS, small, "steps", (8, 8)),
        BlockInUse(99 * MIB, Category.OTHERS, at, "bank", (64, 8)),
    ]
    remedy = GrowingBuffer().remedy(made_up_facts(at, blocks))
    assert remedy is not None
    assert remedy.why == "bank (line 3) grows by what is joined to it: 99.0 MiB"


@pytest.mark.parametrize("use", ["print(bank.shape)", 'torch.save(bank, "bank.pt")'])
def test_a_tensor_that_no_op_reads_grows_in_host_memory(use, tmp_path):
    text = f"for x in data:\n    bank = torch.cat([bank, x])\n{use}\n"
    at = place(text, tmp_path, "bank = torch.cat([bank, x])")
    blocks = [BlockInUse(99 * MIB, Category.OTHERS, at, "bank", (64, 8))]
    remedy = GrowingBuffer().remedy(made_up_facts(at, blocks))
    assert lines_of(remedy) == [(2, 2, ("    bank = torch.cat([bank.cpu(), x.cpu()])",))]


def test_a_batch_of_tokens_is_found_by_the_product_of_two_dimensions(tmp_path):
    text = "max_tokens = 4096\nout = model(x)\n"
    at = place(text, tmp_path, "out = model(x)")
    out = BlockInUse(90 * MIB, Category.OTHERS, at, "out", (30, 130, 64), "float32")
    remedy = Batch().remedy(made_up_facts(at, [out], requested=10 * MIB))
    assert remedy is not None
    assert remedy.why == "4096 tokens at a time take 100.0 MiB"
    assert written(remedy) == ("max_tokens = 1843",)


# Statements that train nothing

NESTED = """\
for epoch in range(2):
    for step in range(4):
        images = painter(noise)
        critic(images).backward()
        images = painter(fixed)
        show(images.detach())
"""

KEPT = "images = painter(fixed)\n"


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        (NESTED, [5]),
        # The outer loop's statements run behind the inner loop, and read the last result.
        (NESTED + "    images.sum().backward()\n", []),
        # Those before the inner loop do not.
        (NESTED.replace("    for step", "    images = 0\n    for step"), [6]),
        ("def train():\n" + indent(NESTED, "    "), [6]),
        # Another function may read it at any time.
        ("def total():\n    return images.sum()\n" + NESTED, []),
        # A loop that has ended does not set it again: another module may read it.
        (NESTED.replace(" " * 8 + "images = painter(fixed)\n" + " " * 8, KEPT), []),
    ],
)
def test_a_result_is_followed_through_the_innermost_of_several_loops(text, lines, tmp_path):
    path = tmp_path / "program.py"
    path.write_text(text)
    assert list(results_without_backward(str(path), "images")) == lines


@pytest.mark.parametrize("trains", ["first(x).backward()", "torch.autograd.grad(first(x), x)"])
def test_functions_that_call_each_other_are_followed_once(trains, tmp_path):
    text = (
        "def first(x):\n    return second(x)\n"
        "def second(x):\n    return first(x)\n"
        f"def third(x):\n    return {trains}\n"
        "loss = second(x)\n"
        "first(loss)\n"
        "other = second(x)\n"
        "third(other)\n"
    )
    path = tmp_path / "program.py"
    path.write_text(text)
    assert not reaches_backward(str(path), 7)
    assert reaches_backward(str(path), 9)


# Trials


def test_a_survey_gives_the_set_of_blocks_that_gets_lowest():
    survey = Survey(kept={"a": 10, "b": 10}, phases={("a",): 10, ("a", "b"): 30}, flops=0)
    assert [_set_of(number, ("a", "b"), survey) for number in (1, 2)] == [["a"], ["a", "b"]]


def test_a_trial_of_this_process_has_its_gpus_and_what_others_take(tmp_path):
    target = ProgramTarget(str(tmp_path / "train.py"))
    with simulate("a100", 2, context="1GiB", others="2GiB", compute=False) as machine:
        program = this_program.repeated_on(machine, target)
    assert (program.target, program.gpu, program.computes) == (
        target,
        machine.gpus[0].model,
        False,
    )
    assert program.settings == Settings(
        num_gpus=2, context=2**30, others=2 * 2**30, simulates_for_program=True
    )


def test_trials_are_interrupted_when_their_time_is_over():
    is_reached = False
    with suppress(KeyboardInterrupt), trials._interrupted_at(time.time()):
        for _ in range(6000):
            time.sleep(0.01)
        is_reached = True
    assert not is_reached


def test_trials_that_end_before_are_not_interrupted_later():
    with trials._interrupted_at(time.time() + 3600):
        [timer] = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        assert not timer.finished.is_set()
    assert timer.finished.is_set()
    with suppress(ZeroDivisionError), trials._interrupted_at(time.time() + 3600):
        timers = [each for each in threading.enumerate() if isinstance(each, threading.Timer)]
        raise ZeroDivisionError
    assert all(each.finished.is_set() for each in timers)


@pytest.mark.parametrize(
    ("call", "outcome"),
    [
        ("checkpoint(net, x, use_reentrant=False)", Outcome.ALREADY_USED),
        ("net(x)", Outcome.APPLIED),
        ("net(checkpoint(torch.relu, x, use_reentrant=False))", Outcome.APPLIED),
    ],
)
def test_a_program_that_checkpoints_its_own_blocks_is_left_alone(call, outcome):
    text = f"""\
import torch
from torch.utils.checkpoint import checkpoint

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return x + self.down(self.up(x).relu())

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(4))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

net = Net().cuda()
x = torch.ones(8, 64, device="cuda", requires_grad=True)
{call}.sum().backward()
"""
    change = Checkpointing()
    with simulate("1GiB", compute=False), change.applied():
        exec(compile(text, "train.py", "exec"), {"__name__": "__main__"})
        assert change.finding().outcome is outcome


CAUSES_WITHOUT_EDIT = {
    "attention_kernel",
    "memory_fraction",
    "optimizer_state",
    "other_process",
    "other_stream",
    "parameters",
    "results_of_cells",
    "too_large",
}


def test_causes_that_no_line_of_the_program_mends_cannot_be_tried_by_name():
    without: set[type[Cause]] = {type(cause) for cause in all_causes() if not cause.has_edit}
    assert {cause.__module__.rpartition(".")[2] for cause in without} == CAUSES_WITHOUT_EDIT
