"""Fixtures of the training loops' tests."""

import pytest


@pytest.fixture
def new_accelerators():
    """``accelerate`` keeps the first device that it sees for the whole process."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
