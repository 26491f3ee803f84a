"""Transforms that normalize with statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Self

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor

from rl.core.arguments import as_integer, as_number, foreign_arguments
from rl.core.errors import ArgumentError, RLError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import TensorSpec, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import mapped_spec
from rl.envs.transforms._specs import Specs, as_values
from rl.envs.transforms._transformed_env import Compose

__all__ = ["ObservationNorm", "RewardNorm", "VecNorm"]


class ObservationNorm(Transform):
    """Affine map of observations: ``x * scale + loc``, or ``(x - loc) / scale`` if `standard_normal`.

    `loc` and `scale` are given, or measured with `init_stats` after the transform is in its environment; until then
    the environment cannot be stepped.

    Args:
        loc: Number or tensor; measured if None.
        scale: Number or tensor; measured if None.
        in_keys: Entries; ``["observation"]`` if None and there are no inverse keys.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries of the environment's input that get the caller's with the inverse map.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.
        standard_normal: Whether the first of the two maps is used.
        eps: Smallest scale.

    Raises:
        RLError: Where it is applied without statistics.

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
        self.standard_normal, self.eps = standard_normal, as_number(eps, "ObservationNorm", "eps", above=0)
        self.loc = None if loc is None else as_values(loc, "ObservationNorm", "loc")
        self.scale = None if scale is None else as_values(scale, "ObservationNorm", "scale").clamp_min(eps)
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
            num_iter: Number of steps.
            reduce_dim: Dimensions over which mean and standard deviation are taken; all of the batch and time if None.
            cat_dim: Accepted for TorchRL's sake; steps are always along the last batch dimension.
            key: Entry whose statistics are taken; needed if there are several.
            keep_dims: Dimensions of `reduce_dim` that stay, with size 1.

        Raises:
            RLError: If there are statistics already, no environment, or several entries and no `key`.
        """
        del cat_dim
        num_iter = as_integer(num_iter, "ObservationNorm.init_stats", "num_iter", 1)
        env: Any = self._parent
        if self.initialized:
            raise RLError(f"{self!r} has statistics; create a new one to measure again")
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
                f"{self!r} has no statistics: call init_stats(n) of the transform in its environment, or pass loc= and"
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


class StatisticsTransform(Transform):
    """Base of transforms that update statistics, unless these are frozen."""

    _frozen = False

    def freeze(self) -> Self:
        """Stop updating the statistics."""
        self._frozen = True
        return self

    def unfreeze(self) -> Self:
        """Update the statistics again."""
        self._frozen = False
        return self


class RunningStats:
    """Running mean and variance of tensors, in float64, updated in place.

    Merges batches with Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983, eq. 2.1; the
    weight of older values is multiplied by `decay` at each update.

    Args:
        shape: Shape of one value.
        decay: 1 to weight all values equally.
        count: Weight of the start values, mean 0 and variance 1.
        device: Device of the values.
    """

    def __init__(
        self,
        shape: torch.Size,
        decay: float,
        *,
        count: float = 0.0,
        device: torch.device | None = None,
    ) -> None:
        self.decay = decay
        self.tensors: dict[str, Tensor] = {
            "count": torch.full((), count, dtype=torch.float64, device=device),
            "mean": torch.zeros(shape, dtype=torch.float64, device=device),
            "square": torch.full(shape, count, dtype=torch.float64, device=device),
        }

    def share(self, tensors: TensorDictBase | Mapping[str, Tensor]) -> None:
        """Use `tensors` (``count``, ``mean``, ``square``) from now on, in place."""
        self.tensors = {name: tensors[name] for name in ("count", "mean", "square")}

    def share_memory(self) -> None:
        """Move the tensors into memory that other processes see."""
        for tensor in self.tensors.values():
            tensor.share_memory_()

    def update(self, values: Tensor, mask: Tensor | None = None) -> None:
        """Add values ``[*B, *shape]``; with a mask ``[*B, 1]`` those of its elements."""
        shape = self.mean.shape
        # Not -1: the number of rows is ambiguous where an entry has no elements.
        values = values.reshape(values.shape[: values.ndim - len(shape)].numel(), *shape)
        if mask is not None:
            values = values[mask.reshape(-1)]
        n = values.shape[0]
        if not n:
            return
        values = values.to(torch.float64)
        count, mean, square = self.tensors.values()
        batch_mean = values.mean(0)
        delta = batch_mean - mean
        old = count * self.decay
        total = old + n
        square.mul_(self.decay).add_((values - batch_mean).square().sum(0)).add_(delta.square() * (old * n / total))
        mean.add_(delta * (n / total))
        count.copy_(total)

    @property
    def mean(self) -> Tensor:
        """The mean, float64."""
        return self.tensors["mean"]

    def std(self, eps: float) -> Tensor:
        """Return the standard deviation, at least `eps`; 1 before the first value."""
        count, _, square = self.tensors.values()
        variance = torch.where(count > 0, square / count.clamp_min(1e-12), torch.ones_like(square))
        return variance.sqrt().clamp_min(eps)

    def to(self, device: torch.device | str | int) -> None:
        """Move the tensors."""
        self.tensors = {name: tensor.to(device) for name, tensor in self.tensors.items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return copies of the tensors."""
        return {name: tensor.clone() for name, tensor in self.tensors.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`, in place."""
        for name, tensor in self.tensors.items():
            tensor.copy_(state[name])


def share_all(
    transform: object, stats: Mapping[NestedKey, RunningStats], others: Mapping[NestedKey, RunningStats]
) -> None:
    """Use the tensors of `others` in `stats`.

    Raises:
        ArgumentError: If the entries or their shapes differ.
    """
    mine, theirs = ({key: list(one.mean.shape) for key, one in group.items()} for group in (stats, others))
    if mine != theirs:
        raise ArgumentError(
            f"{transform!r} has statistics of {mine}, and cannot share those of {theirs}: normalize the same"
        )
    for key, one in stats.items():
        one.share(others[key].tensors)


class RewardNorm(StatisticsTransform):
    """Divides rewards by the running standard deviation of the discounted return, without shifting them.

    The return is that of the rewards so far, ``R = gamma * R + reward`` from 0 at the start of each episode, as in
    Stable-Baselines3's ``VecNormalize`` and OpenAI Baselines. `freeze` stops the updates. Engstrom et al.,
    "Implementation matters in deep policy gradients", 2020, algorithm 1.

    Args:
        in_keys: Rewards; ``["reward"]`` if None.
        out_keys: Results; `in_keys` if None.
        gamma: Discount of the return.
        eps: Smallest standard deviation.
        clip: Largest absolute value of the result; no limit if None.

    Raises:
        ArgumentError: If `gamma` is not in [0, 1].

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
        self.gamma = as_number(gamma, "RewardNorm", "gamma", least=0, most=1)
        self.eps = as_number(eps, "RewardNorm", "eps", above=0)
        self.clip = None if clip is None else as_number(clip, "RewardNorm", "clip", above=0)
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
                    raise RLError(f"{self!r} has no statistics: append it to an environment, which creates them")
                scaled = (value / self._stats[key].std(self.eps)).to(value.dtype)
                entries[out] = scaled if self.clip is None else scaled.clamp(-self.clip, self.clip)
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Create the statistics, and remove the bounds of the rewards."""
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
            ArgumentError: If the entries differ.
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


@foreign_arguments()
class VecNorm(StatisticsTransform):
    """Normalizes entries with the running mean and standard deviation of all values so far: ``(x - mean) / std``.

    Every reset and step updates the statistics before it normalizes, over all elements of the batch; in a partial
    reset those of the mask. `freeze` stops the updates, as for an evaluation. A batch that is passed to the transform
    is normalized without an update.

    Processes share statistics through `shared_td` (see `build_td_for_shared_vecnorm`), environments of one process
    through the same `shared_td`. ``clone()`` copies the statistics, unless they are shared.

    Args:
        in_keys: Entries, for example ``["observation", "reward"]``; all observations and rewards of a floating dtype
            if None.
        out_keys: Results; `in_keys` if None.
        shared_td: Statistics that others update, too.
        lock: Held while shared statistics are read and written.
        decay: Weight of earlier values is multiplied by it at each update; 1 weights all equally.
        eps: Smallest standard deviation.

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
        decay = as_number(decay, "VecNorm", "decay", above=0, most=1)
        self._every = in_keys is None
        self.decay, self.eps = decay, as_number(eps, "VecNorm", "eps", above=0)
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
        """Create the statistics, and remove the bounds of the entries."""
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
            ArgumentError: If the entries differ.
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
            env: An environment with the specs of all of them.
            keys: Entries; all observations and rewards of a floating dtype if None.

        Raises:
            SpecError: If the environment does not write one of the keys.
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
