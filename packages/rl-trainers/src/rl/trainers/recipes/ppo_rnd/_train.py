"""The recipe ``ppo-rnd``: PPO with random network distillation, in the loop of `on_policy`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor

from rl.core.interfaces import Env
from rl.core.keys import ADVANTAGE, NEXT, NestedKey, as_tuple
from rl.trainers._build.device import float_outputs, mixed_precision
from rl.trainers._build.optimizer import adam, descend
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.on_policy._networks import on_policy_actor
from rl.trainers.recipes.on_policy._train import train_on_policy
from rl.trainers.recipes.ppo._train import METRICS, OUTPUTS, PPOLearner
from rl.trainers.recipes.ppo_rnd._config import PPO_RND, PPORNDConfig
from rl.trainers.recipes.ppo_rnd._intrinsic import TARGET, IntrinsicReward

__all__ = ["PPORNDLearner", "ppo_rnd_policy", "train_ppo_rnd"]


def train_ppo_rnd(config: PPORNDConfig, **options: Any) -> TrainResult:
    """Train with PPO and random network distillation.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_ppo`.

    Example:
        >>> import tempfile
        >>> config = PPORNDConfig(
        ...     env="MountainCar-v0", total_frames=256, num_envs=2, frames_per_batch=128, minibatch_size=64, epochs=1,
        ...     eval_episodes=1, final_eval_episodes=1, loggers=("csv",),
        ... )
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     train_ppo_rnd(config, out=f"{folder}/run", display="none").train_frames
        256
    """
    return train_on_policy(PPO_RND, config, PPORNDLearner, **options)


ppo_rnd_policy = on_policy_actor


class PPORNDLearner(PPOLearner):
    """PPO on the sum of extrinsic and intrinsic advantages; each step also trains predictor and intrinsic critic.

    Args:
        config: settings.
        env: decides the inputs of the predictor.
        actor: the policy.
        critic: of the environment's rewards.
    """

    adds = (TARGET, "normalized")

    def __init__(self, config: PPORNDConfig, env: Env, actor: Any, critic: Any) -> None:
        self._rnd = IntrinsicReward(config, env)
        super().__init__(config, env, actor, critic, more=self._rnd.critic.parameters())
        self._weighting = config.extrinsic_weight, config.intrinsic_weight
        float_outputs(config, self._rnd)
        self._predictor = [*self._rnd.loss.parameters()]
        self._predictor_optimizer = adam(self._predictor, config.predictor_learning_rate)
        self._extrinsic, self.estimate = self.estimate, self._estimated
        self._keys += [TARGET, *((NEXT, *as_tuple(key)) for key in self._rnd.keys.values())]
        self._reward: Any = None
        self._outputs = {**OUTPUTS, "loss_predictor": "loss_predictor"}
        self.parts |= {"rnd": self._rnd, "predictor_optimizer": self._predictor_optimizer}
        self.metrics = (
            *(name for name in METRICS if name != "explained_variance"),
            "loss_predictor",
            "intrinsic_reward",
        )

    def _estimated(self, batch: TensorDictBase) -> TensorDictBase:
        assert self._extrinsic is not None
        batch = self._extrinsic(batch)
        self._reward = self._rnd.reward(batch)
        advantage, target = self._rnd.advantage(batch, self._reward)
        extrinsic, intrinsic = self._weighting
        batch.set(ADVANTAGE, extrinsic * batch.get(ADVANTAGE) + intrinsic * advantage)
        return batch.set(TARGET, target)

    def _step(self, out: TensorDictBase, batch: TensorDictBase) -> tuple[TensorDictBase, Tensor]:
        with mixed_precision(self._settings):
            error = self._rnd.loss(batch).get("loss_predictor")
        descend(error, self._predictor_optimizer, self._predictor, self._settings.max_grad_norm)
        return super()._step(out.set("loss_predictor", error.detach()), batch)

    def _total(self, out: TensorDictBase, batch: TensorDictBase) -> Tensor:
        with mixed_precision(self._settings):
            value = self._rnd.value(batch)
        error = (value - batch.get(TARGET)).square().mean()
        return super()._total(out, batch) + self._settings.value_weight * error

    def _diagnostics(self, rows: Mapping[NestedKey, Tensor]) -> dict[str, float]:  # noqa: ARG002 - of the base
        return {"intrinsic_reward": float(self._reward.mean())}
