"""The tests that the guide shows pass."""

from __future__ import annotations

import re
from pathlib import Path

pytest_plugins = "pytester"

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "pytest.md"


def test_the_tests_of_the_guide(run):
    (shown,) = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(), re.DOTALL | re.MULTILINE)

    run(shown).assert_outcomes(passed=3)
