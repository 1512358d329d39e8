"""A line of a job that goes on, with those around it in its function."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pytorch_memlab.jobs.watching import WatchedLine, WatchedProfile


@pytest.mark.parametrize(("line", "lines"), [(11, "abcdef"), (18, "efghijkl"), (20, "ghijkl")])
def test_a_line_has_four_on_either_side_where_its_function_has_them(line, lines):
    function = SimpleNamespace(first_line=10, source=tuple("abcdefghijkl"))
    profile = WatchedProfile(SimpleNamespace(functions={7: function}), (), (), "", 0)
    watched = WatchedLine("train.py", "", SimpleNamespace(code_id=7, line=line))
    first = 10 + "abcdefghijkl".index(lines[0])
    assert profile.around(watched) == list(enumerate(lines, first))
