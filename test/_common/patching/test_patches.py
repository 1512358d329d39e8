"""Attributes that are replaced for a while."""

from __future__ import annotations

import importlib
import inspect
import sys

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


def test_a_function_is_replaced_in_the_modules_that_hold_it_now(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "shop.py").write_text("def price():\n    return 3\n")
    (tmp_path / "till.py").write_text("amount = 3\n")
    shop, till = map(importlib.import_module, ("shop", "till"))
    price = shop.price

    def doubled():
        with Patches() as patches:
            patches.set_by_name((price, lambda: 6))
            held = {module.__name__ for module in (shop, till) if vars(module).get("price")}
            doubled = {name for name in held if sys.modules[name].price() == 6}
        assert all(sys.modules[name].price is price for name in held)
        return doubled

    try:
        assert doubled() == doubled() == {"shop"}
        till.price = price
        assert doubled() == {"shop", "till"}
        del till.price
        assert doubled() == {"shop"}
        # Loaded again, as IPython's autoreload does it, with as many names as before.
        (tmp_path / "till.py").write_text('"""Sums."""\nfrom shop import price\n')
        loader = till.__loader__
        till.__dict__.clear()
        till.__dict__.update(__name__="till", __loader__=loader)
        importlib.invalidate_caches()
        importlib.reload(till)
        assert doubled() == {"shop", "till"}
    finally:
        del sys.modules["shop"], sys.modules["till"]
