"""Common base of `CatTensors` and `Stack`: several entries become one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["Joined"]


class Joined(Transform):
    """Joins observations into one entry.

    Args:
        in_keys: entries, in this order; all of the observation, sorted, if None.
        out_key: the result.
        join: from the list of tensors and their number of batch dimensions to the result.
        del_keys: remove the entries that were joined.
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None,
        out_key: NestedKey,
        join: Callable[[list[Tensor], int], Tensor],
        *,
        del_keys: bool,
    ) -> None:
        super().__init__(() if in_keys is None else in_keys, [out_key])
        self.out_key, self.del_keys = unwrap(out_key), del_keys
        self._all, self._join, self._batch_dims = in_keys is None, join, 0

    def _call(self, entries: Any) -> Any:
        values = [entries.get(key, None) for key in self.in_keys]
        absent = [key_str(key) for key, value in zip(self.in_keys, values, strict=True) if value is None]
        if absent:
            raise ContractError(f"{self!r} joins {', '.join(absent)}, which is missing")
        dims = entries.batch_dims if isinstance(entries, TensorDictBase) else self._batch_dims
        joined = self._join(values, dims)
        if self.del_keys:
            for key in self.in_keys:
                if key != self.out_key:
                    del entries[key]
        entries[self.out_key] = joined
        return entries

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Join the entries of a batch at its root and under ``next``, or where alone they are complete.

        Raises:
            ContractError: if they are complete at neither.
        """
        outcome = None if self._names_next() else tensordict.get("next", None)
        whole = all(tensordict.get(key, None) is not None for key in self.in_keys)
        below = outcome is not None and all(outcome.get(key, None) is not None for key in self.in_keys)
        out = tensordict.copy()
        if whole or not below:
            out = self._call(out)  # names what is missing
        return out.set("next", self._call(outcome.copy())) if outcome is not None and below else out

    def transform_specs(self, specs: Specs) -> None:
        """Replace the specs of the entries by that of the result."""
        self._batch_dims = len(specs.batch_size)
        if self._all:
            self.in_keys = sorted(leaf_keys(specs.observation), key=str)
        parts: list[TensorSpec] = []
        for key in self.in_keys:
            if specs.observation.get(key, None) is None:
                specs.written(key, self)  # names the key if there is none
                raise SpecError(f"{self!r} joins observations; {key_str(key)} is none")
            parts.append(specs.observation[key])
        if len({part.dtype for part in parts}) > 1:
            dtypes = {key_str(key): str(part.dtype) for key, part in zip(self.in_keys, parts, strict=True)}
            raise SpecError(
                f"{self!r} joins entries of different dtypes: {dtypes}; convert them with DTypeCastTransform"
            )
        try:
            joined = self._joined_spec(parts, specs.device)
        except (RuntimeError, IndexError) as error:
            shapes = {key_str(key): tuple(part.shape) for key, part in zip(self.in_keys, parts, strict=True)}
            raise SpecError(
                f"{self!r} cannot join entries of the shapes {shapes}: {error}. Change them with UnsqueezeTransform or"
                " FlattenObservation first"
            ) from error
        removed = [key for key in self.in_keys if self.del_keys and key != self.out_key]
        needed = [key_str(key) for key in removed if specs.state.get(key, None) is not None]
        if needed:
            raise SpecError(
                f"{self!r} would remove {', '.join(needed)}, which the environment reads at the next step: give"
                " del_keys=False"
            )
        if self.del_keys:
            for key in self.in_keys:
                del specs.observation[key]
        specs.add("observation", self.out_key, joined, self)

    def _joined_spec(self, parts: list[TensorSpec], device: torch.device | None) -> TensorSpec:
        bounded = [part for part in parts if isinstance(part, Bounded)]
        if len(bounded) < len(parts):
            example = self._join([part.zero() for part in parts], 0)
            return Unbounded(example.shape, dtype=example.dtype, device=device)
        low = self._join([part.space.low for part in bounded], 0)
        high = self._join([part.space.high for part in bounded], 0)
        return Bounded(low, high, dtype=parts[0].dtype, device=device)
