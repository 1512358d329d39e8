"""``run --leaks``: what grows from one optimizer step to the next."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from textwrap import dedent

import pytest
from support.saved_tensors import knows_saved_tensors
from torch.optim import optimizer

from pytorch_memlab.cli.main import main
from pytorch_memlab.cli.run import sections as run_sections
from pytorch_memlab.reporter.leaks import LeakWatch

TRAINING = """\
import torch

model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.Adam(model.parameters())
losses, seen = [], {}


def remember(step):
    seen[step] = torch.ones(1000, device="cuda")


for step in range(5):
    optimizer.zero_grad()
    loss = model(torch.ones(8, 64, device="cuda")).sum()
    loss.backward()
    KEEP
    optimizer.step()
"""
LEAKING = TRAINING.replace("KEEP", "losses.append(loss); remember(step)")
CLEAN = TRAINING.replace("KEEP", "losses.append(loss.item())")

TITLE = "## memory that grows from step to step"
FOUND = f"""\
{TITLE}, 5 optimizer steps

                                                       by each step          now
cuda:0 seen[*] (script.py:9)                                3.9 KiB     19.5 KiB
cuda:0 losses[*] (script.py:14)                                 4 B         16 B
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(text):
    Path("script.py").write_text(dedent(text))
    return "script.py"


def section(text):
    """The part on leaks: the lines up to the notes of the report."""
    return re.split(r"\n(?:simulated GPU|kept and freed)", text[text.index(TITLE) :])[0]


def run(text, capsys, *options):
    main(["run", "--leaks", *options, write(text)])
    return section(capsys.readouterr().out)


def test_a_leaking_program_shows_the_names_and_the_lines(capsys):
    assert run(LEAKING, capsys) == FOUND


def test_a_second_run_says_the_same(capsys):
    assert run(LEAKING, capsys) == run(LEAKING, capsys) == FOUND


def test_shapes_alone_are_enough(capsys):
    assert run(LEAKING, capsys, "--dry-run") == FOUND


def test_a_clean_program_has_no_growth(capsys):
    assert run(CLEAN, capsys) == f"{TITLE}\n\nno growth over 5 optimizer steps\n"


@pytest.mark.parametrize(("steps", "said"), [(0, "0 optimizer steps"), (1, "1 optimizer step")])
def test_too_few_steps_are_said(capsys, steps, said):
    assert run(LEAKING.replace("range(5)", f"range({steps})"), capsys) == (
        f"{TITLE}\n\n{said}: 3 are needed to tell what grows; for a loop without an optimizer,\n"
        "write `for batch in MemReporter().leaks(batches)` in the program\n"
    )


@knows_saved_tensors
def test_a_graph_that_grows_is_named_after_its_variable_and_has_its_line(capsys):
    total = CLEAN.replace("losses, seen", "total = 0\nlosses, seen").replace(
        "    optimizer.step()", "    total = total + loss.exp()\n    optimizer.step()"
    )

    assert "\ncuda:0 graph of total (script.py:18) " in run(total, capsys)


@knows_saved_tensors
def test_a_graph_is_that_of_the_container_which_keeps_it_also_in_a_closure(capsys):
    closure = CLEAN.replace(
        "losses, seen",
        "def recorder():\n    kept = []\n    return lambda value: kept.append(value)\n\n\n"
        "record = recorder()\nlosses, seen",
    ).replace(
        "    optimizer.step()",
        "    loss = model(loss.detach().expand(8, 64)).exp().sum()\n"
        "    record(loss)\n    optimizer.step()",
    )

    assert run(closure, capsys).splitlines()[3:] == [
        "cuda:0 graph of record().kept[*] (script.py:23)             2.0 KiB      8.0 KiB",
        "cuda:0 record().kept[*] (script.py:23)                          4 B         16 B",
    ]


