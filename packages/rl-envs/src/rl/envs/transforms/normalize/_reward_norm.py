"""`RewardNorm`: rewards divided by the running scale of the return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from rl.core.errors import RLError, SpecError
from rl.core.keys import NestedKey, as_tuple, unwrap
from rl.core.specs import TensorSpec, Unbounded
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.normalize._running_stats import RunningStats, StatisticsTransform, share_all

__all__ = ["RewardNorm"]


class RewardNorm(StatisticsTransform):
    """Divides rewards by the running standard deviation of the discounted return, without shifting them.

    The return is that of the rewards so far, ``R = gamma * R + reward`` from 0 at the start of each episode, as in
    Stable-Baselines3's ``VecNormalize`` and OpenAI Baselines. `freeze` stops the updates. Engstrom et al.,
    "Implementation matters in deep policy gradients", 2020, algorithm 1.

    Args:
        in_keys: rewards; ``["reward"]`` if None.
        out_keys: results; `in_keys` if None.
        gamma: discount of the return.
        eps: smallest standard deviation.
        clip: largest absolute value of the result; no limit if None.

    Raises:
        SpecError: if `gamma` is not in [0, 1].

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv([8], seed=0), RewardNorm(gamma=0.9))
        >>> env.rollout(100)["next", "reward"].abs().max().item() < 10
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        *,
        gamma: float = 0.99,
        eps: float = 1e-4,
        clip: float | None = 10.0,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)
        if not 0 <= gamma <= 1:
            raise SpecError(f"RewardNorm: gamma must be in [0, 1], got {gamma}")
        self.gamma, self.eps, self.clip = gamma, eps, clip
        self._stats: dict[NestedKey, RunningStats] = {}
        self._returns: dict[NestedKey, Tensor] = {}

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        for key, total in self._returns.items():
            where = None if mask is None else mask.reshape(*mask.shape, *[1] * (total.ndim - mask.ndim))
            self._returns[key] = torch.zeros_like(total) if where is None else total.masked_fill(where, 0)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key in self.in_keys:
            reward = outcome[key].detach()
            total = self._returns[key] * self.gamma + reward
            if not self._frozen:
                self._stats[key].update(total, root.get("_step", None))
            done = outcome.get(unwrap((*as_tuple(key)[:-1], "done")), None)
            self._returns[key] = total if done is None else torch.where(done, torch.zeros_like(total), total)
        return self._call(outcome)

    def _call(self, entries: Any) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            value = entries.get(key, None)
            if value is not None:
                if key not in self._stats:
                    raise RLError(f"{self!r} has no statistics: append it to an environment, which makes them")
                scaled = (value / self._stats[key].std(self.eps)).to(value.dtype)
                entries[out] = scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Make the statistics, and remove the bounds of the rewards."""
        for key in self.in_keys:
            spec = specs.written(key, self)[0][key]
            shape = (*specs.batch_size, *spec.shape)
            if key not in self._stats:
                self._stats[key] = RunningStats(spec.shape, 1.0, device=specs.device)
            if key not in self._returns or self._returns[key].shape != shape:
                self._returns[key] = torch.zeros(shape, dtype=spec.dtype, device=specs.device)
        super().transform_specs(specs)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)

    def share_memory(self) -> None:
        """Move the statistics into memory that other processes see."""
        for stats in self._stats.values():
            stats.share_memory()

    def share_statistics(self, other: RewardNorm) -> None:
        """Use the statistics of `other` from now on: what one of both updates, the other sees.

        Raises:
            SpecError: if the entries differ.
        """
        share_all(self, self._stats, other._stats)

    def to(self, device: torch.device | str | int) -> Self:
        self._returns = {key: value.to(device) for key, value in self._returns.items()}
        for stats in self._stats.values():
            stats.to(device)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return statistics and unfinished returns."""
        return {
            "frozen": self._frozen,
            "stats": [stats.state_dict() for stats in self._stats.values()],
            "returns": [total.clone() for total in self._returns.values()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._frozen = state["frozen"]
        for stats, part in zip(self._stats.values(), state["stats"], strict=True):
            stats.load_state_dict(part)
        for key, total in zip(self._returns, state["returns"], strict=True):
            if total.shape == self._returns[key].shape:
                self._returns[key] = total.to(self._returns[key].device, copy=True)
