"""Causes that a few blocks and lines tell: when they are recognised, the edit and its bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from support.made_up_facts import MIB, made_up_facts, place
from support.ran_out import written

from pytorch_memlab._common.frames.compiled_code import compiled_code
from pytorch_memlab.advice.catalogue import remedies
from pytorch_memlab.advice.cause import Cause, Remedy
from pytorch_memlab.advice.causes import logits
from pytorch_memlab.advice.causes.compiled_activations import CompiledActivations, MemoryBudget
from pytorch_memlab.advice.causes.evaluation_predictions import EvaluationPredictions
from pytorch_memlab.advice.causes.gradients_kept import GradientsKept
from pytorch_memlab.advice.causes.graph_of_a_variable import GraphOfAVariable
from pytorch_memlab.advice.causes.kept_results import KeptResults
from pytorch_memlab.advice.causes.key_value_cache import KeyValueCache
from pytorch_memlab.advice.causes.logits import Logits
from pytorch_memlab.advice.causes.optimizer_state import OptimizerState
from pytorch_memlab.advice.causes.prefill_logits import PrefillLogits
from pytorch_memlab.advice.causes.untrained_model import UntrainedModel
from pytorch_memlab.advice.changes import EditedSource
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import (
    BlockInUse,
    OptimizerFacts,
    OutOfMemory,
    TensorGroup,
)

MODEL = (("forward", "/site/transformers/models/llama/modeling_llama.py"),)


def changed(remedy: Remedy) -> list[tuple[int, int, tuple[str, ...]]]:
    """The lines of an edit: first and last line, and their new text."""
    assert isinstance(remedy.change, EditedSource)
    return [(edit.first, edit.last, edit.lines) for edit in remedy.change.edits]


def named(facts: OutOfMemory, cause: type[Cause]) -> bool:
    """True if a report of these facts names a cause."""
    return any(remedy.cause == cause.name for remedy in remedies(facts))


# A cache that nothing reads

CACHE = tuple(
    BlockInUse(10 * MIB, Category.OTHERS, None, f"out.past_key_values.layers[{layer}].{kind}")
    for layer in range(3)
    for kind in ("keys", "values")
)
EVALUATES = "import torch\nout = model(\n    ids, labels=ids,\n)\nprint(out.loss)\n"


def evaluates(folder: Path, text: str = EVALUATES, rest: int = 100) -> OutOfMemory:
    at = place(text, folder, next(one for one in text.splitlines() if "model(" in one))
    return made_up_facts(at, [*CACHE, BlockInUse(rest * MIB, Category.PARAMETERS, None, "p")])


def test_a_cache_that_nothing_reads_is_turned_off(tmp_path):
    remedy = KeyValueCache().remedy(evaluates(tmp_path))
    assert remedy is not None
    assert remedy.size == 60 * MIB
    assert changed(remedy) == [(3, 3, ("    ids, labels=ids, use_cache=False,",))]
    assert written(remedy) == ("ids, labels=ids, use_cache=False,",)
    assert remedy.why == (
        "the model (line 3) keeps the keys and values of its layers for a next word that never"
        " comes: 60.0 MiB"
    )
    assert named(evaluates(tmp_path), KeyValueCache)


def test_a_cache_that_is_on_by_argument_is_turned_off_in_it(tmp_path):
    text = EVALUATES.replace("labels=ids", "labels=ids, use_cache=True")
    remedy = KeyValueCache().remedy(evaluates(tmp_path, text))
    assert remedy is not None
    assert changed(remedy) == [(3, 3, ("    ids, labels=ids, use_cache=False,",))]


@pytest.mark.parametrize(
    "text",
    [
        EVALUATES + "again = model(word, past_key_values=out.past_key_values)\n",
        EVALUATES + "cache = out.past_key_values\n",
        EVALUATES + "model.generate(ids)\n",
        "import torch\nout = model(ids)\n",  # no call as those of transformers are
        "import torch\nfor out in model(ids, labels=ids):\n    print(out)\n",
    ],
)
def test_a_cache_that_may_be_read_stays(text, tmp_path):
    assert KeyValueCache().remedy(evaluates(tmp_path, text)) is None


def test_a_cache_beside_larger_memory_is_not_named(tmp_path):
    assert KeyValueCache().remedy(evaluates(tmp_path, rest=1000)) is None


# Logits of a prompt

GENERATES = "out = model(prompts, use_cache=True)\nword = out.logits[:, -1].argmax(-1)\n"


def generates(
    folder: Path,
    text: str = GENERATES,
    functions: tuple[tuple[str, str], ...] = MODEL,
    shape: tuple[int, ...] = (2, 1024, 32000),
) -> OutOfMemory:
    at = place(text, folder, text.splitlines()[0])
    scores = BlockInUse(250 * MIB, Category.OTHERS, None, "", shape)
    rest = BlockInUse(20 * MIB, Category.PARAMETERS, None, "head.weight", (32000, 64))
    return made_up_facts(at, [scores, rest], requested=50 * MIB, functions=functions)


def test_logits_of_the_last_word_are_computed_alone(tmp_path):
    remedy = PrefillLogits().remedy(generates(tmp_path))
    assert remedy is not None
    assert remedy.size == (250 + 50) * MIB // 2
    edited = "out = model(prompts, use_cache=True, logits_to_keep=1)"
    assert (changed(remedy), written(remedy)) == ([(1, 1, (edited,))], (edited,))
    assert remedy.why == (
        "logits of all words (line 1) take 300.0 MiB, and the program reads those of the last one"
    )
    assert named(generates(tmp_path), PrefillLogits)


def test_logits_of_last_words_by_slices_are_the_last_ones_too(tmp_path):
    text = GENERATES.replace("[:, -1]", "[:, -1:, :]")
    assert PrefillLogits().remedy(generates(tmp_path, text)) is not None


@pytest.mark.parametrize(
    "text",
    [
        GENERATES + "scores = out.logits.log_softmax(-1)\n",
        GENERATES.replace("[:, -1]", "[:, :-1]"),
        GENERATES.replace("[:, -1]", "[-1]"),  # of the last prompt
        "out = model(prompts, use_cache=True)\n",  # nothing tells which of them are read
        "print(model(prompts).logits[:, -1])\n",
    ],
)
def test_other_logits_than_those_of_the_last_word_are_read(text, tmp_path):
    assert PrefillLogits().remedy(generates(tmp_path, text)) is None


def test_scores_of_another_model_or_of_few_classes_are_not_those_of_a_prompt(tmp_path):
    own = (("forward", "/home/me/model.py"),)
    assert PrefillLogits().remedy(generates(tmp_path, functions=own)) is None
    within = (*MODEL, ("forward", "/site/transformers/models/llama/modeling_llama.py"))
    few = (2, 1024, 1000)
    assert PrefillLogits().remedy(generates(tmp_path, functions=within, shape=few)) is None


def test_a_request_of_the_head_itself_is_that_of_logits(tmp_path):
    remedy = PrefillLogits().remedy(generates(tmp_path, shape=()))
    assert remedy is not None
    assert remedy.size == 25 * MIB
    # The request of a layer below the head is not.
    within = MODEL * 2
    remedy = PrefillLogits().remedy(generates(tmp_path, functions=within))
    assert remedy is not None
    assert remedy.size == 125 * MIB


# A model that nothing trains

DISTILLS = """\
import torch
teacher.eval()
optimizer = torch.optim.AdamW(student.parameters())
for _ in range(5):
    features = encoder(x)
    target = teacher(features)
    loss = student(x).sub(target).square().mean()
