"""Fixtures of all tests."""

import pytest

# tests register back ends, and the choice is cached for the process
from rl.objectives.functional._recurrence import forget_back_ends


@pytest.fixture(autouse=True)
def _select_back_ends_again():
    """Some tests install another back end."""
    forget_back_ends()
    yield
    forget_back_ends()
