"""Access to the entries that a transform wrote one step earlier."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl.core.errors import ContractError
from rl.core.keys import NestedKey, key_str

__all__ = ["from_root"]


def from_root(root: Any, key: NestedKey, owner: object) -> Tensor:
    """Return the root entry that the last reset or step wrote.

    Raises:
        ContractError: if it is missing.
    """
    value = root.get(key, None)
    if value is None:
        raise ContractError(
            f"{type(owner).__name__} reads {key_str(key)} at the root, which is missing: step from the"
            " result of env.reset() or env.step_mdp()"
        )
    return value
