"""Modules that are patched once a program imports them."""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest

from pytorch_memlab._common.patching.after_import import AfterImport


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The name of a module that is not imported yet."""
    (tmp_path / "imported_later.py").write_text("VALUE = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield "imported_later"
    sys.modules.pop("imported_later", None)


def test_a_look_for_a_package_is_no_import(module):
    seen, imports = [], AfterImport()
    imports.call(module, lambda found: seen.append(found.VALUE))
    imports.start()
    assert importlib.util.find_spec(module) is not None
    assert seen == []
    importlib.import_module(module)
    assert seen == [1]
    imports.stop()


def test_two_that_wait_are_both_called(module):
    seen, outer, inner = [], AfterImport(), AfterImport()
    for name, imports in (("outer", outer), ("inner", inner)):
        imports.call(module, lambda _found, name=name: seen.append(name))
        imports.start()
    importlib.import_module(module)
    assert seen == ["outer", "inner"]
    inner.stop()
    outer.stop()


def test_what_is_imported_afterwards_is_left_alone(module):
    seen, imports, finders = [], AfterImport(), list(sys.meta_path)
    imports.call(module, seen.append)
    imports.start()
    sys.meta_path.append("a finder of the program")
    imports.stop()
    assert [*sys.meta_path] == [*finders, "a finder of the program"]
    del sys.meta_path[-1]
    importlib.import_module(module)
    assert seen == []
