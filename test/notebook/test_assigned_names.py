"""Names that a cell assigns, found from its source; and the name a call's result will have."""

from __future__ import annotations

import sys

import pytest

from pytorch_memlab.notebook.assigned_names import assigned_names, assignment_target, body_of


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("x = 1", {"x"}),
        ("a = b, (c, *d) = 1, (2, 3)", {"a", "b", "c", "d"}),
        ("x += 1; y: int = 2; z: int", {"x", "y"}),
        ("for i, j in []: k = 1", {"i", "j", "k"}),
        ("with open('f') as f: pass", {"f"}),
        ("try: pass\nexcept OSError as error: pass", {"error"}),
        ("import a.b, c as d\nfrom e import f, g as h", {"a", "d", "f", "h"}),
        ("def f():\n    x = 1\nclass C:\n    y = 1\nasync def g(): pass", {"f", "C", "g"}),
        ("if (n := 5): pass", {"n"}),
        ("match x:\n    case [a, *b]: pass\n    case {'k': c, **d}: pass", {"a", "b", "c", "d"}),
        ("[i for i in range(3)]; sum(j for j in [])", set()),
        ("print(c)\n[c := i for i in a if (d := i)]", {"c", "d"}),
        (
            "def f(): return [c := 1 for _ in a]\nclass C: d = (e := 1)\nlambda: (g := 1)",
            {"f", "C"},
        ),
        ("a.b = 1; c[0] = 2; print(d)", set()),
        ("def f():\n    global counter\n    counter = 1", {"f"}),
        ("not python at all", set()),
    ],
)
def test_every_kind_of_assignment_counts(source, names):
    assert assigned_names(source) == names


def test_only_what_comes_after_a_line():
    source = "a = 1\nwith call() as b:\n    c = 1\n    import d\ndef e(): pass\na = 2"
    assert assigned_names(source, after_line=2) == {"a", "c", "d", "e"}
    assert assigned_names(source, after_line=5) == {"a"}


def test_cell_magics_around_python_are_taken_off():
    assert body_of("x = 1") == "x = 1"
    assert body_of("%%time\n%%capture out\nx = 1") == "x = 1"
    assert body_of("if a:\n    %mlrun -q -f g x = g('%time')\n%time y = 1\n%mlrun -q\n%time") == (
        "if a:\n    x = g('%time')\ny = 1\npass\npass"
    )
    assert body_of("%timeit x = 1") == "%timeit x = 1"
    assert body_of("%%bash\nx=1") == "%%bash\nx=1"


def target():
    return assignment_target(sys._getframe(1))


class Context:
    def __init__(self):
        self.name = assignment_target(sys._getframe(1))

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


def test_the_name_of_a_calls_result_is_known_before_it_has_one():
    found = target()
    assert found == "found"
    first = second = target()
    assert first == second == "first"
    with Context() as entered:
        pass
    assert entered.name == "entered"
    namespace = {"Context": Context, "target": target}
    exec("x = target()\nwith Context() as c: y = 1\nglobal g\ng = target()", namespace)
    assert (namespace["x"], namespace["c"].name, namespace["g"]) == ("x", "c", "g")


def test_what_is_not_assigned_has_no_name():
    results = [target(), (target(), 1)[0], str(target())]
    assert results == [None, None, "None"]
    namespace = {"Context": Context, "made": []}
    exec("with Context():\n    x = 1\n", namespace)
    keep = []

    def call():
        keep.append(assignment_target(sys._getframe(1)))

    call()
    x = 5
    assert keep == [None]
    assert x == 5
