"""`ObservationTransform`: base class of transforms of the observation."""

from __future__ import annotations

from collections.abc import Iterable

from rl.core.keys import NestedKey
from rl.envs.transforms._base import Transform

__all__ = ["ObservationTransform"]


class ObservationTransform(Transform):
    """Base class of transforms of the observation: `Transform` whose `in_keys` are ``["observation"]`` by default.

    Args:
        in_keys: entries that it reads; ``observation`` if None.
        out_keys: entries that it writes; `in_keys` if None.
        in_keys_inv: see `Transform`.
        out_keys_inv: see `Transform`.

    Example:
        >>> ObservationTransform().in_keys
        ['observation']
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["observation"] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)
