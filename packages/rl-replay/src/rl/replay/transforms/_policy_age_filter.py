"""Filter of steps that an old policy took."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, final

import torch
from tensordict import TensorDictBase

from rl.core.contract import Key, missing_key_message
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey, key_str, leaf_keys, unwrap
from rl.replay._arguments import whole

__all__ = ["PolicyAgeFilter"]


@final
class PolicyAgeFilter:
    """Removes the rows of a batch that a policy more than `max_age` versions ago collected.

    Reads `version_key`, integers ``[n, ...]``: a row of several steps is as old as its oldest step. Returns a batch
    ``[m, ...]`` with ``m <= n``, possibly 0. Stored rows stay; to remove old rows before they are written, append it
    with ``invert=True``.

    Args:
        max_age: largest difference of versions that is kept, an integer of at least 0.
        version_key: version of the policy at each step, as the transform ``PolicyVersion`` of rl-envs writes it.
        get_version: returns the current version.

    Raises:
        ContractError: if `max_age` is not such an integer, or `get_version` cannot be called.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(policy_version=torch.tensor([1, 4, 5]), batch_size=[3])
        >>> PolicyAgeFilter(2, get_version=lambda: 6)(batch)["policy_version"].tolist()
        [4, 5]
    """

    def __init__(
        self, max_age: int, version_key: NestedKey = "policy_version", *, get_version: Callable[[], int]
    ) -> None:
        if max_age != 0 and whole(max_age) is None:
            raise ContractError(f"PolicyAgeFilter: max_age must be an integer of at least 0, got {max_age!r}")
        if not callable(get_version):
            raise ContractError(
                f"PolicyAgeFilter: get_version returns the current version, got {get_version!r}: give a function, for"
                " example `lambda: policy_version.version`"
            )
        self.max_age: Final = int(max_age)
        self.version_key: Final = unwrap(version_key)
        self.get_version: Final = get_version

    def __call__(self, data: TensorDictBase) -> TensorDictBase:
        """The rows of `data` that are recent enough.

        Raises:
            ContractError: if the version is absent.
            ShapeError: if `data` is a single step, or the version is not an integer for each row.
        """
        version = data.get(self.version_key, None)
        if version is None:
            remedy = "Append the transform PolicyVersion of rl-envs to the environment, or name another version_key."
            wanted = Key(self.version_key, remedy=remedy)
            raise ContractError(missing_key_message("PolicyAgeFilter", wanted, leaf_keys(data)))
        if not data.ndim or version.is_floating_point() or version.dtype is torch.bool:
            raise ShapeError(
                f"PolicyAgeFilter: {key_str(self.version_key)} is {version.dtype} {list(version.shape)} in a batch"
                f" {list(data.batch_size)}, expected integers [n, ...] in a batch [n, ...]"
            )
        age = int(self.get_version()) - version.reshape(data.batch_size[0], -1).amin(-1)
        return data[age <= self.max_age]

    def __repr__(self) -> str:
        return f"PolicyAgeFilter(max_age={self.max_age}, version_key={self.version_key!r})"
