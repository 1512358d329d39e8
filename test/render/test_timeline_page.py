"""The page of a timeline: its numbers, its fallbacks, and that nothing leaves it."""

from __future__ import annotations

import dataclasses

import pytest
from contrast import colours_of, contrast
from read_page import check_self_contained, data_of, read
from timelines import HOSTILE, MIB, SMALL, hostile

from pytorch_memlab.history.timeline import Band, Timeline
from pytorch_memlab.render.page import asset
from pytorch_memlab.render.picture import COLOURS
from pytorch_memlab.render.timeline import render


def test_the_page_is_self_contained_and_has_all_numbers():
    root = check_self_contained(render([SMALL]))
    figure = root.one("figure")
    assert figure.one("h2").text == (
        "cuda:0: 6.0 MiB in use at the peak, 20.0 MiB reserved (event 5 of 10)"
    )
    assert figure.one("figcaption").one("p").text == (
        "Peak at train.py:9 step . 1 optimizer step. Capacity 40.0 MiB."
    )
    data = data_of(figure)
    assert data["points"] == [0, 2, 5, 10]
    assert data["active"] == list(SMALL.active)
    assert data["reserved"] == list(SMALL.reserved)
    assert [band["sizes"] for band in data["bands"]] == [list(b.sizes) for b in SMALL.bands]
    assert [data["places"][place][0] for place in data["place"]] == [
        "",
        "train.py:9 step",
        "train.py:9 step",
        "",
    ]
    assert (data["peak"], data["steps"], data["failures"]) == (2, [8], [9])
    assert (data["capacity"], data["capacityShown"]) == (40 * MIB, True)


def test_the_picture_is_there_without_a_script():
    """400 is 0 bytes, and 0 the top: the capacity and a twentieth of it, 42 MiB."""
    figure = read(render([SMALL])).one("figure")
    paths = {
        path.attributes["class"].split()[-1]: path.attributes["d"] for path in figure.all("path")
    }
    edges = {mib: round(400 - 400 * mib / 42, 1) for mib in (0, 1, 2, 4, 6, 20, 40)}
    assert (
        paths["band-0"]
        == f"M0 400.0H200.0V{edges[1]}H500.0V{edges[1]}H1000.0V{edges[1]}H1000V400H0Z"
    )
    assert (
        paths["band-4"]
        == f"M0 400.0H200.0V{edges[4]}H500.0V{edges[6]}H1000.0V{edges[2]}H1000V400H0Z"
    )
    assert paths["line-reserved"] == (
        f"M0 400.0H200.0V{edges[20]}H500.0V{edges[20]}H1000.0V{edges[20]}H1000"
    )
    assert paths["line-capacity"] == f"M0 {edges[40]}H1000"
    assert paths["line-steps"] == "M800.0 0V400"
    assert paths["line-failures"] == "M900.0 0V400"


def test_the_time_axis_has_steps_seconds_and_phases():
    phases = ("", "backward", "backward", "optimizer step")
    figure = read(render([dataclasses.replace(SMALL, phases=phases)])).one("figure")

    def marks(name):
        return [(one.text, one.attributes["style"]) for one in figure.one("div", name).all("span")]

    assert marks("step-axis") == [("step 1", "left:80.0%")]
    assert [text for text, _ in marks("x-axis")] == ["0", "2", "4", "6", "8", "10"]
    assert [text for text, _ in marks("second-axis")] == [
        "0 s",
        "0.5 s",
        "0.5 s",
        "1 s",
        "1 s",
        "2.5 s",
    ]
    assert marks("phases") == [
        ("backward", "left:0.0%;width:50.0%"),
        ("optimizer step", "left:50.0%;width:50.0%"),
    ]
    strip = figure.one("div", "phases")
    assert strip.attributes["aria-label"] == "Phases: backward, optimizer step"
    assert data_of(figure)["phases"] == [["backward", 0, 5], ["optimizer step", 5, 10]]


def test_what_was_not_measured_has_no_axis():
    bare = dataclasses.replace(SMALL, seconds=(0.0,) * 4, steps=())
    figure = read(render([bare])).one("figure")
    for name in ("step-axis", "second-axis", "phases"):
        assert not list(figure.all("div", name))
    some = dataclasses.replace(SMALL, has_all_steps=False)  # so their numbers are not known
    assert not list(read(render([some])).all("div", "step-axis"))


def test_labels_of_steps_leave_room_for_each_other():
    many = dataclasses.replace(SMALL, events=1000, steps=tuple(range(0, 1000, 10)))
    labels = [one.text for one in read(render([many])).one("div", "step-axis").all("span")]
    assert labels == [f"step {number}" for number in range(1, 101, 7)]