"""


def distills(folder: Path, text: str = DISTILLS, saved: int = 100, name: str = "") -> OutOfMemory:
    at = place(text, folder, "target = teacher(features)")
    blocks = [BlockInUse(saved * MIB, Category.SAVED, at, name, (4096, 512)) for _ in range(2)]
    return made_up_facts(at, [*blocks, BlockInUse(500 * MIB, Category.PARAMETERS, None, "p")])


def test_a_teacher_saves_nothing_within_no_grad(tmp_path):
    remedy = UntrainedModel().remedy(distills(tmp_path))
    assert remedy is not None
    assert remedy.size == 200 * MIB
    assert written(remedy) == ("with torch.no_grad():", "target = teacher(features)")
    lines = ("    with torch.no_grad():", "        target = teacher(features)")
    assert changed(remedy) == [(6, 6, lines)]
    assert remedy.why == "teacher (line 6) is not trained, and autograd saved 200.0 MiB in it"
    assert named(distills(tmp_path), UntrainedModel)


@pytest.mark.parametrize(
    "text",
    [
        DISTILLS.replace("student.parameters()", "teacher.parameters()"),
        DISTILLS.replace("teacher.eval()", "student.eval()"),  # it is in training mode
        DISTILLS.replace("AdamW(student.parameters())", "AdamW(weights)"),  # trained by whom?
        # Its gradients reach the features, which are trained.
        DISTILLS.replace("student.parameters()", "encoder.parameters()"),
        DISTILLS.replace("features = encoder(x)", "features = student(x)"),
    ],
)
def test_a_model_that_may_be_trained_keeps_its_graph(text, tmp_path):
    assert UntrainedModel().remedy(distills(tmp_path, text)) is None


def test_little_memory_and_tensors_that_variables_keep_are_no_activations(tmp_path):
    assert UntrainedModel().remedy(distills(tmp_path, saved=20)) is None
    assert UntrainedModel().remedy(distills(tmp_path, name="features")) is None


# Compiled graphs


def compiled_facts(folder: Path, saved: int = 100) -> OutOfMemory:
    at = place("loss = model(x)\n", folder, "loss = model(x)")
    blocks = [
        BlockInUse(saved * MIB, Category.SAVED, at),
        BlockInUse(100 * MIB, Category.OTHERS, at, "x"),
    ]
    return made_up_facts(at, blocks)


def test_compiled_graphs_save_half(tmp_path, monkeypatch):
    monkeypatch.setattr(type(compiled_code), "is_used", True)
    remedy = CompiledActivations().remedy(compiled_facts(tmp_path))
    assert remedy is not None
    assert remedy.size == 50 * MIB
    assert written(remedy) == (
        "import torch._functorch.config",
        "torch._functorch.config.activation_memory_budget = 0.5  # before the first compiled call",
    )
    assert isinstance(remedy.change, MemoryBudget)
    assert remedy.change.name == "memory_budget=0.5"
    assert remedy.why == "compiled graphs saved 100.0 MiB for backward"
    assert remedy.effect == "frees at least 50.0 MiB"
    assert CompiledActivations().remedy(compiled_facts(tmp_path, saved=5)) is None


def test_a_program_that_compiles_nothing_has_no_budget(tmp_path, monkeypatch):
    monkeypatch.setattr(type(compiled_code), "is_used", False)
    assert CompiledActivations().remedy(compiled_facts(tmp_path)) is None


# Logits of a trainer

TRAINS = """\
from trl import SFTConfig, SFTTrainer
args = SFTConfig(
    "out", per_device_train_batch_size=8
)
SFTTrainer(model, args).train()
"""
LOSS = (("cross_entropy", "/site/torch/nn/functional.py"),)


def trains(folder: Path, text: str = TRAINS) -> OutOfMemory:
    at = place(text, folder, "SFTTrainer(model, args).train()")
    scores = BlockInUse(200 * MIB, Category.TEMPORARIES, at, "", (8, 200, 40000))
    return made_up_facts(at, [scores], requested=200 * MIB, functions=LOSS)


def accumulated(remedy: Remedy | None) -> bool:
    lines = '    "out", per_device_train_batch_size=1, gradient_accumulation_steps=8'
    return remedy is not None and changed(remedy) == [(3, 3, (lines,))]


def test_a_trainer_takes_fewer_sequences_where_its_loss_reads_all_logits(tmp_path, monkeypatch):
    monkeypatch.setattr(logits, "find_spec", lambda name: name)
    remedy = Logits().remedy(trains(tmp_path))
    assert remedy is not None
    assert remedy.size == 200 * MIB
    lines = '    "out", per_device_train_batch_size=8, use_liger_kernel=True'
    assert changed(remedy) == [(3, 3, (lines,))]
    # A loss of the program's own makes the logits with Liger too.
    assert accumulated(remedy.otherwise)
    assert remedy.otherwise is not None
    assert written(remedy.otherwise) == (
        '"out", per_device_train_batch_size=1, gradient_accumulation_steps=8',
    )


def test_a_trainer_without_liger_takes_fewer_sequences(tmp_path, monkeypatch):
    monkeypatch.setattr(logits, "find_spec", lambda name: None)
    remedy = Logits().remedy(trains(tmp_path))
    assert accumulated(remedy)
    assert remedy is not None
    assert remedy.otherwise is None


def test_a_long_vector_is_no_scores_of_a_vocabulary(tmp_path):
    oom = trains(tmp_path)
    (scores,) = oom.blocks
    assert Logits().remedy(replace(oom, blocks=(scores._replace(shape=(320_000,)),))) is None


def test_a_batch_that_is_no_number_leaves_liger_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(logits, "find_spec", lambda name: name)
    remedy = Logits().remedy(trains(tmp_path, TRAINS.replace("=8", "=options.batch")))
    assert remedy is not None
    assert "use_liger_kernel=True" in written(remedy)[0]
    assert remedy.otherwise is None


EVALUATION_LOOP = (
    *LOSS,
    ("evaluation_loop", "/site/transformers/trainer.py"),
    ("torch_pad_and_concatenate", "/site/transformers/trainer_pt_utils.py"),
)


def test_an_evaluation_makes_the_logits_with_liger_too(tmp_path, monkeypatch):
    monkeypatch.setattr(logits, "find_spec", lambda name: name)
    oom = trains(tmp_path)
    (scores,) = oom.blocks
    predictions = scores._replace(name="all_preds.tensors", size=4 * scores.size)
    evaluates = replace(oom, blocks=(scores, predictions), functions=EVALUATION_LOOP)
    remedy = Logits().remedy(evaluates)
    assert remedy is not None
    # Neither what is kept of earlier batches nor what joins it goes with smaller batches.
    assert remedy.size == 100 * MIB
    lines = '    "out", per_device_train_batch_size=8, per_device_eval_batch_size=1'
    assert changed(remedy) == [(3, 3, (lines,))]
    assert remedy.otherwise is None


def test_an_evaluation_whose_batch_is_no_number_says_which_option_to_lower(tmp_path):
    text = TRAINS.replace('"out"', '"out", per_device_eval_batch_size=options.batch')
    remedy = Logits().remedy(replace(trains(tmp_path, text), functions=EVALUATION_LOOP))
    assert remedy is not None
    assert remedy.change is None
    assert written(remedy) == ("TrainingArguments with a smaller per_device_eval_batch_size",)


# Predictions of an evaluation

EVALUATES_ALL = """\
from transformers import Trainer, TrainingArguments
args = TrainingArguments(
    "out",
    report_to="none",
)
trainer = Trainer(model, args, compute_metrics=accuracy)
print(trainer.evaluate())
"""
LOOP = (("evaluation_loop", "/site/transformers/trainer.py"),)
JOINS = (
    ("torch_pad_and_concatenate", "/site/transformers/trainer_pt_utils.py"),
    ("add", "/site/transformers/trainer_pt_utils.py"),
    *LOOP,
)


def evaluates_all(
    folder: Path,
    name: str,
    functions: tuple[tuple[str, str], ...],
    text: str = EVALUATES_ALL,
    category: Category = Category.OTHERS,
) -> OutOfMemory:
    at = place(text, folder, "print(trainer.evaluate())")
    blocks = [
        BlockInUse(120 * MIB, category, at, name, (16, 256, 8000)),
        BlockInUse(30 * MIB, Category.OTHERS, at, "tensor2", (4, 256, 8000)),
        BlockInUse(50 * MIB, Category.PARAMETERS, None, "model.head.weight"),
    ]
    return made_up_facts(at, blocks, requested=150 * MIB, functions=functions)


def test_predictions_that_are_joined_go_to_the_host(tmp_path):
    facts = evaluates_all(tmp_path, "tensor1", JOINS)
    remedy = EvaluationPredictions().remedy(facts)
    assert remedy is not None
    assert remedy.size == (120 + 150) * MIB
    assert changed(remedy) == [(5, 4, ("    eval_accumulation_steps=1,",))]
    assert remedy.why == (
        "Trainer keeps the predictions of all batches (line 7) on the GPU until the evaluation is"
        " over: 270.0 MiB"
    )
    assert named(facts, EvaluationPredictions)


@pytest.mark.parametrize("name", ["all_preds.tensors", "all_preds.tensors[3]", "self.tensors"])
def test_predictions_beside_the_next_batch_are_no_part_of_its_request(name, tmp_path):
    remedy = EvaluationPredictions().remedy(evaluates_all(tmp_path, name, LOOP))
    assert remedy is not None
    assert remedy.size == 120 * MIB


def test_rarer_moves_to_the_host_become_more_frequent(tmp_path):
    text = EVALUATES_ALL.replace('"none"', '"none", eval_accumulation_steps=64')
    remedy = EvaluationPredictions().remedy(evaluates_all(tmp_path, "tensor1", JOINS, text))
    assert remedy is not None
    assert written(remedy) == ('report_to="none", eval_accumulation_steps=1,',)


def test_arguments_of_a_command_line_are_named(tmp_path):
    text = EVALUATES_ALL.replace("TrainingArguments(\n", "parsed(\n")
    remedy = EvaluationPredictions().remedy(evaluates_all(tmp_path, "tensor1", JOINS, text))
    assert remedy is not None
    assert (written(remedy), remedy.change) == (
        ("TrainingArguments(eval_accumulation_steps=1)",),
        None,
    )


def test_what_each_batch_is_moved_to_the_host_for_keeps_no_predictions(tmp_path):
    text = EVALUATES_ALL.replace('"none"', '"none", eval_accumulation_steps=1')
    assert EvaluationPredictions().remedy(evaluates_all(tmp_path, "tensor1", JOINS, text)) is None


@pytest.mark.parametrize(
    ("name", "functions", "category"),
    [
        ("all_preds.tensors", (("train", "/site/transformers/trainer.py"),), Category.OTHERS),
        ("all_preds.tensors", (("evaluation_loop", "/home/me/loop.py"),), Category.OTHERS),
        ("outputs.logits", LOOP, Category.OTHERS),
        ("tensor1", LOOP, Category.OTHERS),  # the name of another variable
        ("all_preds.tensors", LOOP, Category.PARAMETERS),
    ],
)
def test_other_tensors_are_no_predictions(name, functions, category, tmp_path):
    facts = evaluates_all(tmp_path, name, functions, category=category)
    assert EvaluationPredictions().remedy(facts) is None


# Containers that the same function fills

METRIC = """\
class Metric:
    def update(self, score, target):
        self.scores.append(score)
        self.targets.append(target)

    def remember(self, batch):
        self.batches.append(batch)

