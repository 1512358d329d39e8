"""``torch.distributions`` in a dry run: parameters and values are what their constraints ask for.

A distribution reads whether each parameter, and each value whose probability is asked for, is
valid. Without values there is nothing to read: zeros in their place are no standard deviation, and
a comparison without values is false.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.distributions import Distribution, Geometric

from ..._common.patching.patches import Patches
from ..machine.machine import Machine


def install(machine: Machine, patches: Patches) -> None:
    """Answer what distributions read of their parameters and values, until undone."""
    values = machine.values
    if values is None:
        return

    def checked(check: Callable[..., Any], self: Distribution, *args: Any, **named: Any) -> Any:
        with values.answered(*[True] * _checks_of(self)):
            return check(self, *args, **named)

    patches.around(Distribution, "__init__", "_validate_sample")(checked)
    patches.around(Geometric, "__init__")(checked)  # which looks at its probabilities itself


def _checks_of(distribution: Distribution) -> int:
    """As many as are read at most: of each parameter, and of a value or of what the class adds."""
    try:
        return len(distribution.arg_constraints) + 1
    except NotImplementedError:
        return 1
