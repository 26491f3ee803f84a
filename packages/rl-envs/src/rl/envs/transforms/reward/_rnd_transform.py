"""`RNDTransform`: intrinsic rewards of random network distillation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.core.specs import Unbounded
from rl.envs.transforms._specs import Specs
from rl.envs.transforms.normalize._running_stats import RunningStats, StatisticsTransform

__all__ = ["RNDTransform"]


class RNDTransform(StatisticsTransform):
    """Writes an intrinsic reward: the error of a predictor of the features that a fixed random network gives.

    Burda et al., "Exploration by random network distillation", 2018, sections 2.2 and 2.4: the mean squared difference
    of the features of the next observation, divided by its running standard deviation. The networks run without
    gradients; `RNDLoss` of rl-objectives trains the predictor on the same networks. The loss reads observations as they
    are in the batch: normalize them with `VecNorm` before, and give ``normalize_obs=False``.

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
        SpecError: if there is not one key of each kind.

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
            raise SpecError(
                f"RNDTransform reads one observation and writes one reward, got in_keys={self.in_keys} and"
                f" out_keys={self.out_keys}; join observations with CatTensors before"
            )
        self.target_network = target_network.requires_grad_(requires_grad=False)
        self.predictor_network = predictor_network
        self.normalize_obs, self.normalize_reward = normalize_obs, normalize_reward
        self.obs_clip, self.reward_clip = obs_clip, reward_clip
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
        """A value in running standard deviations, of an observation around its mean, which are updated before."""
        stats = self._stats.get(name)
        if stats is None:
            return value
        if not self._frozen:
            stats.update(value.detach(), moved)
        centred = value - stats.mean if name == "obs" else value
        return (centred / stats.std(1e-4)).to(value.dtype).clamp(-limit, limit)

    def transform_specs(self, specs: Specs) -> None:
        """Add the reward, and make the statistics."""
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
