"""Remedies that were tried: what they say comes true when a person makes the edit."""

from __future__ import annotations

import linecache
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.made_up_facts import made_up_facts, place
from support.oom_programs import OomProgram, program
from support.ran_out import written
from support.saved_tensors import knows_saved_tensors

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice import remedy_runs, trials
from pytorch_memlab.advice.around_program import Edit, Finding, Outcome
from pytorch_memlab.advice.batch_size import BatchNumber
from pytorch_memlab.advice.catalogue import candidates
from pytorch_memlab.advice.cause import Remedy
from pytorch_memlab.advice.causes.gradients_kept import SetToNone
from pytorch_memlab.advice.causes.growing_buffer import GrowingBuffer
from pytorch_memlab.advice.changes import EditedSource, at_once, sum_of_numbers
from pytorch_memlab.advice.compared_values import Comparison, Values
from pytorch_memlab.advice.trial_records import Advice, Result, Together, TrialProgram
from pytorch_memlab.advice.trials import advice_without_error, tried_advice
from pytorch_memlab.fitting.target import ProgramTarget
from pytorch_memlab.fitting.trial import Settings
from pytorch_memlab.fitting.verdict import PartSeen
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import BlockInUse
from pytorch_memlab.render.advice import outcome
from pytorch_memlab.render.oom import text as oom_text
from pytorch_memlab.simulation.hardware.presets import find_gpu

pytestmark = pytest.mark.usefixtures("short_search")


MIB = 2**20
KEEPS = """\
import torch
net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256))
net.cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
losses = []
for step in range(20):
    net(torch.randn(64, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    loss = net(torch.randn(2048, 256, device="cuda"))
    losses.append(loss.square().mean())
"""


def failed(one: OomProgram, folder: Path):
    """The facts of a program that runs out of memory, and the program to run again."""
    path = folder / f"{one.name}.py"
    path.write_text(one.text)
    linecache.checkcache(str(path))
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(one.options["gpu"], compute=False, context=0) as machine,
    ):
        exec(compile(one.text, str(path), "exec"), {"__name__": "__main__"})
    facts = uncaught.add(caught.value).facts
    # Without the frames of this test, which are no part of the program.
    frames = tuple(frame for frame in facts.frames if frame.place.file == str(path))
    facts = replace(facts, frames=frames)
    gpu = machine.gpus[0].model
    return facts, TrialProgram(ProgramTarget(str(path)), gpu, Settings(context=0), str(folder))


def peak_of(text: str, name: str) -> int:
    """The most bytes in use by a program on a GPU that has room."""
    with simulate("64GiB", compute=False):
        exec(compile(text, name, "exec"), {"__name__": "__main__"})
        return torch.cuda.max_memory_allocated()


def edited(one: OomProgram, change: EditedSource) -> str:
    lines = one.text.splitlines()
    for edit in sorted(change.edits, key=lambda edit: -edit.first):
        lines[edit.first - 1 : edit.last] = edit.lines
    return "\n".join(lines)


@knows_saved_tensors
@pytest.mark.parametrize("line", ["", "print(torch.cuda.mem_get_info())\n"])
@pytest.mark.parametrize("name", ["no_grad", "running_sum"])
def test_the_edited_program_has_the_peak_that_was_promised(name, line, tmp_path):
    """That of the whole program, also where it asks for the memory of the GPU."""
    one = program(name)
    one = replace(one, text=one.text.replace("import torch\n", f"import torch\n{line}", 1))
    facts, again = failed(one, tmp_path)
    advice = tried_advice(facts, again, 120)

    first, result = advice.remedies[0], advice.results[0]
    assert isinstance(first.change, EditedSource)
    assert result is not None
    assert result.fits
    assert result.is_exact
    assert result.before == peak_of(one.text, f"{name}.py")
    assert result.after == peak_of(edited(one, first.change), f"{name}.py")
    assert (tmp_path / f"{name}.py").read_text() == one.text


