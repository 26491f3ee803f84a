"""Reports of checks: failed promises, and parts that were not exercised."""

from __future__ import annotations

import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import CheckError, NotExercisedWarning
from rl.core.keys import NestedKey, key_str, leaf_keys


@dataclass
class Report:
    """What a check that passed did not exercise.

    Args:
        owner: Component that was checked.
        not_exercised: One sentence each; empty if everything was exercised.

    Example:
        >>> from rl.testing import CountingEnv, check_env
        >>> check_env(lambda: CountingEnv(length=3, batch_size=(2,))).not_exercised[0]
        'ends reported as truncated: none in 200 random steps; pass `steps=`'
    """

    owner: str
    not_exercised: list[str] = field(default_factory=list)

    def skip(self, sentence: str) -> None:
        """Record what was not exercised; a sentence that is there already is not repeated."""
        if sentence not in self.not_exercised:
            self.not_exercised.append(sentence)

    def warn(self, stacklevel: int = 3) -> Report:
        """Issue a `NotExercisedWarning` for each sentence; returns the report."""
        for sentence in self.not_exercised:
            warnings.warn(f"not exercised: {sentence} ({self.owner})", NotExercisedWarning, stacklevel=stacklevel)
        return self


def fail(reason: str, owner: str = "") -> NoReturn:
    """Raise a `CheckError` with the reason first and the component last."""
    raise CheckError(f"{reason} ({owner})" if owner else reason)


@contextmanager
def naming(owner: str) -> Generator[None]:
    """Turn an error that does not name the component into a `CheckError` that does."""
    try:
        yield
    except AssertionError as error:
        raise CheckError(f"{error} ({owner})") from error.__cause__


@contextmanager
def raising(what: str, owner: str) -> Generator[None]:
    """Turn an exception of a component into a `CheckError` that names the call and the component."""
    try:
        yield
    except CheckError:
        raise
    except Exception as error:
        raise CheckError(f"{what} raised {type(error).__name__}: {error} ({owner})") from error


def require(held: object, reason: str, owner: str) -> None:
    """As `fail`, unless the promise held."""
    if not held:
        fail(reason, owner)


def same_rows(left: Any, right: Any, batch_dims: int) -> Tensor:
    """Return which elements of two tensors are equal, ``[*B]``; NaN equals NaN. None are if the shapes differ."""
    if not isinstance(right, Tensor) or left.shape != right.shape:
        return torch.zeros(left.shape[:batch_dims], dtype=torch.bool)
    same = left == right
    if left.is_floating_point():
        same |= left.isnan() & right.isnan()
    return same.flatten(batch_dims).all(-1).cpu() if same.ndim > batch_dims else same.cpu()


def same_values(left: Any, right: Any) -> bool:
    """Whether two entries agree bit by bit, NaN with NaN."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.shape != right.shape or left.dtype != right.dtype:
            return False
        return bool(same_rows(left, right, left.ndim).all())
    return bool(left == right) if not hasattr(left, "batch_size") else left.tolist() == right.tolist()


def different_key(left: Any, right: Any) -> NestedKey | None:
    """Return a key in which two sets of entries differ, or that only one of them has; None if they agree."""
    one, two = leaf_keys(left), leaf_keys(right)
    odd = [key for key in (*one, *two) if key not in one or key not in two]
    odd += [key for key in one if key not in odd and not same_values(left.get(key), right.get(key))]
    return odd[0] if odd else None


def require_same(left: Any, right: Any, reason: str, owner: str) -> None:
    """Raise unless two sets of entries agree bit by bit; the error names the key."""
    key = different_key(left, right)
    require(key is None, f"{reason}: {'' if key is None else key_str(key)} differs", owner)


def require_plain(value: Any, what: str, owner: str) -> None:
    """Raise unless `value` is made of tensors and plain containers."""
    if isinstance(value, Mapping) and not isinstance(value, TensorDictBase):
        for key, item in value.items():
            require(isinstance(key, (str, int)), f"{what}: the key {key!r} is neither string nor number", owner)
            require_plain(item, what, owner)
    elif isinstance(value, (list, tuple)):
        for item in value:
            require_plain(item, what, owner)
    else:
        plain = value is None or type(value) in (bool, int, float, str) or isinstance(value, torch.Tensor)
        require(plain, f"{what} holds a {type(value).__name__}; states hold tensors and plain containers", owner)
