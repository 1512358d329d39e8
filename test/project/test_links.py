"""Links of the documents: files and headings that exist, addresses that belong to their names."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    str(path.relative_to(ROOT))
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if "_generated" not in path.parts
)
NAMED = {
    "original project": "https://github.com/Stonesjtu/pytorch_memlab",
    "ipyexperiments": "https://github.com/stas00/ipyexperiments",
    "ipygpulogger": "https://github.com/stas00/ipygpulogger",
    "original": "https://github.com/stas00/ipygpulogger",
    "fastai.utils.mem": "https://github.com/fastai/fastai1",
    "ipython_memory_usage": "https://github.com/ianozsvald/ipython_memory_usage",
    "ipython_memwatcher": "https://github.com/FrancescAlted/ipython_memwatcher",
}
"""What stands in the text, and where it is: each was looked up."""

HOSTS = {"github.com", "huggingface.co", "docs.pytorch.org", "pytorch.org", "docs.nvidia.com"}


@cache
def text_of(path):
    """A document without its blocks of code."""
    return re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )


@cache
def anchors_of(path):
    """The headings as GitHub and Sphinx name them, and names that stand in the text."""
    found = set(re.findall(r"^\(([\w-]+)\)=$|\{#([\w-]+)\}", text_of(path), flags=re.MULTILINE))
    anchors = {one for pair in found for one in pair if one}
    for heading in re.findall(r"^#+ (.+)$", text_of(path), flags=re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchors.add(re.sub(r"[^\w\- ]", "", plain).strip().replace(" ", "-"))
    return anchors


def links():
    """Every link and picture: document, text, target."""
    for name in DOCUMENTS:
        text = text_of(ROOT / name)
        yield from ((name, *one) for one in re.findall(r"\[([^]]*)\]\(([^)\s]+)\)", text))
        yield from ((name, "", one) for one in re.findall(r'src="([^"]+)"', text))


def is_alive(document, target):
    """True if a link of a document leads to a file and, if it names one, to a heading in it."""
    path, _, anchor = target.partition("#")
    file = document.parent / path if path else document
    return file.exists() and (not anchor or anchor in anchors_of(file))


INTERNAL = [one for one in links() if "://" not in one[2]]
EXTERNAL = [one for one in links() if "://" in one[2]]


def test_there_are_links_of_both_kinds():
    assert len(INTERNAL) > 30
    assert len(EXTERNAL) > 8


@pytest.mark.parametrize(("document", "text", "target"), INTERNAL)
def test_files_and_headings_exist(document, text, target):
    assert is_alive(ROOT / document, target), text


def test_a_missing_file_and_a_missing_heading_are_dead(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n(here)=\n## What `run` [does](b.md), twice\n\n```\n# code\n```\n")
    for target in ("page.md", "#a-page", "page.md#here", "page.md#what-run-does-twice"):
        assert is_alive(page, target), target
    for target in ("other.md", "#code", "page.md#a-pag", "other.md#a-page"):
        assert not is_alive(page, target), target


@pytest.mark.parametrize(("document", "text", "target"), EXTERNAL)
def test_addresses_are_well_formed_and_of_what_they_name(document, text, target):
    address = urlsplit(target)
    assert (address.scheme, address.query) == ("https", ""), document
    assert address.hostname in HOSTS
    if address.hostname == "github.com":
        assert re.fullmatch(
            r"/[\w-]+/[\w.-]+(/(?:blob|tree)/[\w.]+/[\w./-]+|/(?:pull|issues)/\d+|/commit/[0-9a-f]+)?",
            address.path,
        )
    assert NAMED.get(text, target) == target


def test_every_name_that_was_looked_up_is_still_linked():
    assert NAMED.keys() <= {text for _, text, _ in EXTERNAL}
