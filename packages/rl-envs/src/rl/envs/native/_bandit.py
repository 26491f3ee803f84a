"""`BanditEnv`: a multi-armed bandit in torch, batched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from rl.core.errors import SpecError
from rl.core.interfaces import Leaves
from rl.core.specs import Composite, Unbounded
from rl.envs.native._base import NativeEnv, action_index, discrete_action

__all__ = ["BanditEnv"]


class BanditEnv(NativeEnv):
    """Bandit with normally distributed rewards: the testbed of Sutton and Barto, "Reinforcement Learning", sec. 2.3.

    Each episode draws the mean reward of every arm from a standard normal distribution, or uses `means`. Reads
    ``action`` (one-hot ``[*B, arms]``, or int64 ``[*B]``) and ``means`` ``[*B, arms]``. Writes ``observation``
    ``[*B, 1]`` (zero: there is nothing to see), ``means`` (not for the policy) and ``reward`` ``[*B, 1]``, the mean of
    the arm plus noise. Episodes do not end: append `StepCounter(max_steps=1000)` for the testbed's length; trainers
    read it from `max_episode_steps`.

    Args:
        batch_size: number of bandits in each batch dimension.
        device: device of the tensors; the CPU if None.
        seed: seed of means and noise; nondeterministic if None.
        arms: number of arms.
        means: mean reward of each arm; drawn at each reset if None.
        std: standard deviation of the noise.
        categorical_action_encoding: actions are numbers instead of one-hot vectors.

    Raises:
        SpecError: if there are fewer than two arms, not one mean for each, or `std` is negative.

    Example:
        >>> env = BanditEnv(arms=2, means=[0.0, 1.0], std=0.0, categorical_action_encoding=True)
        >>> env.rollout(2, lambda td: td.set("action", torch.tensor(1)))["next", "reward"].flatten()
        tensor([1., 1.])
    """

    #: the time limit that belongs to the task; nothing here enforces it
    max_episode_steps = 1000

    def __init__(
        self,
        batch_size: Iterable[int] = (),
        device: torch.device | str | int | None = None,
        seed: int | None = None,
        *,
        arms: int = 10,
        means: Sequence[float] | None = None,
        std: float = 1.0,
        categorical_action_encoding: bool = False,
    ) -> None:
        super().__init__(batch_size, device, seed)
        if arms < 2 or (means is not None and len(means) != arms):
            count = "no means" if means is None else f"{len(means)} means"
            raise SpecError(f"BanditEnv takes at least two arms and one mean for each, got arms={arms} and {count}")
        if not std >= 0:
            raise SpecError(f"BanditEnv: std must be 0 or more, got {std}")
        self.arms, self.std = arms, std
        self._means = None if means is None else torch.tensor(means, dtype=torch.float32, device=self._generator.device)
        self._categorical = categorical_action_encoding
        self.observation_spec = Composite(observation=Unbounded(1), means=Unbounded(arms))
        self.state_spec = Composite(means=Unbounded(arms))
        self.action_spec = discrete_action(arms, categorical=categorical_action_encoding)

    def _normal(self, *shape: int) -> Tensor:
        generator = self._generator
        return torch.randn((*self.batch_size, *shape), generator=generator, device=generator.device)

    def _reset_leaves(self, mask: Tensor | None) -> Leaves:
        del mask  # the caller ignores the other rows
        fixed = self._means
        means = self._normal(self.arms) if fixed is None else fixed.expand(*self.batch_size, self.arms).clone()
        return {"means": means, "observation": torch.zeros_like(means[..., :1]), **self._flags()}

    def _set_state_leaves(self, state: Leaves) -> Leaves:
        return {"means": state["means"], "observation": torch.zeros_like(state["means"][..., :1])}

    def _step_leaves(self, root: Leaves) -> Leaves:
        means = root["means"]
        arm = action_index(root["action"], categorical=self._categorical).unsqueeze(-1)
        reward = means.gather(-1, arm) + self.std * self._normal(1)
        return {"means": means.clone(), "observation": torch.zeros_like(reward), "reward": reward, **self._flags()}
