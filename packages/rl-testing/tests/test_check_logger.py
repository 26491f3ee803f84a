"""Each fault of a logger is named by check_logger."""

from typing import ClassVar

import pytest

from rl.core.errors import CheckError, NotExercisedWarning
from rl.testing import check_logger


class Memory:
    """Keeps every promise."""

    rows: ClassVar[dict] = {}

    def __init__(self):
        self.rows.clear()

    def log_scalars(self, values, step):
        for name, value in values.items():
            self.rows.setdefault(name, {})[step] = value

    def close(self):
        pass


class ClosesOnce(Memory):
    open = True

    def close(self):
        assert self.open
        self.open = False


class ClosesWhatItOpened(Memory):
    def log_scalars(self, values, step):
        self.file = self.rows

    def close(self):
        self.file.keys()


class Popping(Memory):
    def log_scalars(self, values, step):
        values.pop("loss", None)


class NeedsEveryName(Memory):
    def log_scalars(self, values, step):
        super().log_scalars({"loss": values["loss"], "reward": values["reward"]}, step)


class IntegersOnly(Memory):
    def log_scalars(self, values, step):
        super().log_scalars({name: int(value) for name, value in values.items() if abs(value) < 1e9}, step)


class Unlogged:
    def close(self):
        pass


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (ClosesOnce, r"^close, called a second time, raised AssertionError"),
        (ClosesWhatItOpened, "^close before anything was logged raised AttributeError"),
        (Popping, r"^log_scalars changed the values .* \(Popping\)"),
        (NeedsEveryName, r"^log_scalars\({'loss': 1e-12}, step=30\) raised KeyError"),
        (IntegersOnly, "^'loss' of step 10 was recorded as 0, it was 0.5"),
        (Unlogged, r"^no rl.core.interfaces.Logger: lacks \['log_scalars'\]"),
    ],
)
def test_a_fault_is_named_reason_first(kind, message):
    with pytest.raises(CheckError, match=message):
        check_logger(kind, read=lambda: Memory.rows)


def test_without_a_way_to_read_what_was_recorded_is_not_exercised():
    with pytest.warns(NotExercisedWarning, match="^not exercised: what was recorded: pass `read=`"):
        check_logger(Memory)
