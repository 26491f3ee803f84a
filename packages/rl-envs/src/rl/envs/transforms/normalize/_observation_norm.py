"""`ObservationNorm`: observations normalized with fixed statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rl.core.arguments import as_integer
from rl.core.errors import RLError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs import TensorSpec
from rl.envs.transforms._base import Transform
from rl.envs.transforms._compose import Compose
from rl.envs.transforms._maps import mapped_spec

__all__ = ["ObservationNorm"]


class ObservationNorm(Transform):
    """Affine map of observations: ``x * scale + loc``, or ``(x - loc) / scale`` if `standard_normal`.

    `loc` and `scale` are given, or measured with `init_stats` after the transform is in its environment; until then
    the environment cannot be stepped.

    Args:
        loc: number or tensor; measured if None.
        scale: number or tensor; measured if None.
        in_keys: entries; ``["observation"]`` if None and there are no inverse keys.
        out_keys: results; `in_keys` if None.
        in_keys_inv: entries of the environment's input that get the caller's with the inverse map.
        out_keys_inv: the caller's entries; `in_keys_inv` if None.
        standard_normal: which of the two maps.
        eps: smallest scale.

    Raises:
        RLError: where it is applied without statistics.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), ObservationNorm(standard_normal=True))
        >>> env.transform.init_stats(1000)
        >>> env.transform.initialized, env.transform.loc.shape
        (True, torch.Size([3]))
    """

    def __init__(
        self,
        loc: float | Tensor | None = None,
        scale: float | Tensor | None = None,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
        *,
        standard_normal: bool = False,
        eps: float = 1e-6,
    ) -> None:
        inverse = list(in_keys_inv)
        super().__init__(
            ([] if inverse else ["observation"]) if in_keys is None else in_keys, out_keys, inverse, out_keys_inv
        )
        self.standard_normal, self.eps = standard_normal, eps
        self.loc = None if loc is None else torch.as_tensor(loc)
        self.scale = None if scale is None else torch.as_tensor(scale).clamp_min(eps)
        self._recorded: dict[NestedKey, list[Tensor]] | None = None
        self._measuring = False  # this transform or another one of its environment

    @property
    def initialized(self) -> bool:
        """Whether there are statistics."""
        return self.loc is not None and self.scale is not None

    def init_stats(
        self,
        num_iter: int,
        reduce_dim: int | Sequence[int] | None = None,
        cat_dim: int | None = None,
        key: NestedKey | None = None,
        keep_dims: Sequence[int] | None = None,
    ) -> None:
        """Measure `loc` and `scale` with random actions in the environment of the transform.

        The values are those that this transform reads, ``[*B, T, ...]``.

        Args:
            num_iter: number of steps.
            reduce_dim: dimensions over which mean and standard deviation are taken; all of the batch and time if None.
            cat_dim: accepted for TorchRL's sake; steps are always along the last batch dimension.
            key: entry whose statistics are taken; needed if there are several.
            keep_dims: dimensions of `reduce_dim` that stay, with size 1.

        Raises:
            RLError: if there are statistics already, no environment, or several entries and no `key`.
        """
        del cat_dim
        num_iter = as_integer(num_iter, "ObservationNorm.init_stats", "num_iter", 1)
        env: Any = self._parent
        if self.initialized:
            raise RLError(f"{self!r} has statistics; make a new one to measure again")
        if env is None:
            raise RLError(f"{self!r} belongs to no environment: append it to one before init_stats")
        if key is None and len(self.in_keys) != 1:
            raise RLError(f"{self!r} has {len(self.in_keys)} entries: name the one to measure with key=")
        chosen = self.in_keys[0] if key is None else unwrap(key)
        if chosen not in self.in_keys:
            raise RLError(f"{self!r} does not read {key_str(chosen)}")
        self._recorded = {}
        alike = [one for one in _chain(env.transform) if isinstance(one, ObservationNorm)]
        for one in alike:
            one._measuring = True  # noqa: SLF001  # another of this class
        try:
            with torch.no_grad():
                env.rollout(num_iter, break_when_any_done=False)
            values = torch.stack(self._recorded[chosen][:num_iter], len(env.batch_size))
        finally:
            self._recorded = None
            for one in alike:
                one._measuring = False  # noqa: SLF001
        dims = list(range(len(env.batch_size) + 1)) if reduce_dim is None else reduce_dim
        dims = [dims] if isinstance(dims, int) else list(dims)
        dims = [dim % values.ndim for dim in dims]
        kept = {dim % values.ndim for dim in keep_dims or ()}
        mean = values.mean(dims, keepdim=True)
        std = (values - mean).square().mean(dims, keepdim=True).sqrt()  # torch.std warns where there are no elements
        for dim in sorted(set(dims) - kept, reverse=True):
            std, mean = std.squeeze(dim), mean.squeeze(dim)
        std = std.clamp_min(self.eps)
        self.loc, self.scale = (mean, std) if self.standard_normal else (-mean / std, 1 / std)
        env.refresh()

    def _call(self, entries: Any) -> Any:
        if self._recorded is not None:
            for key in self.in_keys:
                value = entries.get(key, None)
                if value is not None:
                    self._recorded.setdefault(key, []).append(value)
        return super()._call(entries)

    def _apply(self, value: Tensor) -> Tensor:
        if self.loc is None or self.scale is None:
            return self._unmeasured(value)
        loc, scale = self.loc.to(value.device), self.scale.to(value.device)
        return (value - loc) / scale if self.standard_normal else value * scale + loc

    def _inverse(self, value: Tensor) -> Tensor:
        if self.loc is None or self.scale is None:
            return self._unmeasured(value)
        loc, scale = self.loc.to(value.device), self.scale.to(value.device)
        return value * scale + loc if self.standard_normal else (value - loc) / scale

    def _unmeasured(self, value: Tensor) -> Tensor:
        if not self._measuring:
            raise RLError(
                f"{self!r} has no statistics: call init_stats(n) of the transform in its environment, or give loc= and"
                " scale="
            )
        return value

    leafwise = True

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, self._apply) if self.initialized else spec

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics."""
        return {"loc": self.loc, "scale": self.scale}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over statistics, and derive the specs again."""
        own = self.loc.device if self.loc is not None else None if self._parent is None else self._parent.device
        saved = (state["loc"], state["scale"])
        self.loc, self.scale = (None if one is None else one.to(own) for one in saved)
        if self._parent is not None:
            self._parent.refresh()


def _chain(transform: Any) -> list[Any]:
    return transform.transforms if isinstance(transform, Compose) else [transform]
