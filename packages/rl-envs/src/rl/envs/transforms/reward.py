"""Transforms of rewards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.arguments import as_number, foreign_arguments, one_of
from rl.core.errors import ArgumentError, ContractError, ShapeError, SpecError
from rl.core.keys import NestedKey, as_tuple, key_str, unwrap
from rl.core.specs import Bounded, TensorSpec, Unbounded
from rl.envs.base._specs import leaf_keys
from rl.envs.transforms._base import Transform
from rl.envs.transforms._maps import mapped_spec
from rl.envs.transforms._specs import Specs, as_values, from_root
from rl.envs.transforms.normalize import RunningStats, StatisticsTransform

__all__ = [
    "BinarizeReward",
    "LineariseRewards",
    "RNDTransform",
    "RewardClipping",
    "RewardScaling",
    "RewardSum",
    "SignTransform",
    "SuccessReward",
    "TargetReturn",
    "TeamReward",
]


class BinarizeReward(Transform):
    """Replaces rewards by 1 where they are positive, and by 0 elsewhere, in the same dtype.

    Args:
        in_keys: Rewards; ``reward`` if None.
        out_keys: Results; `in_keys` if None.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), BinarizeReward())
        >>> env.rollout(2)["next", "reward"].flatten()
        tensor([1., 1.])
    """

    def __init__(self, in_keys: Iterable[NestedKey] | None = None, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)

    def _apply(self, value: Tensor) -> Tensor:
        return (value > 0).to(value.dtype)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Bounded(0, 1, shape=spec.shape, dtype=spec.dtype, device=spec.device)


class LineariseRewards(Transform):
    """Weighted sum of the rewards of several objectives: ``[*B, n]`` to ``[*B, 1]``.

    Args:
        in_keys: Rewards with one element for each objective.
        out_keys: Results; `in_keys` if None.
        weights: One for each objective; ones if None.

    Raises:
        ShapeError: If there is not one weight for each objective.

    Example:
        >>> from tensordict import TensorDict
        >>> batch = TensorDict({"next": {"reward": torch.tensor([[1.0, 2.0]])}}, [1])
        >>> LineariseRewards(["reward"], weights=[1.0, 10.0])(batch)["next", "reward"]
        tensor([[21.]])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey],
        out_keys: Iterable[NestedKey] | None = None,
        *,
        weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__(in_keys, out_keys)
        self.weights = None if weights is None else torch.as_tensor(weights)

    def _apply(self, value: Tensor) -> Tensor:
        if self.weights is None:
            return value.sum(-1, keepdim=True)
        return (value * self.weights.to(value)).sum(-1, keepdim=True)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if self.weights is not None and spec.shape[-1:] != self.weights.shape:
            raise ShapeError(f"{self!r} has {self.weights.numel()} weights for a reward {list(spec.shape)}")
        return Unbounded((*spec.shape[:-1], 1), dtype=spec.dtype, device=spec.device)


class RewardClipping(Transform):
    """Clips rewards to an interval.

    Args:
        clamp_min: Smallest reward; no limit if None.
        clamp_max: Largest reward; no limit if None.
        in_keys: Rewards; ``reward`` if None.
        out_keys: Results; `in_keys` if None.

    Raises:
        ArgumentError: If there is no limit, or `clamp_min` is above `clamp_max`.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), RewardClipping(-1, 1))
        >>> env.rollout(5)["next", "reward"].min().item() >= -1
        True
    """

    def __init__(
        self,
        clamp_min: float | None = None,
        clamp_max: float | None = None,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)
        if (clamp_min is None and clamp_max is None) or (
            clamp_min is not None and clamp_max is not None and clamp_min > clamp_max
        ):
            raise ArgumentError(
                f"RewardClipping needs clamp_min, clamp_max or both, in this order; got {clamp_min} and {clamp_max}"
            )
        self.clamp_min, self.clamp_max = clamp_min, clamp_max

    def _apply(self, value: Tensor) -> Tensor:
        return value.clamp(self.clamp_min, self.clamp_max)

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        if isinstance(spec, Bounded) or self.clamp_min is None or self.clamp_max is None:
            return mapped_spec(spec, self._apply)
        return Bounded(self.clamp_min, self.clamp_max, shape=spec.shape, dtype=spec.dtype, device=spec.device)


