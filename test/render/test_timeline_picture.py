"""The pictures of a timeline: what they say, that they are valid, and no matplotlib."""

from __future__ import annotations

import dataclasses
import functools
import struct
import sys
import warnings
import xml.etree.ElementTree as ElementTree

import pytest
from timelines import MIB, SMALL, hostile

from pytorch_memlab.errors import UsageError
from pytorch_memlab.render.picture import COLOURS
from pytorch_memlab.render.timeline import picture

svg, png = (functools.partial(picture, ending) for ending in (".svg", ".png"))

SVG = "{http://www.w3.org/2000/svg}"


def texts(drawn):
    root = ElementTree.fromstring(drawn)
    assert root.tag == f"{SVG}svg"
    return ["".join(one.itertext()).strip() for one in root.iter(f"{SVG}text")]


def test_the_svg_has_its_words_as_text():
    found = texts(svg([SMALL]))
    for text in (
        "cuda:0: peak 6.0 MiB of 40.0 MiB (15.0%) at train.py:9 step, 20.0 MiB reserved",
        "parameters, 1.0 MiB",
        "activations saved for backward, 5.0 MiB",
        "reserved",
        "capacity 40.0 MiB",
        "1 optimizer step",
        "out of memory",
        "peak · train.py:9 step",
        "events of the allocator",
        "32.0 MiB",
    ):
        assert text in found
    unknown = texts(svg([dataclasses.replace(SMALL, has_all_steps=False)]))
    assert "at least 1 optimizer step" in unknown
    without = texts(svg([dataclasses.replace(SMALL, capacity=None)]))
    assert "cuda:0: 6.0 MiB in use at the peak, 20.0 MiB reserved (event 5 of 10)" in without
    far = texts(svg([dataclasses.replace(SMALL, capacity=81 * MIB)]))
    assert "capacity 81.0 MiB, above the picture" in far


def test_the_svg_draws_each_band_in_its_colour_and_is_the_same_each_time():
    drawn = svg([SMALL])
    assert drawn == svg([SMALL])
    text = drawn.decode()
    assert COLOURS[0] in text
    assert COLOURS[4] in text
    assert COLOURS[1] not in text


def test_a_title_stands_above_and_is_cut_where_there_is_no_room():
    found = texts(svg([SMALL], "train.py · NVIDIA L4, simulated"))
    assert found.count("train.py · NVIDIA L4, simulated") == 1
    assert f"{'x' * 89}…" in texts(svg([SMALL], "x" * 200))


def test_two_gpus_stand_one_below_the_other():
    both = svg([SMALL, dataclasses.replace(SMALL, device=1)])
    heads = [text for text in texts(both) if text.startswith("cuda:")]
    assert [head.partition(": ")[0] for head in heads] == ["cuda:0", "cuda:1"]


def test_the_png_is_an_image_of_its_size():
    picture = png([SMALL])
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", picture[16:24]) == (1200, 630)


def test_names_from_a_snapshot_are_drawn_as_they_are():
    """No formula between two dollar signs, no element, no character that XML forbids."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture = svg([hostile()])
        assert png([hostile()])
    (peak,) = [text for text in texts(picture) if text.startswith("peak ·")]
    assert peak.startswith("peak · script><img src=x onerror=alert(1)>$a$'\"&")
    assert "<img" not in picture.decode()
    assert "\u202e" not in picture.decode()


def test_the_label_of_a_run_stays_text():
    picture = svg([dataclasses.replace(SMALL, run="rank0\x1b\u202e")])
    (title,) = (text for text in texts(picture) if text.startswith("rank0"))
    assert title.startswith("rank0\ufffd\ufffd cuda:0: peak 6.0 MiB of 40.0 MiB (15.0%) at train")


def test_the_settings_of_the_program_stay_and_have_no_effect():
    import matplotlib as mpl

    plain = svg([SMALL])
    with mpl.rc_context({"axes.facecolor": "#abcdef", "font.size": 30}):
        assert svg([SMALL]) == plain
        assert mpl.rcParams["font.size"] == 30
    assert "matplotlib.pyplot" not in sys.modules


def test_without_matplotlib_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UsageError) as caught:
        svg([SMALL])
    message = str(caught.value)
    assert message.startswith(
        "SVG and PNG pictures need matplotlib: pip install 'pytorch-memlab[plot]', or write .html"
    )
    assert "\n" not in message