@knows_saved_tensors
def test_a_program_without_an_error_is_stopped_at_its_peak(tmp_path):
    one = program("running_sum")
    path = tmp_path / "running_sum.py"
    path.write_text(one.text)
    linecache.checkcache(str(path))
    again = TrialProgram(ProgramTarget(str(path)), find_gpu("24GiB"), Settings(), computes=True)
    advice = advice_without_error(again, 120)

    [first], [result] = advice.remedies, advice.results
    assert isinstance(first.change, EditedSource)
    assert (result.before, result.after) == (
        peak_of(one.text, "running_sum.py"),
        peak_of(edited(one, first.change), "running_sum.py"),
    )
    assert result.values == Comparison("loss", 3, 3, 0.0, is_without_dropout=False)
    sound = tmp_path / "sound.py"
    sound.write_text("import torch\ntorch.ones(2**22, device='cuda').sum()\n")
    again = replace(again, target=ProgramTarget(str(sound)))
    assert advice_without_error(again, 120) == Advice((), ())


@knows_saved_tensors
@pytest.mark.parametrize(
    ("last", "method"), [("float(sum(losses))", "item"), ("losses[-1].item()", "detach")]
)
def test_values_stay_tensors_where_the_program_calls_methods_of_them(tmp_path, last, method):
    text = KEEPS + f"print({last})\n"
    one = OomProgram("keeps", {"gpu": "64MiB"}, text, "")
    facts, again = failed(one, tmp_path)
    advice = tried_advice(facts, again, 120)
    kept, result = next(
        pair
        for pair in zip(advice.remedies, advice.results, strict=True)
        if pair[0].cause == "a list of tensors with their graphs"
    )
    assert written(kept) == (f"losses.append(loss.square().mean().{method}())",)
    assert result.fits
    assert result.is_exact
    assert result.before == peak_of(text, "keeps.py")
    assert result.after == peak_of(edited(one, kept.change), "keeps.py")


@knows_saved_tensors
def test_a_list_of_numbers_and_tensors_keeps_both(tmp_path):
    text = KEEPS.replace("losses.append(loss", "keep(1.5)\n    keep(loss")
    text = text.replace("losses = []", "losses = []\ndef keep(value):\n    losses.append(value)")
    facts, again = failed(OomProgram("keeps", {"gpu": "64MiB"}, text, ""), tmp_path)
    advice = tried_advice(facts, again, 120)
    last = written(advice.remedies[0])[-1]
    assert last.endswith("losses.append((value.detach() if torch.is_tensor(value) else value))")
    assert advice.results[0].fits


def test_what_does_not_help_is_not_shown(tmp_path):
    # The setting serves the request that failed, and a later one fails for want of memory.
    text = program("fragmentation").text + "del result\nmore = take(120)\n"
    facts, again = failed(OomProgram("later", {"gpu": "256MiB"}, text, ""), tmp_path)
    assert "fragmentation" in [remedy.cause for _, remedy in candidates(facts)]
    advice = tried_advice(facts, again, 120)
    assert "fragmentation" not in [remedy.cause for remedy in advice.remedies]


TWO_FAULTS = """\
import copy
import torch
net = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024, bias=False) for _ in range(8))).cuda()
best = copy.deepcopy(net)
outputs = []
for step in range(8):
    with torch.no_grad():
        outputs.append(net(torch.randn(1024, 1024, device="cuda")))
net(torch.randn(4096, 1024, device="cuda")).sum().backward()
net.load_state_dict(best.state_dict())
"""


def test_several_remedies_are_tried_together_where_none_is_enough_alone(tmp_path):
    one = OomProgram("two_faults", {"gpu": "230MiB"}, TWO_FAULTS, "")
    advice = tried_advice(*failed(one, tmp_path), 120)
    sources = [remedy.change for remedy in advice.remedies[:2]]
    alone = [peak_of(edited(one, source), "two_faults.py") for source in sources]
    both = peak_of(edited(one, at_once(sources)[0]), "two_faults.py")
    before = peak_of(TWO_FAULTS, "two_faults.py")
    assert sorted(before - peak for peak in alone) == [32 * MIB, 32 * MIB]
    assert before - both == 64 * MIB
    assert [result.after for result in advice.results[:2]] == alone
    assert [result.fits for result in advice.results[:2]] == [False, False]
    assert advice.together == Together((1, 2), Result(before, both, fits=True, is_whole=True))


