"""What is checked of arguments: whole numbers, and that a part is one."""

from __future__ import annotations

import operator
from typing import Any

from rl.core.errors import ContractError

__all__ = ["refuse_parts", "whole"]

_PARTS = {
    "storage": ("get", "LazyTensorStorage(1000)"),
    "sampler": ("sample", "RandomSampler()"),
    "writer": ("claim", "RoundRobinWriter()"),
}


def whole(value: Any) -> int | None:
    """`value` as an int of at least 1; None if it is no such number. An int of numpy is one, 1e6 and True are not.

    Example:
        >>> whole(3), whole(3.0), whole(0)
        (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number >= 1 else None


def refuse_parts(who: str, transform: Any, **parts: Any) -> None:
    """Refuse what cannot be that part: found out later, the others would have been changed by then.

    Raises:
        ContractError: if a part lacks what it is for.
    """
    for name, part in parts.items():
        method, example = _PARTS[name]
        if part is not None and (isinstance(part, type) or not callable(getattr(part, method, None))):
            raise ContractError(f"{who}: {name} has a method {method!r}, got {part!r}: {name}={example}, for example")
    if transform is not None and not callable(transform):
        raise ContractError(f"{who}: transform is a function from TensorDict to TensorDict, got {transform!r}")
