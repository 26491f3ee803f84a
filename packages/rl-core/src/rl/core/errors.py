"""Every error type of the toolkit, and warnings that point at the user's line.

Each is an `RLError` and also a built-in type, so that code which knows nothing of us still catches it.
A message says what was wrong, where, what was expected, and what to do.
"""

from __future__ import annotations

import sys
import warnings

__all__ = [
    "ArgumentError",
    "BackendError",
    "BrokenPluginWarning",
    "CheckError",
    "CheckpointError",
    "ContractError",
    "DuplicateComponentError",
    "MissingExtraError",
    "NotExercisedWarning",
    "PluginError",
    "RLError",
    "ShapeError",
    "SlowBackendWarning",
    "SpecError",
    "SpecIndexError",
    "SpecKeyError",
    "UnknownArgumentError",
    "UnknownComponentError",
    "UnknownNameError",
    "UnsupportedError",
    "WorkerError",
    "WorkerTimeoutError",
    "issue_warning",
]


class RLError(Exception):
    """Base of every error that the toolkit raises on purpose."""

    def __str__(self) -> str:
        # KeyError prints its argument's repr: our messages are sentences, not keys.
        return "\n".join(str(arg) for arg in self.args)


class ArgumentError(RLError, ValueError):
    """An argument has a value that a function or constructor does not accept; the message says what it accepts."""


class UnknownArgumentError(ArgumentError, TypeError):
    """A function or constructor does not have that keyword argument; the message says what to use instead."""


class ContractError(RLError, KeyError):
    """No component writes a key that another one reads, or a component breaks its declaration."""


class UnknownNameError(ContractError, ValueError):
    """A component has no key of the name for which one is set."""


class ShapeError(RLError, ValueError):
    """Tensors that meet have shapes that do not agree; nothing here broadcasts in silence."""


class SpecError(RLError, ValueError):
    """A value lies outside its spec, or a spec cannot be created or combined as asked."""


class SpecIndexError(SpecError, IndexError):
    """An index is out of the range of a spec's dimensions."""


class SpecKeyError(SpecError, KeyError):
    """A composite spec has no entry of that name."""


class UnsupportedError(SpecError, NotImplementedError):
    """A component exists, and the one that it was given to cannot use it."""


class PluginError(RLError, RuntimeError):
    """A plugin is broken, or was written for a contract that this rl-core does not serve."""


class UnknownComponentError(RLError, LookupError):
    """No component of that kind has that name."""


class DuplicateComponentError(RLError, ValueError):
    """Two plugins offer the same kind and name."""


class MissingExtraError(RLError, ImportError):
    """An optional library is absent; the message holds the line that installs it."""


class BackendError(RLError, RuntimeError):
    """A back end was asked for by name and cannot be used here."""


class CheckpointError(RLError, ValueError):
    """A checkpoint is missing, damaged, or does not fit what it is loaded into."""


class CheckError(RLError, AssertionError):
    """A component breaks a promise of its kind; raised by the checks of `rl.testing`."""


class WorkerError(RLError, RuntimeError):
    """A worker process failed, ended, or does not answer; the message names it and has its traceback."""

    worker: int | None = None
    """Number of the worker."""
    ended: bool = False
    """Whether its process has ended."""


class WorkerTimeoutError(WorkerError, TimeoutError):
    """A worker did not answer in time; it may still answer later."""


class BrokenPluginWarning(UserWarning):
    """A plugin was found but is left out; the rest works."""


class SlowBackendWarning(UserWarning):
    """What was taken works, and something faster could be installed; the message holds the line that does it."""


class NotExercisedWarning(UserWarning):
    """A check of `rl.testing` passed without trying everything; the message says what and how to try it."""


def issue_warning(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the first caller outside the toolkit.

    Args:
        message: Text of the warning.
        category: Class of the warning.
    """
    level, frame = 2, sys._getframe(1)  # noqa: SLF001  as `warnings` itself
    while frame is not None and frame.f_globals.get("__name__", "").startswith("rl."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
