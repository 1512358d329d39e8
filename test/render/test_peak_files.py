"""The peak for other programs: speedscope, flame graph scripts and spreadsheets."""

from __future__ import annotations

import csv
import json

import jsonschema
import pytest
from peaks import ENGINE, FORWARD, LINEAR, MAIN, MIB, SMALL, block, holders_of, hostile

from pytorch_memlab.render import peak
from pytorch_memlab.render.output_format import PeakResults
from pytorch_memlab.render.outputs import output_formats

# What speedscope's published types of a file with sampled profiles ask for.
COUNT = {"type": "integer", "minimum": 0}
SCHEMA = {
    "type": "object",
    "required": ["$schema", "version", "shared", "profiles"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "version": {"type": "string"},
        "exporter": {"type": "string"},
        "name": {"type": "string"},
        "activeProfileIndex": COUNT,
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "additionalProperties": False,
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": COUNT,
                            "col": COUNT,
                        },
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "items": {
                "type": "object",
                "required": [
                    "type",
                    "name",
                    "unit",
                    "startValue",
                    "endValue",
                    "samples",
                    "weights",
                ],
                "additionalProperties": False,
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {"const": "bytes"},
                    "startValue": {"const": 0},
                    "endValue": COUNT,
                    "samples": {"type": "array", "items": {"type": "array", "items": COUNT}},
                    "weights": {"type": "array", "items": COUNT},
                },
            },
        },
    },
}


def written(ending, *peaks, by="line"):
    return output_formats(PeakResults)[ending].render(PeakResults(peaks, "snapshot.pickle", by))


@pytest.mark.parametrize("holders", [SMALL, hostile(), holders_of([])])
def test_speedscope_finds_what_its_format_asks_for(holders):
    jsonschema.validate(json.loads(written(".speedscope.json", holders)), SCHEMA)


def test_speedscope_gets_each_stack_with_its_bytes():
    other = holders_of([block(0, 3, 2)], device=1)
    data = json.loads(written(".speedscope.json", SMALL, other))
    frames = data["shared"]["frames"]
    assert frames == [
        {"name": "main", "file": MAIN.filename, "line": 3},
        {"name": "forward", "file": FORWARD.filename, "line": 7},
        {"name": "forward", "file": LINEAR.filename, "line": 134},
        {"name": "_engine_run_backward", "file": ENGINE.filename, "line": 5},
        {"name": "allocated before the recording"},
    ]
    first, second = data["profiles"]
    assert (first["name"], first["endValue"]) == ("cuda:0", 16 * MIB)
    assert first["samples"] == [[0], [0, 1, 2], [0, 3], [4]]
    assert first["weights"] == [8 * MIB, 6 * MIB, MIB, MIB]
    assert (second["name"], second["samples"], second["weights"]) == (
        "cuda:1",
        [[0, 1, 2]],
        [3 * MIB],
    )


def test_collapsed_stacks_are_one_line_each_whatever_the_names_are():
    assert SMALL.collapsed_stacks() == (
        "main (train.py:3) 8388608\n"
        "main (train.py:3);forward (model.py:7);forward (linear.py:134) 6291456\n"
        "main (train.py:3);_engine_run_backward (graph.py:5) 1048576\n"
        "allocated before the recording 1048576\n"
    )
    (line,) = hostile().collapsed_stacks().encode("utf-8").decode().splitlines()
    assert ";" not in line
    assert line.endswith(" 1048576")


def test_comma_separated_values_add_up_to_the_peak():
    rows = list(csv.DictReader(written(".csv", SMALL, hostile()).splitlines()[:4]))
    assert rows[1] == {
        "device": "0",
        "file": FORWARD.filename,
        "line": "7",
        "function": "forward",
        "size": str(7 * MIB),
        "blocks": "3",
        "backward": str(MIB),
    }
    assert sum(int(row["size"]) for row in rows) == SMALL.peak.active
    assert written(".csv", SMALL, by="category").splitlines()[:2] == [
        "device,name,size,blocks,backward",
        f"0,parameters,{8 * MIB},1,0",
    ]
    assert written(".csv", SMALL, by="module").splitlines()[1:] == [
        f"0,,{9 * MIB},2,0",
        f"0,Net.0,{5 * MIB},2,{MIB}",
        f"0,Net.1,{2 * MIB},1,0",
    ]
    assert written(".csv", hostile()).encode("utf-8")


HEAD = "cuda:0: 16.0 MiB in use at the peak, 32.0 MiB reserved (event 5 of 9)\n\n"


def test_memory_of_the_backward_pass_is_shown_at_both_lines():
    assert peak.text(SMALL) == HEAD + (
        "     8.0 MiB   50.0%  train.py:3  main\n"
        "     7.0 MiB   43.8%  model.py:7  forward\n"
        "                        1.0 MiB of it in the backward pass\n"
        "     1.0 MiB    6.2%  allocated before the recording\n"
        "\n"
        "counted above, at the lines of the forward pass:\n"
        "     1.0 MiB    6.2%  train.py:3  main, backward pass\n"
    )
    (call,) = SMALL.backward_calls()
    assert (call.file, call.line, call.size, call.blocks) == ("/nowhere/train.py", 3, MIB, 1)


def test_the_peak_as_text_by_module_and_by_category():
    assert peak.text(SMALL, by="module") == HEAD + (
        "     9.0 MiB   56.2%  outside of modules, or not known\n"
        "     5.0 MiB   31.2%  Net.0\n"
        "                        1.0 MiB of it in the backward pass\n"
        "     2.0 MiB   12.5%  Net.1\n"
    )
    assert peak.text(SMALL, 1, "category") == HEAD + (
        "     8.0 MiB   50.0%  parameters\n     8.0 MiB   50.0%  4 more\n"
    )


def test_the_peak_as_text_has_no_control_character_of_a_name():
    shown = peak.text(hostile())
    assert shown.encode("utf-8")
    assert "\u202e" not in shown
    assert len(shown.splitlines()) == 3
