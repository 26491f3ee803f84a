"""`VecNorm`: observations and rewards normalized with running statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.errors import RLError, SpecError
from rl.core.keys import NestedKey, key_str, unwrap
from rl.core.specs import TensorSpec, Unbounded
from rl.envs import _foreign
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._compose import Compose
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.normalize._observation_norm import ObservationNorm
from rl.envs.transforms.normalize._running_stats import RunningStats, StatisticsTransform, share_all

__all__ = ["VecNorm"]


@_foreign.vec_norm
class VecNorm(StatisticsTransform):
    """Normalizes entries with the running mean and standard deviation of all values so far: ``(x - mean) / std``.

    Every reset and step updates the statistics before it normalizes, over all elements of the batch; in a partial
    reset those of the mask. `freeze` stops the updates, as for an evaluation. A batch that is passed to the transform
    is normalized without an update.

    Processes share statistics through `shared_td` (see `build_td_for_shared_vecnorm`), environments of one process
    through the same `shared_td`. ``clone()`` copies the statistics, unless they are shared.

    Args:
        in_keys: entries, for example ``["observation", "reward"]``; all observations and rewards of a floating dtype
            if None.
        out_keys: results; `in_keys` if None.
        shared_td: statistics that others update, too.
        lock: held while shared statistics are read and written.
        decay: weight of earlier values is multiplied by it at each update; 1 weights all equally.
        eps: smallest standard deviation.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv([8], seed=0), VecNorm(["observation"]))
        >>> _ = env.rollout(100, break_when_any_done=False)
        >>> env.transform.freeze().is_frozen
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        shared_td: TensorDictBase | None = None,
        *,
        lock: AbstractContextManager[Any] | None = None,
        decay: float = 0.9999,
        eps: float = 1e-4,
    ) -> None:
        super().__init__(() if in_keys is None else in_keys, out_keys)
        if not 0 < decay <= 1:
            raise SpecError(f"VecNorm: decay must be in (0, 1], got {decay}")
        self._every = in_keys is None
        self.decay, self.eps = decay, eps
        self._shared, self._lock = shared_td, lock or nullcontext()
        self._stats: dict[NestedKey, RunningStats] = {}

    # ---- in an environment

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        self._update(root, mask)
        return self._call(root)

    def _step(self, root: Any, outcome: Any) -> Any:
        mask = root.get("_step", None)
        self._update(outcome, mask)
        return self._call(outcome)

    def _update(self, entries: Any, mask: Tensor | None) -> None:
        if self._frozen:
            return
        with self._lock:
            for key in self.in_keys:
                value = entries.get(key, None)
                if value is None:
                    continue
                self._stats[key].update(value.detach(), mask)

    def _call(self, entries: Any) -> Any:
        with self._lock:
            for key, out in zip(self.in_keys, self.out_keys, strict=True):
                value = entries.get(key, None)
                if value is not None:
                    stats = self._known(key)
                    entries[out] = ((value - stats.mean) / stats.std(self.eps)).to(value.dtype)
        return entries

    def _known(self, key: NestedKey) -> RunningStats:
        if key not in self._stats:
            raise RLError(f"{self!r} has no statistics of {key!r}: append it to an environment first")
        return self._stats[key]

    def transform_specs(self, specs: Specs) -> None:
        """Make the statistics, and remove the bounds of the entries."""
        if self._every:
            found = [(spec, key) for spec in (specs.observation, specs.reward) for key in leaf_keys(spec)]
            self.in_keys = [key for spec, key in found if _is_floating(spec[key])]
            self.out_keys = list(self.in_keys)
        for key in self.in_keys:
            shape = specs.written(key, self)[0][key].shape
            if key not in self._stats:
                stats = self._stats[key] = RunningStats(shape, self.decay, device=specs.device)
                if self._shared is not None:
                    stats.share(self._shared.get(key))
            elif self._stats[key].mean.shape != shape:
                raise SpecError(f"{self!r} has statistics of {list(self._stats[key].mean.shape)} for {list(shape)}")
            elif self._shared is None and specs.device is not None:  # loaded before it had an environment
                self._stats[key].to(specs.device)
        super().transform_specs(specs)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if not _is_floating(spec):
            raise SpecError(
                f"{self!r} normalizes floating-point entries, got {spec.dtype}: use DTypeCastTransform first"
            )
        return Unbounded(spec.shape, dtype=spec.dtype, device=spec.device)

    # ---- statistics

    @property
    def is_frozen(self) -> bool:
        """Whether updates are stopped."""
        return self._frozen

    def frozen_copy(self) -> VecNorm:
        """Return a frozen transform with a copy of the statistics."""
        return self.clone().freeze()

    def share_memory(self) -> None:
        """Move the statistics into memory that other processes see."""
        for stats in self._stats.values():
            stats.share_memory()

    def share_statistics(self, other: VecNorm) -> None:
        """Use the statistics of `other` from now on: what one of both updates, the other sees.

        Raises:
            SpecError: if the entries differ.
        """
        share_all(self, self._stats, other._stats)

    @property
    def loc(self) -> TensorDict:
        """Mean of each entry."""
        return TensorDict({key: stats.mean.clone() for key, stats in self._stats.items()})

    @property
    def scale(self) -> TensorDict:
        """Standard deviation of each entry."""
        return TensorDict({key: stats.std(self.eps) for key, stats in self._stats.items()})

    def denorm(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return a batch with the values of the environment, at the root and in ``next``."""
        out = tensordict.copy()
        if "next" in out:
            out["next"] = out["next"].copy()
        parts: list[Any] = [out, out["next"]] if "next" in out else [out]
        for part in parts:
            for key, name in zip(self.in_keys, self.out_keys, strict=True):
                value = part.get(name, None)
                if value is not None:
                    stats = self._known(key)
                    part.set(name, (value * stats.std(self.eps) + stats.mean).to(value.dtype))
        return out

    def to_observation_norm(self) -> Compose | ObservationNorm:
        """Return the present statistics as `ObservationNorm`, one for each entry."""
        parts = [
            ObservationNorm(
                stats.mean.float(), stats.std(self.eps).float(), [key], [out], standard_normal=True, eps=self.eps
            )
            for (key, out) in zip(self.in_keys, self.out_keys, strict=True)
            for stats in [self._known(key)]
        ]
        return parts[0] if len(parts) == 1 else Compose(*parts)

    @staticmethod
    def build_td_for_shared_vecnorm(env: Any, keys: Iterable[NestedKey] | None = None) -> TensorDict:
        """Return statistics in shared memory, for the `shared_td` of environments in several processes.

        Args:
            env: an environment with the specs of all of them.
            keys: entries; all observations and rewards of a floating dtype if None.

        Raises:
            SpecError: if the environment does not write one of the keys.
        """
        parts = (env.observation_spec_unbatched, env.full_reward_spec_unbatched)
        specs = {key: part[key] for part in parts for key in leaf_keys(part)}
        floating = [key for key, spec in specs.items() if _is_floating(spec)]
        chosen = floating if keys is None else [unwrap(key) for key in keys]
        absent = [key_str(key) for key in chosen if key not in specs]
        if absent:
            raise SpecError(
                f"VecNorm.build_td_for_shared_vecnorm: the environment does not write {', '.join(absent)}; it has"
                f" {list(specs)}"
            )
        shared = TensorDict({key: TensorDict(RunningStats(specs[key].shape, 1.0).tensors) for key in chosen})
        return shared.share_memory_()

    def to(self, device: torch.device | str | int) -> Self:
        for stats in self._stats.values():
            stats.to(device)
        return self

    def clone(self) -> Self:
        """Return a copy that belongs to no environment; shared statistics stay shared."""
        out = type(self)(
            None if self._every else self.in_keys,
            None if self._every else self.out_keys,
            self._shared,
            lock=None if isinstance(self._lock, nullcontext) else self._lock,
            decay=self.decay,
            eps=self.eps,
        )
        out.in_keys, out.out_keys, out._frozen = list(self.in_keys), list(self.out_keys), self._frozen  # noqa: SLF001
        for key, stats in self._stats.items():
            copied = out._stats[key] = RunningStats(stats.mean.shape, self.decay, device=stats.mean.device)  # noqa: SLF001
            copied.share(stats.tensors if self._shared is not None else stats.state_dict())
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the statistics by key, and whether they are frozen."""
        return {"frozen": self._frozen, "stats": [[key, stats.state_dict()] for key, stats in self._stats.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._frozen = state["frozen"]
        for key, stats in state["stats"]:
            name = tuple(key) if isinstance(key, list) else key
            if name not in self._stats:
                self._stats[name] = RunningStats(stats["mean"].shape, self.decay)
            self._stats[name].load_state_dict(stats)


def _is_floating(spec: TensorSpec) -> bool:
    return spec.dtype is not None and spec.dtype.is_floating_point
