"""Tables of notebooks, as Chromium shows them in themes, trusted and not."""

from __future__ import annotations

import re

import pytest
import torch
from browser import CHROMIUM, title_of
from contrast_script import CONTRAST
from peaks import SMALL as PEAK
from support.sample_reports import CUDA0, LineRecords, marked_report

from pytorch_memlab.records import FunctionInfo, LineEntry
from pytorch_memlab.render import html
from pytorch_memlab.reporter.memory_snapshot import (
    CATEGORIES,
    MemorySnapshot,
    Reconciliation,
    TensorRow,
)
from pytorch_memlab.reporter.snapshot_differences import diff

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

THEMES = {
    "JupyterLab light": "--jp-layout-color0:#fff;--jp-content-font-color1:rgba(0,0,0,.87)",
    "JupyterLab dark": "--jp-layout-color0:#111;--jp-content-font-color1:#fff",
    "VS Code light": "--vscode-editor-background:#fff;--vscode-editor-foreground:#3b3b3b",
    "VS Code dark": "--vscode-editor-background:#1f1f1f;--vscode-editor-foreground:#ccc",
    "Colab light": "--colab-primary-surface-color:#fff;--colab-primary-text-color:#212121",
    "Colab dark": "--colab-primary-surface-color:#383838;--colab-primary-text-color:#d5d5d5",
}
"""Variables as these set them, of which the page takes its own colours too."""

UNTRUSTED = ("JupyterLab light", "JupyterLab dark")

CELLS = """
td, th, tr { vertical-align: middle; padding: 0.5em; line-height: normal; white-space: normal;
  max-width: none; border: none; text-align: right; }
th { font-weight: bold; }
"""
"""What JupyterLab's theme says of cells, in properties of CSS."""

MEASURE = """<script>
const found = {};
for (const section of document.querySelectorAll("section")) {
  const scroller = [...section.querySelectorAll("div")].filter(
    (one) => one.scrollWidth > one.clientWidth).pop();
  scroller.scrollLeft = 120;
  const left = scroller.getBoundingClientRect().left;
  const codes = [...scroller.querySelectorAll("tbody th")];
  const row = codes[1].parentElement;
  const {backgroundColor, color, textAlign, whiteSpace} = getComputedStyle(codes[1]);
  found[section.id] = {
    scrolled: scroller.scrollLeft,
    sticks: codes.every((one) => Math.abs(one.getBoundingClientRect().left - left) < 1),
    ground: backgroundColor,
    ink: color,
    align: textAlign,
    whiteSpace,
    code: codes[1].textContent,
    height: row.getBoundingClientRect().height,
    bar: getComputedStyle(row.children[1]).boxShadow,
    texts: section.innerText.length,
  };
}
document.body.dataset.found = JSON.stringify(found);
</script>"""


def outputs():
    """A marked table, one that is too wide, a peak, and what a reporter shows."""
    code = ("def f(x):", "    y = x.relu()", "    return y")
    names = [
        f"{field}_bytes.{pool}.peak"
        for pool in ("all", "large_pool", "small_pool")
        for field in ("active", "allocated", "reserved", "requested")
    ]
    entries = [
        LineEntry(1, line, CUDA0, 1, 0.1, 0, line, dict.fromkeys(names, line * 2**20))
        for line in (1, 2, 3)
    ]
    records = LineRecords(entries, {1: FunctionInfo("f", "f.py", 1, code)})
    wide = records.display(columns=[*names, "delta"]).report
    tables = html.fragment(marked_report("simulated GPU: L4")) + html.fragment(wide)
    return PEAK._repr_html_() + memory() + tables


def memory():
    """A snapshot and a difference."""
    device = torch.device("cuda:0")
    rows = [
        TensorRow(name, device, (256,), 256, 1024, None, CATEGORIES[0], 1024, "float32", False)
        for name in ("weight", "bias")
    ]
    counted = Reconciliation(device, 2048, 0, 0, 0, 0, 2048, 2**21 - 2048, 2**21)
    snapshot = MemorySnapshot(tuple(rows), (counted,), (("cuda:0", "L4"),))
    changes = diff(MemorySnapshot(rows=()), snapshot)
    return snapshot._repr_html_() + changes._repr_html_()


def untrusted(markup):
    """The HTML that JupyterLab 4.6 leaves in a notebook that is not trusted."""
    markup = re.sub(
        r"<style>.*?</style>| (?:tabindex|role|aria-label)=(?:\"[^\"]*\"|\w+)", "", markup
    )
    return re.sub(
        'style="([^"]*)"',
        lambda style: 'style="{}"'.format(
            ";".join(
                one
                for one in style[1].split(";")
                if "var(" not in one and "sticky" not in one and not one.startswith("--")
            )
        ),
        markup,
    )


def section(theme, name, markup):
    """Outputs in a theme."""
    variables = THEMES[theme]
    ground, ink = (one.partition(":")[2] for one in variables.split(";"))
    style = f"{variables};background:{ground};color:{ink}"
    return f'<section id="{name}" style="{style}">{markup}</section>'


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Chromium's findings in each theme, and in two of them in a notebook that is not trusted."""
    markup = outputs()
    sections = [section(theme, theme, markup) for theme in THEMES]
    sections += [section(one, f"{one}, untrusted", untrusted(markup)) for one in UNTRUSTED]
    script = MEASURE + CONTRAST.replace(
        "document.title = JSON.stringify({",
        "document.title = JSON.stringify({found: JSON.parse(document.body.dataset.found),",
    )
    page = (
        f"<!DOCTYPE html><html lang=en><title>a</title><style>{CELLS} body {{ width: 600px }}"
        f"</style><body>{''.join(sections)}{script}</body>"
    )
    return title_of(page, tmp_path_factory.mktemp("notebook"))


@pytest.mark.parametrize("theme", THEMES)
def test_in_a_trusted_notebook_the_code_stays_at_the_left_on_the_ground_of_the_theme(theme, found):
    here = found["found"][theme]
    ground, ink = (_computed(one.partition(":")[2]) for one in THEMES[theme].split(";"))
    assert (here["scrolled"], here["sticks"]) == (120, True)
    assert (here["ground"], here["ink"]) == (ground, ink)


def test_an_untrusted_notebook_has_no_variables_and_the_same_texts(found):
    assert "var(" not in untrusted(outputs())
    for theme in UNTRUSTED:
        here = found["found"][f"{theme}, untrusted"]
        assert here["ground"] == "rgba(0, 0, 0, 0)"
        assert here["texts"] == found["found"][theme]["texts"]


def test_all_texts_stand_out_and_rows_keep_their_code(found):
    assert found["low"] == []
    assert found["count"] > 40 * len(found["found"])
    for here in found["found"].values():
        assert (here["align"], here["whiteSpace"]) == ("left", "pre")
        assert here["code"] == "2      y = x.relu()"
        assert here["height"] < 20
        assert here["bar"].startswith("rgba(51, 136, 255, 0.4) ")


def _computed(colour):
    """A colour as Chromium says it."""
    if not colour.startswith("#"):
        return "rgba(0, 0, 0, 0.87)"
    digits = colour[1:] if len(colour) > 4 else "".join(2 * one for one in colour[1:])
    return "rgb({}, {}, {})".format(*(int(digits[place : place + 2], 16) for place in (0, 2, 4)))