class RewardScaling(Transform):
    """Affine map of rewards: ``reward * scale + loc``, or ``(reward - loc) / scale`` if `standard_normal`.

    Args:
        loc: Number or tensor.
        scale: Number or tensor.
        in_keys: Rewards; ``reward`` if None.
        out_keys: Results; `in_keys` if None.
        standard_normal: Whether the first of the two maps is used.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), RewardScaling(loc=8.0, scale=0.1))
        >>> bool((env.rollout(3)["next", "reward"] > 6).all())
        True
    """

    def __init__(
        self,
        loc: float | Tensor,
        scale: float | Tensor,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        *,
        standard_normal: bool = False,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys)
        self.loc, self.scale = (
            as_values(value, "RewardScaling", name) for name, value in (("loc", loc), ("scale", scale))
        )
        if standard_normal and not bool(self.scale.all()):
            raise ArgumentError(f"RewardScaling: scale must not be 0 with standard_normal, got {scale}")
        self.standard_normal = standard_normal

    def _apply(self, value: Tensor) -> Tensor:
        loc, scale = self.loc.to(value), self.scale.to(value)
        return (value - loc) / scale if self.standard_normal else value * scale + loc

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return mapped_spec(spec, self._apply)


@foreign_arguments()
class RewardSum(Transform):
    """Adds up rewards from the start of each episode, undiscounted.

    Reads ``("next", "reward")``; writes ``episode_reward`` at the root (rewards before the step) and under ``next``
    (with the step's), both with the shape and dtype of the reward.

    Args:
        in_keys: Rewards, without ``next``; all of the environment if None. On a batch also with ``next``: then the sum
            with the step's reward is written to the out key alone.
        out_keys: Keys of the sums; ``episode_`` before the last part of each reward's key if None.

    Raises:
        ArgumentError: If the lists differ in length.
        SpecError: If a reward does not exist.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(seed=0), RewardSum())
        >>> data = env.rollout(3)
        >>> bool(torch.isclose(data["next", "episode_reward"][-1], data["next", "reward"].sum()))
        True
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, in_keys: Iterable[NestedKey] | None = None, out_keys: Iterable[NestedKey] | None = None) -> None:
        super().__init__()
        self.in_keys = ["reward"] if in_keys is None else [unwrap(key) for key in in_keys]
        self._every = in_keys is None
        self._named = None if out_keys is None else [unwrap(key) for key in out_keys]
        self._set_out_keys()

    def _set_out_keys(self) -> None:
        sums = [unwrap((*as_tuple(key)[:-1], f"episode_{as_tuple(key)[-1]}")) for key in self.in_keys]
        self.out_keys = sums if self._named is None else self._named
        if len(self.out_keys) != len(self.in_keys):
            raise ArgumentError(f"RewardSum has in_keys {self.in_keys} and out_keys {self.out_keys}: pass one for each")

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for out, zero in self._zeros.items():
            root[out] = zero.clone()
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            outcome[out] = from_root(root, out, self) + outcome[key]
        return outcome

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the sums of a batch ``[*B, T]`` in time order; its first step counts as the start of an episode.

        Reads ``("next", reward)`` and ``("next", "done")``, writes the sums under ``next`` and at the root; for an in
        key with ``next``, those with the step's reward to its out key.

        Raises:
            ContractError: If one is missing.
        """
        out = tensordict.copy()
        outcome = out.get("next", None)
        for key, name in zip(self.in_keys, self.out_keys, strict=True):
            of_batch = as_tuple(key)[0] == "next"
            path = as_tuple(key)[1:] if of_batch else as_tuple(key)
            reward = None if outcome is None else outcome.get(path, None)
            done = None if outcome is None else outcome.get((*path[:-1], "done"), None)
            if reward is None or done is None:
                raise ContractError(f"RewardSum reads {('next', *path)} and the 'done' beside it in a batch")
            dim = tensordict.ndim - 1
            total = torch.zeros_like(reward.select(dim, 0))
            before, after = [], []
            for step, over in zip(reward.unbind(dim), done.unbind(dim), strict=True):
                before.append(total)
                after.append(total + step)
                total = torch.where(over, torch.zeros_like(total), after[-1])
            if not of_batch:
                out.set(name, torch.stack(before, dim))
            out.set(name if of_batch else ("next", *as_tuple(name)), torch.stack(after, dim))
        return out

    def transform_specs(self, specs: Specs) -> None:
        """Add the sums to the observation."""
        if self._every:
            self.in_keys = leaf_keys(specs.reward)
            self._set_out_keys()
        self._zeros: dict[NestedKey, Tensor] = observe_rewards(self, specs)


