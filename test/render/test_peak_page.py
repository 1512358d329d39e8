"""The page of a peak: tables, tree of modules and flame graph say the same bytes."""

from __future__ import annotations

from peaks import LINEAR, MIB, SMALL, block, holders_of, hostile
from read_page import check_self_contained, read

from pytorch_memlab.history.model import Frame
from pytorch_memlab.render.peak_html import flame_graph, module_tree, render


def rows_of(table):
    return [
        [cell.text for cell in row.all() if cell.tag in ("th", "td")] for row in table.all("tr")
    ]


def test_the_tables_have_every_category_and_line():
    root = check_self_contained(render([SMALL]))
    section = root.one("section", "memlab-peak")
    assert section.one("h2").text == (
        "cuda:0: 16.0 MiB in use at the peak, 32.0 MiB reserved (event 5 of 9)"
    )
    assert rows_of(section.one("table", "categories")) == [
        ["bytes", "share", "category"],
        ["8.0 MiB", "50.0%", "parameters"],
        ["4.0 MiB", "25.0%", "activations saved for backward"],
        ["2.0 MiB", "12.5%", "temporaries"],
        ["1.0 MiB", "6.2%", "gradients"],
        ["1.0 MiB", "6.2%", "unknown"],
    ]
    saved = "activations saved for backward, temporaries, gradients"
    assert rows_of(section.one("table", "lines")) == [
        ["bytes", "share", "blocks", "line", "function", "source", "category", "module"],
        ["8.0 MiB", "50.0%", "1", "train.py:3", "main", "", "parameters", ""],
        [
            "7.0 MiB 1.0 MiB in the backward pass",
            "43.8%",
            "3",
            "model.py:7",
            "forward",
            "",
            saved,
            "Net.0, Net.1",
        ],
        ["1.0 MiB", "6.2%", "1", "no line", "allocated before the recording", "", "unknown", ""],
    ]


def test_the_source_of_a_line_is_shown_where_the_file_is_here(tmp_path):
    program = tmp_path / "train.py"
    program.write_text("import torch\n\nx = '<b>'  # here\n")
    frames = [(), (Frame(str(program), 3, "main"),)]
    page = render([holders_of([block(0, 1, 1)], frames)])
    assert rows_of(read(page).one("table", "lines"))[1][5] == "x = '<b>' # here"


def test_no_file_but_python_is_read_into_the_page(tmp_path):
    secret = tmp_path / "passwords"
    secret.write_text("hunter2\n")
    frames = [(), (Frame(str(secret), 1, "main"),), (Frame("/dev/zero", 1, "main"),)]
    assert "hunter2" not in render([holders_of([block(0, 1, 1), block(1, 1, 2)], frames)])


def test_the_tree_of_modules_opens_and_closes():
    section = read(render([SMALL])).one("section", "memlab-modules")
    tree = section.one("details")
    assert "open" in tree.attributes
    assert tree.one("summary").text == "Net 7.0 MiB 43.8%"
    assert [leaf.text for leaf in tree.all("div", "leaf")] == [
        "0 5.0 MiB 31.2%",
        "1 2.0 MiB 12.5%",
    ]
    *_, last = section.all("div", "leaf")
    assert last.text == "outside of modules, or not known 9.0 MiB 56.2%"
    widths = [bar.attributes["style"] for bar in section.all("span", "bar")]
    assert widths == ["width:43.75%", "width:31.25%", "width:12.5%", "width:56.25%"]


def test_a_history_without_modules_says_so():
    page = render([holders_of([block(0, 1, 1)])])
    section = read(page).one("section", "memlab-modules")
    assert section.one("p").text == "No module is known: the history does not name modules."


