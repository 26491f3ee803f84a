"""`ActionScaling`: actions in [-1, 1] for any bounds."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from rl.core.errors import RLError, SpecError
from rl.core.keys import NestedKey, key_str
from rl.core.specs import Bounded, TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._specs import Specs

__all__ = ["ActionScaling"]


class ActionScaling(Transform):
    """Gives the caller actions in [-1, 1], or in [0, 1], and maps them affinely to the bounds of the environment.

    ``action * scale + loc`` with ``loc = (high + low) / 2`` and ``scale = (high - low) / 2``.

    Args:
        in_keys_inv: the environment's action; ``["action"]`` if None. One key.
        out_keys_inv: the caller's action; `in_keys_inv` if None.
        in_keys: actions in a batch that are mapped to the caller's range, as of data that was stored unscaled.
        out_keys: results; `in_keys` if None.
        loc: center in place of that of the bounds.
        scale: half width in place of that of the bounds.
        standard_normal: the caller's range is [-1, 1], otherwise [0, 1].

    Raises:
        SpecError: if the action is not bounded and `loc` or `scale` is missing.
        RLError: if it is called on a batch, and has neither these nor an environment.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(), ActionScaling()).action_spec.space.high
        tensor([1.])
    """

    def __init__(
        self,
        in_keys_inv: Iterable[NestedKey] | None = None,
        out_keys_inv: Iterable[NestedKey] | None = None,
        in_keys: Iterable[NestedKey] = (),
        out_keys: Iterable[NestedKey] | None = None,
        *,
        loc: Tensor | float | None = None,
        scale: Tensor | float | None = None,
        standard_normal: bool = True,
    ) -> None:
        super().__init__(in_keys, out_keys, ["action"] if in_keys_inv is None else in_keys_inv, out_keys_inv)
        if len(self.in_keys_inv) > 1:
            raise SpecError(f"ActionScaling scales one action, got {self.in_keys_inv}: compose several")
        self.loc = None if loc is None else torch.as_tensor(loc, dtype=torch.get_default_dtype())
        self.scale = None if scale is None else torch.as_tensor(scale, dtype=torch.get_default_dtype())
        self.standard_normal = standard_normal

    def _inverse(self, value: Tensor) -> Tensor:
        loc, scale = self._bounds()
        unit = value if self.standard_normal else 2 * value - 1
        return unit * scale.to(value) + loc.to(value)

    def _apply(self, value: Tensor) -> Tensor:
        loc, scale = self._bounds()
        scale = scale.where(scale != 0, 1.0)  # a dimension that cannot move is in the middle
        unit = (value - loc.to(value)) / scale.to(value)
        return unit if self.standard_normal else (unit + 1) / 2

    def _bounds(self) -> tuple[Tensor, Tensor]:
        if self.loc is None or self.scale is None:
            raise RLError("ActionScaling has no bounds: append it to an environment, or give loc= and scale=")
        return self.loc, self.scale

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        low = -1.0 if self.standard_normal else 0.0
        return Bounded(low, 1.0, shape=spec.shape, dtype=spec.dtype, device=spec.device)

    def transform_specs(self, specs: Specs) -> None:
        """Read the bounds, and give the caller's action its own."""
        for key in self.in_keys_inv:
            spec = specs.read(key, self)[0][key]
            if self.loc is None or self.scale is None:
                bounds = spec.space if isinstance(spec, Bounded) else None
                if bounds is None or not (bounds.low.isfinite().all() and bounds.high.isfinite().all()):
                    raise SpecError(f"ActionScaling: {key_str(key)} has no finite bounds; give loc= and scale=")
                self.loc = (bounds.high + bounds.low) / 2 if self.loc is None else self.loc
                self.scale = (bounds.high - bounds.low) / 2 if self.scale is None else self.scale
            found = specs.read(key, self)[0]
            del found[key]
            found[self.out_keys_inv[0]] = self._transform_spec(spec)
