"""MBPO: soft actor-critic on short rollouts in a learned ensemble of the dynamics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.algorithms.sac import policy, sac_loss
from rl.trainers.config import Rule, above, at_least, checked, in_range
from rl.trainers.families import EnsembleFields, SoftConfig


@dataclass(frozen=True, kw_only=True)
class MBPOConfig(EnsembleFields, SoftConfig):
    """Model-based policy optimization; one vector of observations, bounded continuous actions.

    Janner et al., "When to trust your model: model-based policy optimization", 2019. The policy collects; every
    `model_every` frames an ensemble is fitted to all real steps, and the policy is rolled out in it from real states.
    Soft actor-critic learns from these steps.

    Args:
        frames_per_batch: Number of frames collected between two rounds of updates; `num_envs` divides it.
        utd_ratio: Number of gradient steps of actor and critics for each collected frame; 20 to 40 in the paper.
        rollouts_per_step: Number of rollouts in the ensemble for each collected frame.
        rollout_length: Number of steps of a rollout at the beginning.
        rollout_length_end: Number of steps of a rollout from `rollout_anneal_frames` on, before which it changes
            linearly.
        rollout_anneal_frames: Number of frames after which rollouts have `rollout_length_end` steps.
        real_ratio: Share of real steps in a minibatch of soft actor-critic.
        n_steps: Always 1, as steps of the ensemble are stored one by one.
        sampler: Always random.
        dataset: Not used.
        init: Not used.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> MBPOConfig(env="Pendulum-v1", rollout_length_end=15, rollout_anneal_frames=1000).rollout_steps(500)
        8
    """

    recipe: ClassVar[str] = "mbpo"
    total_frames: int = 5_000
    frames_per_batch: int = 25
    utd_ratio: float = 10.0
    rollouts_per_step: int = above(0, 400)
    rollout_length: int = above(0, 1)
    rollout_length_end: int = above(0, 1)
    rollout_anneal_frames: int = at_least(0, 0)
    real_ratio: float = in_range(0, 1, 0.05)
    n_steps: int = checked(1, Rule(lambda n: n == 1, "1, as steps of the ensemble are stored one by one"))
    sampler: str = checked("random", Rule(lambda name: name == "random", "random"))
    dataset: str = checked("", Rule(lambda name: not name, "left out: mbpo learns from its own steps"))
    init: str = checked("", Rule(lambda name: not name, "left out: mbpo starts from new networks"))

    def rollout_steps(self, frames: int) -> int:
        """Return the number of steps of a rollout after a number of frames."""
        share = min(frames / self.rollout_anneal_frames, 1.0) if self.rollout_anneal_frames else 1.0
        return round(self.rollout_length + share * (self.rollout_length_end - self.rollout_length))


def model(config: MBPOConfig, env: Any, policy: Any) -> Any:
    """Create the untrained ensemble.

    Raises:
        SpecError: If the observation is no vector.
    """
    del policy
    from rl.trainers.world_models import ensemble

    return ensemble(config, env)


MBPO = Algorithm(
    MBPOConfig,
    loop="model_based",
    policy=policy,
    model=model,
    loss=sac_loss,
    presets="rl.trainers:presets/model_based.yaml:mbpo",
)

train_mbpo = MBPO.train
