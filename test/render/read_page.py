"""Pages as tests read them."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

ENDS = {"td": ("td", "th"), "th": ("td", "th"), "tr": ("td", "th", "tr")}
"""What a tag of a part of a table ends."""

VOID = {"meta", "br", "link", "img", "input", "hr"}


class Element:
    """An element of a page."""

    def __init__(self, tag, attributes):
        self.tag, self.attributes, self.children = tag, attributes, []

    @property
    def text(self):
        """All text in it, with single spaces."""
        parts = [one if isinstance(one, str) else one.text for one in self.children]
        return " ".join(" ".join(parts).split())

    def all(self, tag=None, name=None):
        """The elements in it with a tag and a class, in order."""
        for child in self.children:
            if isinstance(child, Element):
                names = (child.attributes.get("class") or "").split()
                if tag in (None, child.tag) and (name is None or name in names):
                    yield child
                yield from child.all(tag, name)

    def one(self, tag=None, name=None):
        (found,) = self.all(tag, name)
        return found


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag, attributes):
        if tag in ENDS:
            self.end_implied(ENDS[tag])
        element = Element(tag, dict(attributes))
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag, attributes):
        self.open[-1].children.append(Element(tag, dict(attributes)))

    def end_implied(self, tags):
        """End the parts of a table whose end tags HTML does not need."""
        while self.open[-1].tag in tags:
            self.open.pop()

    def handle_endtag(self, tag):
        if tag in ("tbody", "thead", "table"):
            self.end_implied(("td", "th", "tr"))
        elif tag == "tr":
            self.end_implied(("td", "th"))
        assert self.open.pop().tag == tag

    def handle_data(self, data):
        self.open[-1].children.append(data)


def read(page):
    """The page's root element; every element must end where it should."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
    (root,) = reader.open
    return root


def data_of(figure):
    """The data that a fragment has for its script."""
    found = [s for s in figure.all("script") if s.attributes.get("type") == "application/json"]
    (script,) = found
    return json.loads(script.children[0])


def check_self_contained(page):
    """It names no address, loads nothing, forbids itself to, and has every id once."""
    root = read(page)
    assert not re.search(r"\b(?:https?|ftp|wss?):|//[a-z]|@import|url\(|\bfetch\(|XMLHttp", page)
    for element in root.all():
        assert not {"src", "srcset", "action"} & element.attributes.keys()
        assert element.attributes.get("href", "#").startswith("#")
        assert not [name for name in element.attributes if name.startswith("on")]
    policies = [
        meta.attributes["content"]
        for meta in root.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert [policy.split(";")[0] for policy in policies] == ["default-src 'none'"]
    ids = [e.attributes["id"] for e in root.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids))
    named = {
        name
        for element in root.all()
        for attribute in ("aria-labelledby", "aria-describedby", "aria-controls")
        for name in element.attributes.get(attribute, "").split()
    }
    named |= {e.attributes["href"][1:] for e in root.all() if "href" in e.attributes}
    assert named <= set(ids)
    return root