update = Metric().update
"""


def keeps_lists(folder: Path, *names: str) -> OutOfMemory:
    blocks = [
        BlockInUse(10 * MIB, Category.OTHERS, None, f"metric.{name}[{number}]")
        for name in names
        for number in range(4)
    ]
    facts = made_up_facts(place(METRIC, folder, "update = Metric().update"), blocks)
    groups = tuple(TensorGroup(f"metric.{name}", 4, 40 * MIB, 0) for name in names)
    return replace(facts, groups=groups)


def test_lists_that_one_function_fills_go_to_the_host_together(tmp_path):
    remedy = KeptResults().remedy(keeps_lists(tmp_path, "scores", "targets", "batches"))
    assert remedy is not None
    assert remedy.size == 80 * MIB
    assert remedy.why == (
        "metric.scores (line 3) and metric.targets keep 8 tensors on the GPU: 80.0 MiB"
    )
    assert written(remedy) == (
        "self.scores.append(score.cpu())",
        "self.targets.append(target.cpu())",
    )


def test_a_list_that_a_function_fills_alone_goes_alone(tmp_path):
    remedy = KeptResults().remedy(keeps_lists(tmp_path, "batches", "scores"))
    assert remedy is not None
    assert remedy.size == 40 * MIB
    assert remedy.why == "metric.batches (line 7) keeps 4 tensors on the GPU: 40.0 MiB"
    assert written(remedy) == ("self.batches.append(batch.cpu())",)


def test_a_list_that_no_line_fills_is_named_without_a_line(tmp_path):
    remedy = KeptResults().remedy(keeps_lists(tmp_path, "elsewhere"))
    assert remedy is not None
    assert remedy.why == "metric.elsewhere keeps 4 tensors on the GPU: 40.0 MiB"
    assert written(remedy) == ("keep copies in host memory in metric.elsewhere: .cpu()",)


def test_the_result_of_a_call_is_deleted(tmp_path):
    at = place("for x in loader:\n    out = model(x)\n", tmp_path, "out = model(x)")
    blocks = [
        BlockInUse(10 * MIB, Category.OTHERS, at, f"out['{key}']", (key, 1)) for key in range(4)
    ]
    facts = made_up_facts(at, blocks, requested=10 * MIB)
    group = TensorGroup("out", 4, own=40 * MIB, graphs=0)
    remedy = KeptResults().remedy(replace(facts, groups=(group,)))
    assert remedy is not None
    assert remedy.why == "out keeps 4 tensors on the GPU: 40.0 MiB"
    assert written(remedy) == ("del out  # where it is read last",)


def test_the_state_that_adafactor_saves_is_twice_the_parameters_but_its_own(tmp_path):
    at = place("optimizer.step()\n", tmp_path, "optimizer.step()")
    functions = (("_init_group", "/site/torch/optim/adamw.py"),)
    facts = made_up_facts(at, [], functions=functions)
    optimizer = OptimizerFacts("AdamW", 30 * MIB, True, MIB)
    remedy = OptimizerState().remedy(replace(facts, optimizers=(optimizer,)))
    assert remedy is not None
    assert remedy.size == 59 * MIB
    assert remedy.why == "AdamW keeps 60.0 MiB, twice the parameters"
    assert written(remedy) == ("torch.optim.Adafactor(parameters)  # keeps 1.0 MiB",)


# Gradients of the step before

TRAINS_IN_TURN = """\
for x in loader:
    critic.zero_grad()
    critic(x).backward()
    painter.zero_grad()
    critic(painter(x)).backward()