def test_code_with_a_place_stays_where_the_trial_found_none():
    finding = Finding(Outcome.APPLIED, code=("model.change()",))
    remedy = Remedy("batch", MIB, "why", ("# train.py in place of line 3:", "change(x)"))
    assert remedy_runs._code(remedy, finding) == ()
    remedy = replace(remedy, code=("change(x)",))
    assert remedy_runs._code(remedy, finding) == ("model.change()",)


def test_edits_of_the_same_lines_are_not_made_together():
    first, second = Edit("a.py", 3, 5, ("x",)), Edit("a.py", 6, 6, ("y",))
    before, inside = Edit("a.py", 3, 2, ("import torch",)), Edit("a.py", 5, 5, ("z",))
    [both] = at_once([EditedSource([second]), EditedSource([first, first])])
    assert both.edits == (first, second)
    [both] = at_once([EditedSource([before]), EditedSource([before, second])])
    assert both.edits == (before, second)
    assert at_once([EditedSource([first]), EditedSource([inside])]) is None
    assert at_once([EditedSource([first]), EditedSource([before])]) is None
    assert [type(change) for change in at_once([SetToNone(), EditedSource([first])])] == [
        EditedSource,
        SetToNone,
    ]


def test_remedies_run_beside_the_program_as_it_is(tmp_path, monkeypatch):
    one = program("running_sum")
    facts, again = failed(one, tmp_path)
    begun = []

    def counted(requests):
        begun.append([len(request.changes) for request in requests])
        return run_all(requests)

    run_all = remedy_runs.run_all
    monkeypatch.setattr(remedy_runs, "run_all", counted)
    tried = remedy_runs.RemedyRuns(again, has_error=True)
    tried.try_all(candidates(facts))
    assert begun[0][:2] == [0, 1]
    assert tried.advice("").results[0].fits
    assert tried.reason_of_the_rest(12.3) == ""

    del tried._ended[1]  # as if the time had been over before
    assert tried.reason(12.3) == ""
    advice = tried.advice(tried.reason_of_the_rest(12.3))
    assert advice.results[0] is None
    assert "  not tried: the trials had 12 s\n" in oom_text(facts, advice)


def test_a_smaller_batch_is_tried_behind_any_number_of_edits():
    edits = [
        (GrowingBuffer(), Remedy(f"{n}", MIB, "", (), change=EditedSource([]))) for n in range(7)
    ]
    words = [(GrowingBuffer(), Remedy("words", MIB, "", ()))]
    change = BatchNumber(8, __file__).changed_to(4)
    batch = [(GrowingBuffer(), Remedy("batch", MIB, "", (), change=change))]
    names = [
        [one.cause for one in remedy_runs.remedies_to_try(known)]
        for known in ([*words, *edits], [*words, *edits, *batch], [*edits[:2], *batch, *edits[2:]])
    ]
    assert names == [
        ["0", "1", "2", "3", "4"],
        ["0", "1", "2", "3", "batch"],
        ["0", "1", "batch", "2", "3"],
    ]


LATE = """\
import torch
net = torch.nn.Linear(256, 256, device="cuda")
kept = []
for step in range(60):
    x = net(torch.randn(64, 256, device="cuda"))
    x.sum().backward()
    net.zero_grad()
    if step > 40:
        kept.append(net(torch.randn(16384, 256, device="cuda")).sum())
"""


