"""The whole text of out-of-memory reports; that of attention is in ``test/cli``."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from read_page import read
from support.oom_programs import program
from timelines import HOSTILE

from pytorch_memlab import simulate
from pytorch_memlab._common.process.uncaught_errors import uncaught
from pytorch_memlab.advice.cause import Remedy
from pytorch_memlab.advice.trial_records import Advice, Result, Together
from pytorch_memlab.fitting.verdict import PartSeen
from pytorch_memlab.history.model import Category
from pytorch_memlab.history.out_of_memory import BlockInUse, OutOfMemory, ProgramFrame, ProgramLine
from pytorch_memlab.render.oom import data, fragment, program_error, text
from pytorch_memlab.reporter import oom_facts
from pytorch_memlab.simulation.allocator.out_of_memory import FailedRequest, FreeBlock

GIB, MIB = 2**30, 2**20

KEPT_GRAPHS = """\
Out of memory on cuda:0 at kept_graphs.py:12, in train
    loss = model(torch.randn(2048, 256, device="cuda")).square().mean()
  asked for 8.0 MiB, which needs a segment of 20.0 MiB
  in use 116.1 MiB, cached 7.9 MiB (largest block 4.0 MiB), free 4.0 MiB
  of 128.0 MiB; CUDA context 0 B, other processes 0 B
  held at the error by 98.0 MiB saved for backward, 8.1 MiB workspaces, 8.0 MiB
    other tensors, 2.0 MiB parameters
   114.1 MiB  kept_graphs.py:12  loss = model(torch.randn(2048, 256, device="cu…
     2.0 MiB  kept_graphs.py:4   model = nn.Sequ…  (model.0.weight and 3 others)
  many blocks: 35 of kept_graphs.py:12, 3.3 MiB on average
what helps, the most likely cause first (not tried)
  1. losses (line 13) keeps 7 tensors with their graphs: 84.0 MiB
       backward() of each value at once, not of all that losses keeps
  2. 2048 samples at a time take 114.0 MiB
       # kept_graphs.py in place of line 12:
       loss = model(torch.randn(1024, 256, device="cuda")).square().mean()
       frees at least 16.0 MiB
  3. activations in float32 take 98.0 MiB (frees at least 31.2 MiB)
       with torch.autocast("cuda", dtype=torch.bfloat16):
           loss = ...  # the forward pass, without backward()
"""

FRAGMENTATION = """\
Out of memory on cuda:0 at fragmentation.py:7, in take
    return torch.empty(mib * MIB, dtype=torch.uint8, device="cuda")
  asked for a segment of 64.0 MiB
  in use 124.0 MiB, cached 116.0 MiB (largest block 29.0 MiB), free 16.0 MiB
  of 256.0 MiB; CUDA context 0 B, other processes 0 B
  held at the error by 124.0 MiB other tensors
   124.0 MiB  fragmentation.py:7  return torch.empty(mi…  (kept[0] and 3 others)
  many blocks: 4 of fragmentation.py:7, 31.0 MiB on average
what helps, the most likely cause first (not tried)
  1. 116.0 MiB are cached in pieces that are too small (checked: this request
     and the 8 before it fit; later ones may not)
       PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True
  2. kept (line 12) keeps 4 tensors on the GPU: 124.0 MiB
       # fragmentation.py in place of line 12:
       kept = [take(31).cpu() for _ in range(4)]
       frees at least 124.0 MiB
"""


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        pytest.param(
            "kept_graphs",
            KEPT_GRAPHS,
            marks=pytest.mark.skipif(
                not hasattr(torch._C._autograd.SavedTensor, "data"),
                reason="this PyTorch does not tell what autograd saved",
            ),
        ),
        ("fragmentation", FRAGMENTATION),
    ],
)
def test_the_whole_text(name, whole, tmp_path, monkeypatch):
    monkeypatch.setattr(oom_facts, "_user_modules", tuple)  # other tests are no part of a program
    one = program(name)
    path = tmp_path / f"{name}.py"
    path.write_text(one.text)
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(one.options["gpu"], compute=False),
    ):
        exec(compile(one.text, str(path), "exec"), {"__name__": "__main__"})
    assert uncaught.add(caught.value).text == whole


@pytest.mark.skipif(
    not hasattr(torch._C._autograd.SavedTensor, "data"),
    reason="this PyTorch does not tell what autograd saved",
)
def test_repeated_modules_are_named_after_their_list(tmp_path):
    one = program("activations")
    path = tmp_path / "activations.py"
    path.write_text(one.text)
    with (
        pytest.raises(torch.OutOfMemoryError) as caught,
        simulate(one.options["gpu"], compute=False),
    ):
        exec(compile(one.text, str(path), "exec"), {"__name__": "__main__"})
    why = [remedy["why"] for remedy in data(uncaught.add(caught.value).facts)["remedies"]]
    assert why[0].startswith("12 modules in blocks saved ")


def facts(**changes: object) -> OutOfMemory:
    """A GPU of 24 GiB with 20 GiB of parameters that asks for 8 GiB."""
    request = FailedRequest(
        "CUDA out of memory.",
        device=1,
        requested=8 * GIB,
        segment=8 * GIB,
        stream=0,
        capacity=24 * GIB,
        free=2 * GIB,
        context=None,
        others=None,
        allowed=None,
        reserved=22 * GIB,
        blocks={1: 20 * GIB},
        free_blocks=(FreeBlock(GIB, 0), FreeBlock(GIB, 0)),
    )
    place = ProgramLine("/home/me/train.py", 7, "train", "x = f(y)")
    frame = ProgramFrame(place, frozenset(), frozenset(), {7: place.source})
    block = BlockInUse(20 * GIB, Category.PARAMETERS, place, name="model.weight", shape=(5, 5))
    return replace(OutOfMemory(request, "GPU", False, (frame,), blocks=(block,)), **changes)


def test_what_is_not_known_is_not_guessed():
    assert (
        text(facts(unchecked="a real GPU keeps no record of the requests"))
        == """\
Out of memory on cuda:1 at train.py:7, in train
    x = f(y)
  asked for a segment of 8.00 GiB
  in use 20.00 GiB, cached 2.00 GiB (largest block 1.00 GiB), free 2.00 GiB
  of 24.00 GiB; CUDA context and other processes not known
  held at the error by 20.00 GiB parameters
   20.00 GiB  train.py:7  x = f(y)  (model.weight)
no single cause stands out
  settings of the allocator were not checked: a real GPU keeps no record of the
  requests
"""
    )


def test_a_report_without_any_facts_is_short():
    assert (
        text(facts(frames=(), blocks=(), missing=("the tensors (MemoryError)",)))
        == """\
Out of memory on cuda:1
  asked for a segment of 8.00 GiB
  in use 20.00 GiB, cached 2.00 GiB (largest block 1.00 GiB), free 2.00 GiB
  of 24.00 GiB; CUDA context and other processes not known
no single cause stands out
  could not find out: the tensors (MemoryError)
"""
    )


def test_twenty_four_lines_of_eighty_columns_whatever_the_names():
    places = [ProgramLine(f"/{'x' * 90}{n}.py", 10**6 + n, "f" * 200, "y" * 300) for n in range(50)]
    blocks = [
        BlockInUse(MIB * n, category, places[n], name="z" * 200)
        for n in range(50)
        for category in Category
    ]
    frame = ProgramFrame(places[0], frozenset(), frozenset(), {})
    missing = tuple(f"part {n} ({'E' * 50})" for n in range(9))
    lines = text(facts(frames=(frame,), blocks=tuple(blocks), missing=missing)).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_names_of_a_report_stay_text_in_a_notebook():
    at = ProgramLine(f"/nowhere/{HOSTILE}.py", 3, HOSTILE, f"x = '{HOSTILE}'")
    frame = ProgramFrame(at, frozenset(), frozenset(), {})
    block = BlockInUse(MIB, Category.SAVED, at, name=HOSTILE)
    remedy = Remedy(HOSTILE, MIB, HOSTILE, (f"x = '{HOSTILE}'",))
    report = text(facts(frames=(frame,), blocks=(block,)), Advice((remedy,), (None,), HOSTILE))
    shown = read(fragment(report))
    assert {one.tag for one in shown.all()} <= {"div", "pre"}
    begin = "</script><img src=x onerror=alert(1)>"
    assert report.count(begin) == shown.text.count(begin) == 5
    assert "\u202e" not in shown.text


def test_long_remedies_are_whole_and_leave_two_lines_that_hold_most():
    places = [ProgramLine("/home/me/train.py", n, "f", f"x{n} = f(y)") for n in (1, 2, 3)]
    blocks = [BlockInUse(MIB * place.line, Category.SAVED, place) for place in places]
    code = tuple(f"step_{n}()" for n in range(30))
    remedy = Remedy("much code", GIB, "the code is long", code)
    tried = Advice((remedy,), (Result(4 * MIB, 2 * MIB, fits=True, is_whole=True),))
    lines = text(facts(blocks=tuple(blocks)), tried).splitlines()
    assert lines[6:8] == [
        "     3.0 MiB  train.py:3  x3 = f(y)",
        "     2.0 MiB  train.py:2  x2 = f(y)",
    ]
    assert lines[8:] == [
        "what helps, the most likely cause first",
        "  1. the code is long",
        *(f"       {line}" for line in code),
        "       tried: peak 4.0 MiB -> 2.0 MiB, runs to its end",
    ]


def _headed(*tried: tuple[Remedy, Result | None]) -> list[str]:
    """The heading of the remedies, which the page has too, and what follows it."""
    advice = Advice(tuple(one for one, _ in tried), tuple(result for _, result in tried))
    lines = text(facts(), advice).splitlines()
    heading = program_error(facts(), advice, "").heading
    return lines[lines.index(heading) :]


def test_what_does_not_fit_alone_or_is_no_fault_is_not_said_to_be_the_remedy():
    remedy = Remedy("a list of results", GIB, "why", ("code",))
    batch = Remedy("the size of the batch", GIB, "64 images", ("batch = 32",))
    short = Result(4 * GIB, 3 * GIB, fits=False, is_whole=True)
    longer = Result(4 * GIB, GIB, fits=True, is_whole=False, seen=PartSeen(24, ("evaluate()",)))
    assert _headed((remedy, short)) == [
        "what lowers the peak, the most likely cause first; none is enough alone",
        "  1. why",
        "       code",
        "       tried: peak 4.00 GiB -> 3.00 GiB, still does not fit",
    ]
    assert _headed((batch, longer)) == [
        "no fault stands out; what makes the program smaller",
        "  1. 64 images",
        "       batch = 32",
        "       tried: peak 4.00 GiB -> at least 1.00 GiB,",
        "           so far (24 steps; evaluate() not reached)",
    ]
    assert _headed((remedy, longer), (remedy, None))[0] == "what helps, the most likely cause first"
    untried = "what helps, the most likely cause first (not tried)"
    assert _headed((remedy, None))[0] == untried
    untried = "no fault stands out; what makes the program smaller (not tried)"
    assert _headed((batch, None))[0] == untried
    assert _headed() == ["no single cause stands out"]


def test_the_reason_why_nothing_was_tried_is_for_what_is_shown():
    remedy = Remedy("a list of results", GIB, "why", ())
    result = Result(4 * GIB, GIB, fits=True, is_whole=True)
    all_tried = Advice((remedy,), (result,), "the trials had 12 s")
    one_tried = Advice((remedy, remedy), (result, None), "the trials had 12 s")
    assert text(facts(), all_tried).splitlines()[-1].startswith("       tried: peak 4.00 GiB")
    assert text(facts(), one_tried).splitlines()[-1] == "  not tried: the trials had 12 s"


def test_what_several_remedies_do_together_follows_them():
    remedies = tuple(Remedy("a list of results", GIB, f"why {n}", ()) for n in (1, 2, 3))
    short = Result(4 * GIB, 3 * GIB, fits=False, is_whole=True)
    enough = Result(4 * GIB, GIB, fits=True, is_whole=True)
    advice = Advice(remedies, (short,) * 3, together=Together((1, 2, 3), enough))
    assert text(facts(), advice).splitlines()[-1] == (
        "  1, 2 and 3 together: tried: peak 4.00 GiB -> 1.00 GiB, runs to its end"
    )
    assert data(facts(), advice)["together"] == {
        "numbers": (1, 2, 3),
        "result": {
            "before": 4 * GIB,
            "after": GIB,
            "fits": True,
            "is_whole": True,
            "values": None,
            "is_exact": True,
            "before_is_exact": True,
            "so_far": "",
        },
    }
    assert data(facts(), Advice(remedies, (short,) * 3))["together"] is None


def test_code_to_copy_is_whole_and_goes_on_in_brackets_alone():
    call = (
        "self.out(torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), "
    )
    remedy = Remedy(
        "attention",
        GIB,
        "attention stores matrices",
        (
            "# in place of lines 15 to 17:",
            f"return {call}v.unsqueeze(1), scale=1.0).squeeze(1))",
            "with torch.no_grad():  # around line 7: " + "find_batch(try_size, " * 3 + ")",
            f"x[', (', {'a' * 40}] = {'b' * 40}",
        ),
    )
    lines = text(facts(blocks=()), Advice((remedy,), (None,))).splitlines()
    assert lines[-7:] == [
        "  1. attention stores matrices",
        "       # in place of lines 15 to 17:",
        "       return self.out(torch.nn.functional.scaled_dot_product_attention(q.unsqueeze(1),",
        "           k.unsqueeze(1), v.unsqueeze(1), scale=1.0).squeeze(1))",
        f"       with torch.no_grad():  # around line 7: {'find_batch(try_size, ' * 3})",
        "       x[', (',",
        f"           {'a' * 40}] = {'b' * 40}",
    ]


def test_names_of_the_program_cannot_change_the_terminal():
    place = ProgramLine("/home/\x1b[31mred.py", 7, "f\x1b[0m", "x = 1  # \x1b]0;title\x07")
    frame = ProgramFrame(place, frozenset(), frozenset(), {})
    assert "\x1b" not in text(facts(frames=(frame,), blocks=()))


def test_data_has_bytes_as_numbers():
    found = data(facts())
    assert (found["device"], found["in_use"], found["cached"]) == ("cuda:1", 20 * GIB, 2 * GIB)
    assert found["categories"] == {"parameters": 20 * GIB}
    assert found["lines"] == [
        {
            "file": "/home/me/train.py",
            "line": 7,
            "bytes": 20 * GIB,
            "blocks": 1,
            "names": ["model.weight"],
            "categories": ["parameters"],
        }
    ]


def test_a_line_of_a_library_keeps_its_number():
    file = "/site-packages/transformers/models/modeling_qwen3_omni_moe_thinker.py"
    place = ProgramLine(file, 1234, "forward", "return self.attention(hidden, mask)")
    block = BlockInUse(20 * GIB, Category.SAVED, place, name="hidden", node="MulBackward0")
    lines = text(facts(blocks=(block,), node="MulBackward0")).splitlines()
    assert lines[2:4] == [
        "  asked for a segment of 8.00 GiB in MulBackward0 of",
        "    modeling_qwen3_omni_moe_thinker.py:1234",
    ]
    row = "   20.00 GiB  modeling_qwen3_omni_moe_th…:1234  return self.attention…  (hidden)"
    assert lines[7] == row


@pytest.mark.parametrize(
    ("sizes", "names", "shown"),
    [
        ([8, 8, 8], ["q", "k", "v"], "  (q, k, v)"),
        ([8] * 64, ["v.grad", *[f"layer{n}.grad" for n in range(63)]], "  (v.grad and 63 others)"),
        ([512, 8], ["scores", ""], "  (scores and 1 other)"),
        ([512, 8], ["", "v.grad"], ""),  # the name leads to little of it
        ([8], ["name_of_more_characters_than_there_is_room_for"], "  (name_of_more_characte…)"),
    ],
)
def test_names_in_brackets_lead_to_most_of_the_bytes(sizes, names, shown):
    place = ProgramLine("/home/me/train.py", 7, "train", "x = f(y)")
    blocks = [
        BlockInUse(size * MIB, Category.GRADIENTS, place, name=name)
        for size, name in zip(sizes, names, strict=True)
    ]
    row = next(line for line in text(facts(blocks=tuple(blocks))).splitlines() if ":7  x" in line)
    assert row.partition("x = f(y)")[2] == shown


@pytest.mark.parametrize(
    ("sizes", "line"),
    [
        ([8] * 40, "  many blocks: 40 of train.py:7, 8.0 MiB on average"),
        ([512, 4, 4, 4, 4], None),  # one of them is the line's memory
        ([8, 8, 8], None),
    ],
)
def test_a_line_that_made_many_blocks_is_told_in_words(sizes, line):
    place = ProgramLine("/home/me/train.py", 7, "train", "x = f(y)")
    blocks = tuple(BlockInUse(size * MIB, Category.SAVED, place) for size in sizes)
    lines = text(facts(blocks=blocks)).splitlines()
    assert [one for one in lines if "many blocks" in one] == [line] * bool(line)