def test_more_modules_than_a_page_has_room_for():
    blocks = [block(n, 1 + (n < 10), 1, module=f"Net.layers.{n}.{'x' * 300}") for n in range(3000)]
    html = module_tree(holders_of(blocks).module_tree()).html
    section = read(html).one("section")
    names = [code.attributes["title"] for code in section.all("code")]
    assert len(names) == 2000
    # Net, layers, 3,000 numbers and a part of each; a module stands where the one around it does.
    assert section.one("p").text == "4,002 modules that hold less are left out."
    assert sum(name == f"Net.layers.{n}" for n in range(10) for name in names) == 10
    assert len(html) < 2 * MIB


def test_a_module_path_deeper_than_pythons_own_limit():
    deep = holders_of([block(0, 1, 1, module=".".join("x" * 1500))])
    assert read(module_tree(deep.module_tree()).html)


def calls_of(root):
    return [
        (
            call.text,
            int(call.attributes["aria-level"]),
            int(call.attributes["data-start"]) // MIB,
            int(call.attributes["data-size"]) // MIB,
            "library" in call.attributes["class"].split(),
        )
        for call in root.all("div", "call")
    ]


def test_the_flame_graph_has_each_call_as_wide_as_its_bytes():
    section = read(render([SMALL])).one("section", "memlab-flame")
    assert calls_of(section) == [
        ("all", 1, 0, 16, False),
        ("main train.py:3", 2, 0, 15, False),
        ("forward model.py:7", 3, 0, 6, False),
        ("forward linear.py:134", 4, 0, 6, True),
        ("_engine_run_backward graph.py:5", 3, 6, 1, True),
        ("allocated before the recording", 2, 15, 1, True),
    ]
    (linear,) = (c for c in section.all("div", "call") if c.text == "forward linear.py:134")
    assert linear.attributes["style"] == "top:60px;left:0%;width:37.5%"
    assert linear.attributes["title"] == (f"forward · 6.0 MiB, 37.5% · {LINEAR.filename}:134")
    focusable = [call.attributes["tabindex"] for call in section.all("div", "call")]
    assert focusable == ["0", "-1", "-1", "-1", "-1", "-1"]


def test_a_call_in_a_deep_folder_keeps_its_file_and_line():
    file = f"/{'deep/' * 30}train.py"
    section = read(flame_graph([((Frame(file, 12, "main"),), MIB)]).html)
    call = list(section.all("div", "call"))[-1]
    assert call.text == "main train.py:12"
    assert call.attributes["title"] == f"main · 1.0 MiB, 100.0% · {file}:12"


def test_a_flame_graph_of_too_many_calls_leaves_out_the_smallest():
    stacks = [
        ((Frame("a.py", n, "inner"), Frame("a.py", n, "outer")), 1000 - n % 500)
        for n in range(5000)
    ]
    html = flame_graph(stacks).html
    calls = calls_of(read(html))
    assert len(calls) == 2500
    assert "7,501 calls of at most 0.02% are left out." in read(html).one("p", "quiet").text
    outer = {text.split(":")[1] for text, *_ in calls if text.startswith("outer")}
    inner = {text.split(":")[1] for text, *_ in calls if text.startswith("inner")}
    assert inner <= outer
    assert len(html) < 2 * MIB


def test_names_from_a_snapshot_stay_text():
    page = render([hostile()])
    root = check_self_contained(page)
    assert page.encode("utf-8")
    assert not list(root.all("img"))
    assert len(list(root.all("script"))) == 3  # the order of tables, the sizes, and the flame graph
    assert "\u202e" not in page


def test_an_empty_peak_is_a_page_too():
    root = check_self_contained(render([holders_of([])]))
    assert calls_of(root) == [("all", 1, 0, 0, False)]


def test_the_host_is_called_cpu():
    host = holders_of([block(0, 1, 1)], device=-1)
    assert read(render([host])).one("section", "memlab-peak").one("h2").text == (
        "cpu: 1.0 MiB in use at the peak, 2.0 MiB reserved (event 5 of 9)"
    )


def test_two_gpus_have_ids_of_their_own():
    check_self_contained(render([SMALL, holders_of([block(0, 1, 1)], device=1)]))