def test_a_program_that_fails_after_many_steps_gets_tried_remedies(tmp_path):
    one = OomProgram("late", {"gpu": "64MiB"}, LATE, "")
    advice = tried_advice(*failed(one, tmp_path), 120)
    change, result = advice.remedies[0].change, advice.results[0]
    assert result.fits
    assert (result.before, result.after) == (
        peak_of(LATE, "late.py"),
        peak_of(edited(one, change), "late.py"),
    )


def test_a_program_that_cannot_run_again_says_why(tmp_path):
    text = (
        "import pathlib, sys\n"
        "if pathlib.Path('ran').exists():\n    sys.exit('it ran before')\n"
        "pathlib.Path('ran').touch()\n"
    )
    one = program("kept_results")
    facts, again = failed(OomProgram("once", one.options, one.text, ""), tmp_path)
    (tmp_path / "once.py").write_text(text + one.text)
    (tmp_path / "ran").touch()
    advice = tried_advice(facts, again, 120)
    assert advice.results == (None,) * len(advice.remedies)
    assert advice.untried == (
        "a second run of the program fails at once.py:3: the program ended with exit status 1: it"
        " ran before"
    )


def test_trials_end_when_their_time_is_over(tmp_path):
    one = program("kept_results")
    facts, again = failed(one, tmp_path)
    (tmp_path / "kept_results.py").write_text("import time\ntime.sleep(1000)\n")
    advice: Advice = tried_advice(facts, again, 0.5)
    assert advice.untried == "a second run of the program takes longer than 0 s"


def test_the_largest_batch_that_fits_is_found_by_trying(tmp_path):
    text = """import torch

batch_size = 12
for step in range(2):
    x = torch.randn(batch_size, 2**20, device="cuda")
    y = x.exp()
"""
    one = OomProgram("batch_of_samples", {"gpu": "64MiB"}, text, "")
    facts, again = failed(one, tmp_path)
    (tmp_path / "batch_of_samples.py").write_text(text)
    advice = tried_advice(facts, again, 120)
    # From the second step on, three tensors of 4 MiB for each sample are there at a time.
    assert written(advice.remedies[0]) == ("batch_size = 5",)
    assert advice.remedies[0].why.startswith("12 samples at a time take ")
    result = advice.results[0]
    assert result is not None
    assert result.fits
    assert result.after == 5 * 3 * 4 * 2**20


TWO_CAUSES = """import torch

batch_size = 8
results = []
for step in range(8):
    x = torch.randn(batch_size, 2**21, device="cuda")
    results.append(x.exp())
pairs = torch.randn(batch_size * 6, 2**21, device="cuda")
"""


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        (
            "368MiB",  # what follows the loop does not fit, whatever the loop keeps
            [
                "what helps, the most likely cause first",
                "  1. results (line 7) keeps 4 tensors on the GPU: 256.0 MiB",
                "       # two_causes.py in place of line 7:",
                "       results.append(x.exp().cpu())",
                "       tried: peak 960.0 MiB -> 448.0 MiB, still does not fit",
                "       same results by its formula",
                "  2. 8 samples at a time take 384.0 MiB",
                "       # two_causes.py in place of line 3:",
                "       batch_size = 3",
                "       tried: peak 960.0 MiB -> 360.0 MiB, runs to its end",
            ],
        ),
        (
            "448MiB",  # the fault alone is enough, so a smaller batch is no answer
            [
                "what helps, the most likely cause first",
                "  1. results (line 7) keeps 6 tensors on the GPU: 384.0 MiB",
                "       # two_causes.py in place of line 7:",
                "       results.append(x.exp().cpu())",
                "       tried: peak 960.0 MiB -> 448.0 MiB, runs to its end",
                "       same results by its formula",
            ],
        ),
    ],
)
def test_a_smaller_batch_is_named_beside_a_fault_that_is_not_all(gpu, words, tmp_path):
    one = OomProgram("two_causes", {"gpu": gpu}, TWO_CAUSES, "")
    facts, again = failed(one, tmp_path)
    lines = oom_text(facts, tried_advice(facts, again, 120)).splitlines()
    assert lines[lines.index(words[0]) :] == words