def test_who_cannot_see_the_picture_has_a_title_a_description_and_a_table():
    figure = read(render([SMALL])).one("figure")
    picture = figure.one("svg")
    assert picture.attributes["role"] == "img"
    assert picture.one("title").text == figure.one("h2").text
    assert "stacked" in picture.one("desc").text
    plot = figure.one("div", "plot")
    assert (plot.attributes["role"], plot.attributes["tabindex"]) == ("slider", "0")
    (table,) = figure.all("table")
    rows = [
        [cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in table.all("tr")
    ]
    assert rows == [
        ["event", "in use", "parameters", "activations saved for backward", "reserved", "line"],
        ["0", "0 B", "0 B", "0 B", "0 B", ""],
        ["2", "4.0 MiB", "1.0 MiB", "3.0 MiB", "20.0 MiB", "train.py:9 step"],
        ["5", "6.0 MiB (peak)", "1.0 MiB", "5.0 MiB", "20.0 MiB", "train.py:9 step"],
        ["10", "2.0 MiB", "1.0 MiB", "1.0 MiB", "20.0 MiB", ""],
    ]


def test_a_far_capacity_is_named_and_hidden_until_it_is_asked_for():
    far = dataclasses.replace(SMALL, capacity=81 * MIB)
    figure = read(render([far])).one("figure")
    assert "Capacity 81.0 MiB, above the picture." in figure.one("figcaption").text
    assert not data_of(figure)["capacityShown"]
    (button,) = (b for b in figure.all("button") if b.attributes.get("data-line") == "capacity")
    assert (button.attributes["aria-pressed"], button.text) == ("false", "capacity 81.0 MiB")
    assert [p.attributes["d"] for p in figure.all("path", "line-capacity")] == [""]


def test_names_from_a_snapshot_stay_text():
    page = render([hostile()], title=HOSTILE)
    root = check_self_contained(page)
    assert page.encode("utf-8")
    assert not list(root.all("img"))
    assert len(list(root.all("script"))) == 3  # the data, the sizes and the picture
    assert "</script><img src=x onerror=alert(1)>" in root.one("h1").text
    assert "\u202e" not in page
    assert data_of(root.one("figure"))["bands"][0]["name"].count("onerror") == 2


def test_several_gpus_share_the_script_and_have_ids_of_their_own():
    other = dataclasses.replace(SMALL, device=1)
    root = check_self_contained(render([SMALL, other]))
    assert [one.attributes["id"] for one in root.all("figure")] == [
        "memlab-timeline-0",
        "memlab-timeline-1",
    ]
    assert len([s for s in root.all("script") if "type" not in s.attributes]) == 2


def test_the_largest_timeline_is_well_below_5_mib():
    count = 1802
    long = Timeline(
        0,
        10**9,
        "line",
        tuple(range(10**8, 10**8 + count)),
        tuple(n + 0.123456 for n in range(count)),
        (9 * 10**11,) * count,
        (10**12,) * count,
        tuple(Band(f"{n}{'x' * 90}", (10**11 + n,) * count) for n in range(9)),
        (None,) * count,
        5,
        tuple(range(50_000)),
        (),
    )
    assert len(render([long])) < 2 * MIB


def test_no_more_than_100_steps_are_marked():
    many = dataclasses.replace(SMALL, events=1000, steps=tuple(range(0, 1000, 4)))
    figure = read(render([many])).one("figure")
    assert "250 optimizer steps, one in 3 is marked." in figure.one("figcaption").text
    (path,) = figure.all("path", "line-steps")
    assert path.attributes["d"].count("M") == 84


def band_colours(theme):
    colours = colours_of(asset("timeline.css"), theme)
    return {name: colour for name, colour in colours.items() if name.startswith("band")}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_names_of_phases_stand_out(theme):
    ink = colours_of(asset("page.css"), theme)["ink"]
    colours = colours_of(asset("timeline.css"), theme)
    for phase in ("phase-backward", "phase-step"):
        assert contrast(ink, colours[phase]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_bands_stand_out_in_both_themes(theme):
    page, bands = colours_of(asset("page.css"), theme), band_colours(theme)
    for ink in ("ink", "quiet", "accent", "alarm"):
        for ground in ("ground", "raised"):
            assert contrast(page[ink], page[ground]) >= 4.5, (ink, ground)
    assert contrast(page["edge"], page["ground"]) >= 3
    assert len(bands) == 9
    for name, colour in bands.items():
        assert contrast(colour, page["ground"]) >= 3, name
    assert theme == "dark" or tuple(bands.values()) == COLOURS


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_words_of_the_flame_graph_stand_out_in_both_themes(theme):
    colours = {
        **colours_of(asset("page.css"), theme),
        **colours_of(asset("flame_graph.css"), theme),
    }
    for shade in ("shade-0", "shade-1", "shade-2"):
        assert contrast(colours["on-shade"], colours[shade]) >= 4.5
    assert contrast(colours["on-library"], colours["library"]) >= 4.5
    assert contrast(colours["ink"], colours["found"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_stand_out_on_bars(theme):
    colours = colours_of(asset("page.css"), theme)
    bar = colours["bar"]
    share = int(bar[7:], 16) / 255
    pairs = [(int(bar[n : n + 2], 16), int(colours["ground"][n : n + 2], 16)) for n in (1, 3, 5)]
    over = "#" + "".join(f"{round(share * one + (1 - share) * other):02x}" for one, other in pairs)
    for ink in ("ink", "quiet"):
        assert contrast(colours[ink], over) >= 4.5


_DEFICIENCIES = {
    "none": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    # Machado, Oliveira and Fernandes 2009, severity 1.
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


def _oklab(colour, deficiency):
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    red, green, blue = (
        min(max(sum(f * p for f, p in zip(row, linear, strict=True)), 0), 1)
        for row in _DEFICIENCIES[deficiency]
    )
    long = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)
    middle = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    short = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * long + 0.7936177850 * middle - 0.0040720468 * short,
        1.9779984951 * long - 2.4285922050 * middle + 0.4505937099 * short,
        0.0259040371 * long + 0.7827717662 * middle - 0.8086757660 * short,
    )


@pytest.mark.parametrize("deficiency", _DEFICIENCIES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_bands_differ_for_the_colour_blind(theme, deficiency):
    bands = band_colours(theme)
    seen = {name: _oklab(colour, deficiency) for name, colour in bands.items()}
    for name, one in seen.items():
        for other_name, other in seen.items():
            if name < other_name:
                distance = sum((a - b) ** 2 for a, b in zip(one, other, strict=True)) ** 0.5
                assert distance >= 0.08, (name, other_name)