def observe_rewards(transform: Transform, specs: Specs) -> dict[NestedKey, Tensor]:
    """Add an observation like each reward that a transform reads, and return their zeros by out key.

    Raises:
        SpecError: If the environment lacks one of the rewards.
    """
    zeros: dict[NestedKey, Tensor] = {}
    for key, out in zip(transform.in_keys, transform.out_keys, strict=True):
        one = specs.reward.get(key, None)
        if one is None:
            raise SpecError(
                f"{type(transform).__name__} reads the reward {key_str(key)}; the environment's are"
                f" {leaf_keys(specs.reward)}"
            )
        spec = Unbounded(one.shape, dtype=one.dtype, device=one.device)
        specs.add("observation", out, spec, transform)
        zeros[out] = spec.expand(*specs.batch_size, *one.shape).zero()
    return zeros


class RNDTransform(StatisticsTransform):
    """Writes an intrinsic reward: the error of a predictor of the features that a fixed random network computes.

    Burda et al., "Exploration by random network distillation", 2018, sections 2.2 and 2.4: the mean squared difference
    of the features of the next observation, divided by its running standard deviation. The networks run without
    gradients; `RNDLoss` of rl-objectives trains the predictor on the same networks. The loss reads observations as they
    are in the batch: normalize them with `VecNorm` before, and pass ``normalize_obs=False``.

    Reads the next observation ``[*B, ...]``; writes ``intrinsic_reward`` beside the reward, float32 ``[*B, 1]``. Put it
    outside of a `ParallelEnv`, so that it has the networks that are trained.

    Args:
        target_network: Module from observations to features ``[*B, d]``; its parameters need no gradient from now on.
        predictor_network: Module from observations to features of the same shape.
        in_keys: Key of the observation; ``["observation"]`` if None.
        out_keys: Key of the intrinsic reward; ``["intrinsic_reward"]`` if None.
        normalize_obs: Whether networks get ``(x - mean) / std`` with running statistics, limited to `obs_clip`.
        normalize_reward: Whether the error is divided by its running standard deviation and limited to `reward_clip`.
        obs_clip: Largest size of a normalized observation, in standard deviations.
        reward_clip: Largest normalized reward.

    Raises:
        ArgumentError: If there is not one key of each kind.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> env = TransformedEnv(PendulumEnv(), RNDTransform(nn.Linear(3, 8), nn.Linear(3, 8)))
        >>> env.rollout(4)["next", "intrinsic_reward"].shape
        torch.Size([4, 1])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        target_network: nn.Module,
        predictor_network: nn.Module,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        *,
        normalize_obs: bool = True,
        normalize_reward: bool = True,
        obs_clip: float = 5.0,
        reward_clip: float = 5.0,
    ) -> None:
        super().__init__(
            ["observation"] if in_keys is None else in_keys, ["intrinsic_reward"] if out_keys is None else out_keys
        )
        if len(self.in_keys) != 1 or len(self.out_keys) != 1:
            raise ArgumentError(
                f"RNDTransform reads one observation and writes one reward, got in_keys={self.in_keys} and"
                f" out_keys={self.out_keys}; join observations with CatTensors before"
            )
        self.target_network = target_network.requires_grad_(requires_grad=False)
        self.predictor_network = predictor_network
        self.normalize_obs, self.normalize_reward = normalize_obs, normalize_reward
        self.obs_clip = as_number(obs_clip, "RNDTransform", "obs_clip", above=0)
        self.reward_clip = as_number(reward_clip, "RNDTransform", "reward_clip", above=0)
        self._stats: dict[str, RunningStats] = {}

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        """Nothing: a reward belongs to a step."""
        del mask
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        moved = root.get("_step", None)
        observation = self._scale("obs", outcome[self.in_keys[0]].float(), moved, self.obs_clip)
        error = self._error(observation)
        outcome[self.out_keys[0]] = self._scale("reward", error, moved, self.reward_clip)
        return outcome

    def _error(self, observation: Tensor) -> Tensor:
        with torch.no_grad():
            features = self.predictor_network(observation)
            return (features - self.target_network(observation)).square().mean(-1, keepdim=True)

    def _scale(self, name: str, value: Tensor, moved: Tensor | None, limit: float) -> Tensor:
        """Return a value in running standard deviations, an observation around its mean; they are updated first."""
        stats = self._stats.get(name)
        if stats is None:
            return value
        if not self._frozen:
            stats.update(value.detach(), moved)
        centred = value - stats.mean if name == "obs" else value
        return (centred / stats.std(1e-4)).to(value.dtype).clamp(-limit, limit)

    def transform_specs(self, specs: Specs) -> None:
        """Add the reward, and create the statistics."""
        (key,), (out,) = self.in_keys, self.out_keys
        seen = specs.written(key, self)[0][key]
        reward = self._error(seen.zero().float().unsqueeze(0)).squeeze(0)
        specs.add("reward", out, Unbounded(reward.shape, dtype=reward.dtype, device=specs.device), self)
        shapes = {"obs": seen.shape} if self.normalize_obs else {}
        shapes |= {"reward": reward.shape} if self.normalize_reward else {}
        for name, shape in shapes.items():
            stats = self._stats.get(name)
            if stats is None:
                self._make(name, shape, specs.device)
            elif stats.mean.shape != shape:
                raise SpecError(f"{self!r} has statistics of {list(stats.mean.shape)} for {list(shape)}")
            elif specs.device is not None:  # loaded before it had an environment
                stats.to(specs.device)

    def _make(self, name: str, shape: torch.Size, device: torch.device | None = None) -> None:
        self._stats[name] = RunningStats(shape, 1.0, count=1e-4, device=device)

    # ---- statistics

    def to(self, device: torch.device | str | int) -> Self:
        """Move the networks and the statistics to a device, and return the transform."""
        for network in (self.target_network, self.predictor_network):
            network.to(device)
        for stats in self._stats.values():
            stats.to(device)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Return the networks' states and the statistics."""
        return {
            "target_network": self.target_network.state_dict(),
            "predictor_network": self.predictor_network.state_dict(),
            "frozen": self._frozen,
            "stats": {name: stats.state_dict() for name, stats in self._stats.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        for name in ("target_network", "predictor_network"):
            getattr(self, name).load_state_dict(state[name])
        self._frozen = state["frozen"]
        for name, stats in state["stats"].items():
            if name not in self._stats:
                self._make(name, stats["mean"].shape)
            self._stats[name].load_state_dict(stats)


class SignTransform(Transform):
    """Replaces entries by their sign: -1, 0 or 1.

    Args:
        in_keys: Entries, for example ``["reward"]``.
        out_keys: Results; `in_keys` if None.
        in_keys_inv: Entries of the environment's input that are replaced by the sign of the caller's.
        out_keys_inv: The caller's entries; `in_keys_inv` if None.

    Example:
        >>> from rl.envs import PendulumEnv, TransformedEnv
        >>> TransformedEnv(PendulumEnv(seed=0), SignTransform(["reward"])).rollout(2)["next", "reward"].flatten()
        tensor([-1., -1.])
    """

    def __init__(
        self,
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
        in_keys_inv: Iterable[NestedKey] = (),
        out_keys_inv: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys, out_keys, in_keys_inv, out_keys_inv)

    def _apply(self, value: Tensor) -> Tensor:
        return value.sign()

    _inverse = _apply

    def _transform_spec(self, spec: TensorSpec) -> TensorSpec:
        return Bounded(-1, 1, shape=spec.shape, dtype=spec.dtype, device=spec.device)


class SuccessReward(Transform):
    """Writes a sparse reward: `reward` in the steps where a success flag is set, otherwise 0.

    Reads an entry under ``next``, ``[*B]`` or of the reward's shape: a bool, or a number other than 0 for a success;
    writes the reward, in its dtype.

    Args:
        success_key: The flag.
        reward_key: The reward that is replaced.
        reward: Reward of a success.

    Raises:
        SpecError: If flag and reward differ in their number of elements.

    Example:
        >>> from rl.envs import GridWorldEnv, TransformedEnv
        >>> env = TransformedEnv(GridWorldEnv(size=(1, 2)), SuccessReward("terminated"))
        >>> env.rollout(100)["next", "reward"].sum().item()
        1.0
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self, success_key: NestedKey = "success", reward_key: NestedKey = "reward", *, reward: float = 1.0
    ) -> None:
        super().__init__([success_key], [reward_key])
        self.success_key, self.reward_key, self.reward = unwrap(success_key), unwrap(reward_key), reward

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return root

    def _call(self, entries: Any) -> Any:
        reward = entries.get(self.reward_key, None)
        if reward is not None:
            success = entries[self.success_key].reshape(reward.shape)
            entries[self.reward_key] = torch.where(success != 0, self.reward, 0.0).to(reward.dtype)
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Give the reward its bounds."""
        flag = specs.written(self.success_key, self)[0][self.success_key]
        for spec in specs.written(self.reward_key, self):
            old = spec[self.reward_key]
            if flag.shape.numel() != old.shape.numel():
                raise SpecError(
                    f"{self!r} reads one flag for each reward; {key_str(self.success_key)} is {list(flag.shape)},"
                    f" {key_str(self.reward_key)} {list(old.shape)}: add up the rewards before, or name another flag"
                )
            low, high = min(self.reward, 0.0), max(self.reward, 0.0)
            spec[self.reward_key] = Bounded(low, high, shape=old.shape, dtype=old.dtype, device=old.device)


@foreign_arguments()
class TargetReturn(Transform):
    """Writes the return that is still to be achieved in an episode, which a policy reads as its goal.

    Reads ``("next", "reward")``; writes ``target_return`` at the root and under ``next``, with the shape and dtype of
    the reward. Chen et al., "Decision Transformer", 2021.

    Args:
        target_return: The return at the start of each episode.
        mode: Mode: ``"reduce"`` subtracts each reward, ``"constant"`` does not.
        in_keys: Rewards, without ``next``; all of the environment if None.
        out_keys: Keys of the targets; ``target_return`` next to each reward if None.

    Raises:
        ArgumentError: If the mode is another, or the lists differ in length.
        SpecError: If a reward does not exist.

    Example:
        >>> from rl.envs import GymEnv, TransformedEnv
        >>> env = TransformedEnv(GymEnv("CartPole-v1"), TargetReturn(10.0))
        >>> env.rollout(3)["target_return"].flatten()
        tensor([10.,  9.,  8.])
    """

    leafwise: ClassVar[bool] = True

    def __init__(
        self,
        target_return: float,
        mode: Literal["reduce", "constant"] = "reduce",
        in_keys: Iterable[NestedKey] | None = None,
        out_keys: Iterable[NestedKey] | None = None,
    ) -> None:
        super().__init__(["reward"] if in_keys is None else in_keys)
        one_of(mode, "TargetReturn", "mode", ("reduce", "constant"))
        self.target_return, self.mode = as_number(target_return, "TargetReturn", "target_return"), mode
        self._every = in_keys is None
        self._named = None if out_keys is None else self._key_lists(out_keys, None)[0]
        self._zeros: dict[NestedKey, Tensor] = {}
        self._set_out_keys()

    def _set_out_keys(self) -> None:
        beside = [unwrap((*as_tuple(key)[:-1], "target_return")) for key in self.in_keys]
        self.out_keys = beside if self._named is None else self._named
        if len(set(self.out_keys)) != len(self.in_keys):
            raise ArgumentError(
                f"TargetReturn has in_keys {self.in_keys} and out_keys {self.out_keys}: pass one for each"
            )

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        for out, zero in self._zeros.items():
            root[out] = torch.full_like(zero, self.target_return)
        return root

    def _step(self, root: Any, outcome: Any) -> Any:
        for key, out in zip(self.in_keys, self.out_keys, strict=True):
            before = from_root(root, out, self)
            outcome[out] = before - outcome[key] if self.mode == "reduce" else before.clone()
        return outcome

    def transform_specs(self, specs: Specs) -> None:
        """Add the targets to the observation."""
        if self._every:
            self.in_keys = leaf_keys(specs.reward)
            self._set_out_keys()
        self._zeros = observe_rewards(self, specs)


class TeamReward(Transform):
    """Writes the mean of the rewards of all agents as the reward of the team; those of the agents stay.

    Args:
        in_keys: Keys of the rewards of groups of agents, ``[*B, n_agents, 1]`` each.
        out_key: Key of the reward of the team, ``[*B, 1]``.

    Raises:
        ArgumentError: if there is no key.
        SpecError: if the environment lacks a reward, or a reward has no dimension of agents.

    Example:
        >>> from tensordict import TensorDict
        >>> rewards = TensorDict(agents={"reward": torch.tensor([[[1.0], [2.0]]])}, batch_size=[1])
        >>> TeamReward([("agents", "reward")])(TensorDict(next=rewards, batch_size=[1]))["next", "reward"]
        tensor([[1.5000]])
    """

    leafwise: ClassVar[bool] = True

    def __init__(self, in_keys: Iterable[NestedKey], out_key: NestedKey = "reward") -> None:
        super().__init__(in_keys, [out_key])
        if not self.in_keys:
            raise ArgumentError("TeamReward got no in_keys; it needs the rewards of at least one group of agents")

    def _reset(self, root: Any, mask: Tensor | None = None) -> Any:
        del mask
        return root  # there is no reward before the first step

    def _call(self, entries: Any) -> Any:
        found = [entries.get(key, None) for key in self.in_keys]
        if all(reward is None for reward in found):  # the root of a batch
            return entries
        entries[self.out_keys[0]] = torch.cat(found, -2).mean(-2)  # over the agents of all groups
        return entries

    def transform_specs(self, specs: Specs) -> None:
        """Add the reward of the team."""
        for key in self.in_keys:
            spec = specs.written(key, self)[0][key]
            if len(spec.shape) != 2:
                raise SpecError(f"{self!r} reads rewards [n_agents, 1], and {key_str(key)} is {list(spec.shape)}")
        dtype, device = specs.reward[self.in_keys[0]].dtype, specs.reward.device
        specs.reward[self.out_keys[0]] = Unbounded(1, dtype=dtype, device=device)