def test_the_largest_option_of_the_command_line_that_fits_is_found_by_trying(tmp_path, monkeypatch):
    text = """import argparse
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--n", type=int, default=2)
n = parser.parse_args().n
for step in range(2):
    x = torch.randn(n, 2**20, device="cuda")
    y = x.exp()
"""
    monkeypatch.setattr("sys.argv", ["option_of_the_run.py", "--n", "12"])
    one = OomProgram("option_of_the_run", {"gpu": "64MiB"}, text, "")
    facts, again = failed(one, tmp_path)
    again = replace(again, target=replace(again.target, arguments=("--n", "12")))
    advice = tried_advice(facts, again, 120)
    assert written(advice.remedies[0]) == ("--n 5  # on the command line",)
    result = advice.results[0]
    assert result is not None
    assert result.after == 5 * 3 * 4 * 2**20


@pytest.mark.parametrize(
    ("line", "new"),
    [
        ("    total += loss", "    total += loss.item()"),
        ("total = total + loss * 2", "total = total + (loss * 2).item()"),
        ("total = model.loss(x) + total", "total = model.loss(x).item() + total"),
        ("total = other + loss", None),
    ],
)
def test_a_sum_adds_numbers(line, new, tmp_path):
    path = tmp_path / "sums.py"
    path.write_text(f"{line}\n")
    linecache.checkcache(str(path))
    edit = sum_of_numbers(str(path), 1, "total")
    assert (None if edit is None else edit.lines[0]) == new


TWO_NETWORKS = """\
import torch

def network():
    return torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(4)]).cuda()

generator, critic = network(), network()
generates = torch.optim.Adam(generator.parameters(), foreach=False)
judges = torch.optim.Adam(critic.parameters(), foreach=False)
scores = []
for step in range(12):
    real = torch.randn(1024, 1024, device="cuda")
    for part in range(8):
        scores.append(critic(real + part).mean())
    fake = generator(torch.randn(1024, 1024, device="cuda"))
    loss = (critic(fake.detach()) - critic(real)).mean()
    judges.zero_grad()
    loss.backward()
    judges.step()
    loss = -critic(fake).mean()
    generates.zero_grad()
    loss.backward()
    generates.step()
"""


@pytest.mark.parametrize(("gpu", "fits"), [("200MiB", False), ("240MiB", True)])
def test_a_promised_peak_is_that_of_later_steps_too(gpu, fits, tmp_path):
    one = OomProgram("two_networks", {"gpu": gpu}, TWO_NETWORKS, "")
    facts, again = failed(one, tmp_path)
    # It fails before its first step, and needs more from the second round on: the states of Adam.
    settings = replace(again.settings, least_steps=2)
    advice = tried_advice(facts, replace(again, settings=settings), 120)
    kept, result = advice.remedies[0], advice.results[0]
    assert written(kept) == ("scores.append(critic(real + part).mean().item())",)
    assert result == Result(
        result.before,
        peak_of(edited(one, kept.change), "two_networks.py"),
        fits=fits,
        is_whole=False,
    )


RARE = (
    KEEPS.replace("range(20)", "range(1000)")
    + """\
    if step % 500 == 499:
        net(torch.randn(8192, 256, device="cuda"))
"""
)


def test_a_part_that_no_trial_ran_is_named(tmp_path):
    facts, again = failed(OomProgram("rare", {"gpu": "64MiB"}, RARE, ""), tmp_path)
    again = replace(again, settings=replace(again.settings, least_steps=12))
    tried = remedy_runs.RemedyRuns(again, has_error=True)
    tried.try_all(candidates(facts))
    [result] = [result for result in tried.advice("").results if result is not None]
    assert result.fits
    assert result.seen == PartSeen(24, ("net()",))
    assert not result.is_exact
    assert "-> at least " in outcome(tried.advice("").remedies[0], result)[0]


