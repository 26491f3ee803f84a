"""Actions squashed into bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from torch import Tensor

from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.lowering import Lowered, unhooked
from rl.core.specs import Bounded, Composite, TensorSpec
from rl.modules._keys import key_list
from rl.modules.policy._fit import bounds

__all__ = ["TanhModule"]

Bound = float | Tensor


class TanhModule(TensorDictModuleBase):
    """Squash entries into bounds: ``low + (high - low) * (tanh(x) + 1) / 2``.

    Args:
        in_keys: of the entries.
        out_keys: of the results, as many; `in_keys` if None.
        spec: `rl.core.specs.Bounded` of the first out key, or specs by out key, which give the bounds.
        low: lower bound of all entries without a spec; -1 if None.
        high: upper bound of all entries without a spec; 1 if None.
        clamp: keep results a rounding error away from the bounds, where an inverse of tanh is finite.

    Raises:
        ContractError: if the numbers of keys differ; in the call, if an entry is absent.
        SpecError: if a spec has no finite bounds, `low` is above `high`, or all out keys have a spec and `low` or
            `high` is given, too.

    Example:
        >>> from tensordict import TensorDict
        >>> squash = TanhModule(["action"], low=-2.0, high=2.0)
        >>> squash(TensorDict(action=torch.tensor([0.0, 100.0])))["action"]
        tensor([0., 2.])
    """

    def __init__(
        self,
        in_keys: NestedKey | Sequence[NestedKey],
        out_keys: NestedKey | Sequence[NestedKey] | None = None,
        *,
        spec: TensorSpec | Mapping[NestedKey, TensorSpec] | None = None,
        low: Bound | None = None,
        high: Bound | None = None,
        clamp: bool = False,
    ) -> None:
        super().__init__()
        self.in_keys = key_list(in_keys)
        self.out_keys = key_list(in_keys if out_keys is None else out_keys)
        if len(self.in_keys) != len(self.out_keys):
            raise ContractError(
                f"TanhModule writes one entry for each that it reads, got in_keys {self.in_keys} and out_keys"
                f" {self.out_keys}"
            )
        specs = _by_key(self.out_keys, spec)
        if (low is not None or high is not None) and all(key in specs for key in self.out_keys):
            raise SpecError("TanhModule got bounds and a spec for all out_keys: leave one of them out")
        self.clamp = clamp
        for place, key in enumerate(self.out_keys):
            ends: tuple[Bound, Bound] = -1.0 if low is None else low, 1.0 if high is None else high
            if key in specs:
                ends = bounds(specs[key], "TanhModule")
            lower, upper = (torch.as_tensor(end, dtype=torch.get_default_dtype()) for end in ends)
            if not bool((lower <= upper).all()):
                raise SpecError(f"TanhModule needs low <= high, got {ends[0]} and {ends[1]} for {key_str(key)}")
            self.register_buffer(f"_middle_{place}", (lower + upper) / 2, persistent=False)
            self.register_buffer(f"_half_{place}", (upper - lower) / 2, persistent=False)

    @property
    def contract(self) -> Contract:
        """What is read and written."""
        remedy = "Put TanhModule after the network, in a TensorDictSequential."
        return Contract(
            tuple(Key(key, doc="real numbers", remedy=remedy) for key in self.in_keys),
            tuple(Key(key, doc="numbers within the bounds") for key in self.out_keys),
        )

    @dispatch(auto_batch_size=False)  # pyright: ignore[reportUntypedFunctionDecorator]
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Squash the entries; of tensors in the place of a batch, return the results.

        Raises:
            ContractError: if one is absent.
        """
        leaves = [tensordict.get(key, None) for key in self.in_keys]
        for key, leaf in zip(self.in_keys, leaves, strict=True):
            if leaf is None:
                self.contract.refuse(tensordict, key, self)
        for key, value in zip(self.out_keys, self._squash(*leaves), strict=True):
            tensordict.set(key, value)
        return tensordict

    def lowered(self) -> Lowered | None:
        """The module as a plain call, with the same numbers; None if it was changed or hooked."""
        if type(self) is not TanhModule or not unhooked(self):
            return None
        return Lowered(self._squash, self.in_keys, self.out_keys)

    def _squash(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for place, leaf in enumerate(leaves):
            middle, half = getattr(self, f"_middle_{place}"), getattr(self, f"_half_{place}")
            y = leaf.tanh()
            if self.clamp:
                edge = 1 - torch.finfo(y.dtype).eps
                y = y.clamp(-edge, edge)
            found.append(torch.addcmul(middle.to(y.dtype), y, half.to(y.dtype)))
        return tuple(found)


def _by_key(keys: Sequence[Any], spec: TensorSpec | Mapping[NestedKey, TensorSpec] | None) -> dict[Any, Bounded]:
    """The specs of out keys.

    Raises:
        SpecError: if one has no bounds.
    """
    if spec is None:
        return {}
    by_key = spec if isinstance(spec, Composite | Mapping) else {keys[0]: spec}
    found: dict[Any, Bounded] = {}
    for key in keys:
        one = by_key.get(unwrap(key), None)
        if one is None:
            continue
        if not isinstance(one, Bounded):
            raise SpecError(
                f"TanhModule needs bounds, the spec of {key_str(key)} is {one}: give low= and high= instead"
            )
        found[key] = one
    return found
