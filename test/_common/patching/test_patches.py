"""Attributes that are replaced for a while."""

from __future__ import annotations

import inspect

from pytorch_memlab._common.patching.patches import Patches


class Box:
    size = 3

    def width(self, unit):
        """The width."""
        return f"3 {unit}"

    def height(self, unit):
        return f"4 {unit}"


def test_a_function_around_several_gets_each_original_and_is_put_back():
    before = dict(vars(Box))
    with Patches() as patches:

        @patches.around(Box, "width", "height")
        def measured(original, box, unit):
            return f"{original.__name__}: {original(box, unit)}"

        assert (Box().width("mm"), Box().height(unit="cm")) == ("width: 3 mm", "height: 4 cm")
        assert Box.width.__doc__ == "The width."
        assert [*inspect.signature(Box.width).parameters] == ["self", "unit"]
    assert dict(vars(Box)) == before


def test_several_attributes_are_set_and_those_that_were_not_there_are_deleted():
    before = dict(vars(Box))
    with Patches() as patches:
        patches.set_all(Box, {"size": 5, "colour": "red"})
        assert (Box.size, Box.colour) == (5, "red")
        assert patches.names_of(Box) == {"size", "colour"}
    assert dict(vars(Box)) == before


def test_what_another_put_in_place_of_a_replacement_stays_while_it_is_suspended():
    before = dict(vars(Box))
    with Patches() as patches, Patches() as later:
        patches.set_all(Box, {"size": 5, "colour": "red"})
        later.set(Box, "size", 7)
        with patches.suspended():
            assert (Box.size, hasattr(Box, "colour")) == (7, False)
        assert (Box.size, Box.colour) == (7, "red")
        later.undo()
        assert Box.size == 5
    assert dict(vars(Box)) == before
