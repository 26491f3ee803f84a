"""`NextObservationDelta`: next observations stored as differences of low precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, RLError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, next_key
from rl.envs.base._checks import describe
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Reset, Step, Transform
from rl.envs.transforms._specs import Specs

__all__ = ["NextObservationDelta"]


class NextObservationDelta(Transform):
    """Stores each next observation in a replay buffer as its difference from the observation, in low precision.

    Appended to a buffer, it replaces ``("next", key)`` of a batch that is written by ``("next", "delta", key)``, and
    writes ``("next", key)``, the sum of the observation and the difference, into samples. Samples are those of a
    buffer without it up to the precision of `delta_dtype`, also at the end of an episode.

    In an environment it takes `in_keys` from the observations and changes nothing: append the same transform to the
    buffer. Batches of a collector have the full next observations.

    Args:
        in_keys: Keys of the observations, without ``next``; all of a floating dtype not among `excluded_dtypes` that
            the environment has, if None.
        delta_dtype: Floating dtype of the differences.
        restore_dtype: Dtype of next observations in samples; ``"root"`` for that of the observation.
        drop_delta: Whether samples are without the differences.
        excluded_dtypes: Dtypes of observations that are left as they are if `in_keys` is None.

    Raises:
        SpecError: if a dtype is not of floating-point numbers.
        ContractError: if a batch has no such observation, or one of integers, or a difference exceeds the range of
            `delta_dtype`.
        RLError: if there are neither `in_keys` nor an environment.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict(x=torch.tensor([1.0, 2.0]), next=TensorDict(x=torch.tensor([2.0, 2.5])), batch_size=[2])
        >>> delta = NextObservationDelta(["x"])
        >>> stored = delta.inv(batch)
        >>> stored["next", "delta", "x"], delta(stored)["next", "x"]
        (tensor([1.0000, 0.5000], dtype=torch.float16), tensor([2.0000, 2.5000]))
    """

    leafwise = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        *,
        delta_dtype: torch.dtype = torch.float16,
        restore_dtype: torch.dtype | Literal["root"] = "root",
        drop_delta: bool = True,
        excluded_dtypes: Iterable[torch.dtype] = (),
    ) -> None:
        for name, dtype in (("delta_dtype", delta_dtype), ("restore_dtype", restore_dtype)):
            if dtype != "root" and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
                raise SpecError(f"NextObservationDelta: {name} must be a floating-point dtype, got {dtype!r}")
        super().__init__(() if in_keys is None else in_keys)
        self._every = in_keys is None
        self.delta_dtype, self.restore_dtype, self.drop_delta = delta_dtype, restore_dtype, drop_delta
        self.excluded_dtypes = tuple(excluded_dtypes)

    def _wrap(self, reset: Reset, step: Step) -> tuple[Reset, Step]:
        return reset, step

    def has_inverse(self) -> bool:
        """Whether it maps what is written to a buffer: always."""
        return True

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a sample with next observations."""
        out = tensordict.copy()
        for key in self._keys():
            value, delta = (self._read(tensordict, one) for one in (key, ("next", "delta", *as_tuple(key))))
            dtype = value.dtype if self.restore_dtype == "root" else self.restore_dtype
            out.set(next_key(key), value.to(dtype) + delta.to(dtype))
        return out.exclude(("next", "delta")) if self.drop_delta else out

    def inv(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch to store, with differences in place of next observations."""
        out = tensordict.copy()
        for key in self._keys():
            value, following = self._read(tensordict, key), self._read(tensordict, next_key(key))
            if following.shape != value.shape or not value.is_floating_point():
                raise ContractError(
                    f"{self!r}: {key_str(key)} is {describe(value)} and its next value {describe(following)}; a"
                    " difference is that of floating-point numbers of one shape: leave it out of in_keys"
                )
            difference = following - value
            delta = difference.to(self.delta_dtype)
            if not torch.equal(delta.isfinite(), difference.isfinite()):
                raise ContractError(
                    f"{self!r}: a difference of {key_str(key)} exceeds the range of {self.delta_dtype}; give"
                    " delta_dtype=torch.bfloat16, or normalize the observations"
                )
            out.set(("next", "delta", *as_tuple(key)), delta)
        return out.exclude(*[next_key(key) for key in self.in_keys])

    def _keys(self) -> list[NestedKey]:
        if self._every and not self.in_keys:
            raise RLError(f"{self!r} has no observations: give in_keys=, or append it to the environment before")
        return self.in_keys

    def _read(self, batch: TensorDictBase, key: NestedKey) -> Tensor:
        value: Any = batch.get(key, None)
        if value is None:
            raise ContractError(
                f"{self!r} reads {key_str(key)}, which the batch does not have: it has"
                f" {sorted(map(str, batch.keys(include_nested=True, leaves_only=True)))}"
            )
        return value

    def transform_specs(self, specs: Specs) -> None:
        """Choose the observations, or check that they exist."""
        if self._every:
            found = {key: specs.observation[key].dtype for key in leaf_keys(specs.observation)}
            self.in_keys = [
                key
                for key, dtype in found.items()
                if dtype is not None and dtype.is_floating_point and dtype not in self.excluded_dtypes
            ]
            self.out_keys = list(self.in_keys)
        for key in self.in_keys:
            specs.written(key, self)