"""
ACCUMULATES = """\
for step, x in enumerate(loader):
    model(x).backward()
    if (step + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""


def with_gradients(folder: Path, text: str, line: str) -> OutOfMemory:
    gradients = BlockInUse(60 * MIB, Category.GRADIENTS, None, "w.grad", (1, 1))
    return made_up_facts(place(text, folder, line), [gradients], requested=10 * MIB)


@pytest.mark.parametrize(
    ("text", "line"),
    [(TRAINS_IN_TURN, "critic(painter(x)).backward()"), (ACCUMULATES, "model(x).backward()")],
)
def test_gradients_that_the_step_needs_are_not_cleared(text, line, tmp_path):
    assert GradientsKept().remedy(with_gradients(tmp_path, text, line)) is None


def test_gradients_of_one_model_are_cleared_before_the_forward_pass(tmp_path):
    text = "for x in loader:\n    loss = model(x)\n    opt.zero_grad()\n    loss.backward()\n"
    remedy = GradientsKept().remedy(with_gradients(tmp_path, text, "loss = model(x)"))
    assert remedy is not None
    assert changed(remedy) == [(2, 1, ("    opt.zero_grad(set_to_none=True)",))]


OPTIMIZER_OF_A_FUNCTION = """\
def main():
    optimizer = SGD(model.parameters())
    for x in loader:
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
    print(validate(model))


main()
"""


def test_gradients_are_cleared_where_the_optimizer_can_be_read(tmp_path):
    facts = with_gradients(tmp_path, OPTIMIZER_OF_A_FUNCTION, "print(validate(model))")
    inner = facts.frames[0]
    calls = place(OPTIMIZER_OF_A_FUNCTION, tmp_path, "main()")
    outer = replace(inner, place=calls, source={calls.line: calls.source})
    remedy = GradientsKept().remedy(replace(facts, frames=(inner, outer)))
    assert remedy is not None
    assert changed(remedy) == [(7, 6, ("    optimizer.zero_grad(set_to_none=True)",))]
    alone = GradientsKept().remedy(replace(facts, frames=(outer,)))
    assert alone is not None
    assert alone.change is None
    assert written(alone) == ("optimizer.zero_grad(set_to_none=True)  # before the forward pass",)


@pytest.mark.parametrize(
    ("text", "is_changed"),
    [
        ("def step(opt):\n    opt.zero_grad()\n    validate()\n", True),
        ("def step():\n    opt.zero_grad()\n    validate()\nopt = SGD()\n", True),
        ("validate()\nopt = SGD()\nopt.zero_grad()\n", False),
        ("async def step(opt):\n    opt.zero_grad()\nvalidate()\n", False),
    ],
)
def test_a_variable_is_read_within_its_function_once_it_is_set(text, is_changed, tmp_path):
    remedy = GradientsKept().remedy(with_gradients(tmp_path, text, "validate()"))
    assert remedy is not None
    assert (remedy.change is not None) is is_changed


# A variable with a graph

SHOWS = """\
for step in range(4):
    images = painter(noise)
    critic(images).backward()
    if step % 2 == 0:
        images = painter(fixed)
        show(images.detach())
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (SHOWS, 5),
        (SHOWS.replace("images.detach()", "images.item()"), 5),
        (SHOWS.replace("images.detach()", "images"), 0),
        (SHOWS.replace("    images = painter(noise)\n", ""), 0),  # read in the next iteration
        (SHOWS + "images.sum().backward()\n", 0),
        (SHOWS + "def later():\n    return images\n", 0),
    ],
)
def test_a_variable_whose_graph_nothing_reads_is_made_without_one(text, line, tmp_path):
    at = place(text, tmp_path, "critic(images).backward()")
    saved = BlockInUse(60 * MIB, Category.SAVED, None, "", (1, 1))
    group = TensorGroup("images", 1, own=MIB, graphs=60 * MIB, is_variable=True)
    remedy = GraphOfAVariable().remedy(replace(made_up_facts(at, [saved]), groups=(group,)))
    assert (remedy is not None) == bool(line)
    if remedy is not None:
        assert remedy.size == 60 * MIB
        assert remedy.why == ("images (line 5) keeps a graph that no backward pass reads: 60.0 MiB")
        assert "        with torch.no_grad():" in changed(remedy)[0][2]
