"""What every test here starts with."""

import pytest

from rl.objectives.functional._recurrence import forget_back_ends


@pytest.fixture(autouse=True)
def _nobody_is_known():
    """Who computes is found anew by each test: some install another back end."""
    forget_back_ends()
    yield
    forget_back_ends()
