"""A mark for tests of what a simulation does with arithmetic, and without."""

import pytest

computed_or_dry = pytest.mark.parametrize("compute", [True, False], ids=["computed", "dry"])
