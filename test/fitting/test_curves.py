"""Curves of GPUs: what values need, and which of them are one."""

from __future__ import annotations

from pytorch_memlab.fitting.curve import Curve, Point


def curve(*points):
    return Curve(("a",), tuple(Point(*point) for point in points))


LINE = curve((10, 120), (20, 140), (40, 180))


def test_a_curve_between_its_points_and_beyond_them():
    assert [LINE.at(value) for value in (9, 10, 15, 40, 50)] == [None, 120, 130, 180, 200]
    assert curve((10, 120)).at(11) is None


def test_curves_of_other_values_are_one_if_they_lie_on_one_line():
    assert LINE.is_near(curve((60, 221), (70, 240)))
    assert curve((60, 221), (70, 240)).is_near(LINE)
    assert not LINE.is_near(curve((60, 226), (70, 245)))
    assert not LINE.is_near(curve((1, 100), (2, 100), (15, 150)))
    assert not LINE.is_near(curve((1, 102)))  # nothing is known of both