def test_two_optimizers_in_turn_are_one_step(capsys):
    both = LEAKING.replace(
        "    optimizer.step()", "    optimizer.step()\n    other.step()"
    ).replace("losses, seen", "other = torch.optim.SGD(model.parameters())\nlosses, seen")

    assert run(both, capsys) == FOUND.replace("py:9) ", "py:10)").replace("py:14", "py:15")


def test_a_failing_program_is_reported_too(capsys):
    failing = LEAKING + "    if step == 3:\n        raise ValueError(step)\n"
    with pytest.raises(ValueError, match="3"):
        main(["run", "--leaks", write(failing)])

    said = section(capsys.readouterr().out)
    assert said.startswith(f"{TITLE}, 4 optimizer steps\n")
    assert "\ncuda:0 seen[*] (script.py:9)  " in said


def test_variables_of_a_function_are_named_as_it_names_them(capsys):
    first, _, rest = LEAKING.partition("\n")
    function = "\n".join(f"    {line}" for line in rest.splitlines())

    said = run(f"{first}\ndef train():\n{function}\ntrain()\n", capsys)
    assert said == FOUND.replace("py:9) ", "py:10)").replace("py:14", "py:15")


def test_a_long_run_looks_at_fewer_and_fewer_steps(capsys, monkeypatch):
    looks = []
    look = LeakWatch.look
    monkeypatch.setattr(LeakWatch, "look", lambda self: (looks.append(self), look(self)))
    said = run(LEAKING.replace("range(5)", "range(40)"), capsys).splitlines()

    assert len(looks) == 13  # after each of the first 6 steps, and 8, 10, 13, 17, 22, 29 and 38
    assert said[0] == f"{TITLE}, 40 optimizer steps, up to step 38"
    assert said[3].split()[-4:] == ["3.9", "KiB", "148.4", "KiB"]


def test_the_hook_is_gone_after_the_run(capsys):
    before = dict(optimizer._global_optimizer_post_hooks)
    run(CLEAN, capsys)

    assert dict(optimizer._global_optimizer_post_hooks) == before


def test_a_program_keeps_the_history_that_it_records(capsys):
    program = LEAKING.replace(
        "for step", "torch.cuda.memory._record_memory_history(max_entries=100000)\nfor step"
    )
    program += 'torch.cuda.memory._dump_snapshot("own.pickle")\n'
    run(program, capsys)
    with open("own.pickle", "rb") as file:
        beside = pickle.load(file)
    main(["run", write(program)])
    with open("own.pickle", "rb") as file:
        alone = pickle.load(file)

    assert len(_shown(alone)) > 100
    assert _shown(beside) == _shown(alone)


def _shown(snapshot):
    """The events, but for the snapshots that a look at the memory takes."""
    events = [(each["action"], each["size"]) for each in snapshot["device_traces"][0]]
    return [event for event in events if event[0] != "snapshot"]


def test_files_have_it_too(monkeypatch):
    asked = []
    sections = run_sections.StepLeaks.sections
    monkeypatch.setattr(
        run_sections.StepLeaks, "sections", lambda self: asked.append(self) or sections(self)
    )
    main(["run", "--leaks", "-o", "out.txt", "-o", "out.html", write(LEAKING)])

    assert len(asked) == 1
    assert section(Path("out.txt").read_text()) == FOUND
    assert "cuda:0 losses[*] (script.py:14)" in Path("out.html").read_text()


@pytest.mark.parametrize(("program", "looks"), [(LEAKING, 5), (CLEAN, 2)])
def test_a_step_looks_once_at_all_objects_while_something_can_have_grown(
    tmp_path, capsys, program, looks
):
    counting = """\
import gc

ask, asked = gc.get_objects, []
gc.get_objects = lambda *given, **named: (asked.append(0), ask(*given, **named))[1]
"""
    script = tmp_path / "script.py"
    script.write_text(counting + program + "print('asked', len(asked)); gc.get_objects = ask\n")
    main(["run", "--gpu", "24GiB", "--leaks", str(script)])
    assert f"asked {3 * looks}\n" in capsys.readouterr().out  # of each of three generations