STATES = """\
from collections import deque
import torch
cell = torch.nn.GRUCell(64, 256).cuda()
head = torch.nn.Linear(256, 4).cuda()
optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], 0.1)
states = deque(maxlen=64)
h = torch.zeros(512, 256, device="cuda")
for step in range(60):
    x = torch.randn(512, 64, device="cuda")
    h = cell(x, h)
    states.append(h)
    if step >= 40:
        loss = head(states[0].detach()).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@knows_saved_tensors
def test_states_of_a_recurrent_cell_are_detached(tmp_path):
    one = OomProgram("states", {"gpu": "96MiB"}, STATES, "")
    advice = tried_advice(*failed(one, tmp_path), 120)
    kept, result = next(
        pair
        for pair in zip(advice.remedies, advice.results, strict=True)
        if pair[0].cause == "a list of tensors with their graphs"
    )
    assert written(kept) == ("states.append(h.detach())", "h = h.detach()")
    assert result.before == peak_of(STATES, "states.py")
    assert result.after == peak_of(edited(one, kept.change), "states.py")
    assert result.fits
    assert result.is_exact


FAILS_LATER = (
    KEEPS
    + """\
    if step == 5:
        raise ValueError("not reached for want of memory")
"""
)


def test_a_program_that_would_fail_later_gets_tried_remedies(tmp_path):
    facts, again = failed(OomProgram("later", {"gpu": "48MiB"}, FAILS_LATER, ""), tmp_path)
    again = replace(again, settings=replace(again.settings, least_steps=4))
    advice = tried_advice(facts, again, 120)
    [result] = [result for result in advice.results if result is not None]
    assert result.fits
    assert result.seen is None  # its peak repeats in four steps, and that of the program grows
    assert not result.before_is_exact


def test_values_are_compared_with_those_of_two_runs_of_the_program_as_it_is(tmp_path):
    again = TrialProgram(ProgramTarget(str(tmp_path / "any.py")), find_gpu("24GiB"), Settings())
    remedy = Remedy("cause", MIB, "why", ("code",), change=EditedSource([]))
    runs = remedy_runs.RemedyRuns(again, has_error=False)
    runs._known, runs._tried = [(GrowingBuffer(), remedy)], [remedy]
    end = remedy_runs._Ended(*(8 * MIB, True, PartSeen(1, ())), True, True, None, "", "", False)
    runs._ended = {0: end, 1: replace(end, peak=2 * MIB)}
    same = Values((1.0, 4.0), (), False)
    runs._values = {0: same, remedy_runs._SECOND: same, 1: Values((1.0, 5.0), (), False)}
    [result] = runs.advice("").results
    assert result.values == Comparison("loss", 1, 2, 0.2, is_without_dropout=False)


CACHE = BlockInUse(60 * MIB, Category.OTHERS, None, "out.past_key_values.layers[0].keys")
EVALUATES = "import torch\nout = model(ids, labels=ids)\nprint(out.loss)\n"


@pytest.mark.parametrize("has_error", [True, False])
def test_trials_that_have_no_time_leave_remedies_after_an_error_alone(
    has_error, tmp_path, monkeypatch
):
    class OutOfTime(remedy_runs.RemedyRuns):
        def run(self, changes):
            pass

        def facts_at_peak(self):
            return facts

        def try_all(self, likely):
            raise KeyboardInterrupt

    facts = made_up_facts(place(EVALUATES, tmp_path, "out = model(ids, labels=ids)"), [CACHE])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(trials, "RemedyRuns", OutOfTime)
    again = TrialProgram(ProgramTarget("train.py"), find_gpu("24GiB"), Settings())
    latest = time.time() + 100
    request = trials._Request(again, facts if has_error else None, 100, latest, False)
    advice = trials._advise(request)
    causes = ["a key-value cache that nothing reads"] if has_error else []
    assert [remedy.cause for remedy in advice.remedies] == causes
    assert advice.results == (None,) * len(causes)
    assert advice.untried == "a second run of the program takes longer than 100 s"
