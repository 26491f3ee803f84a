"""The recipe ``act``: action chunking with transformers, in the loop of `offline`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.modules import ACTModel, MultiStepActorWrapper
from rl.objectives import ACTLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.act._config import ACT, ACTConfig
from rl.trainers.recipes.off_policy._networks import bounded_action
from rl.trainers.recipes.offline._networks import vector_of
from rl.trainers.recipes.offline._train import train_offline
from rl.trainers.recipes.offline._windows import chunk_reader

__all__ = ["act_policy", "train_act"]

OUTPUTS = {"loss_actor": "loss_act", "loss_reconstruction": "loss_reconstruction", "loss_kl": "loss_kl"}


def train_act(config: ACTConfig, **options: Any) -> TrainResult:
    """Train a policy that imitates chunks of actions of a data set.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    return train_offline(ACT, config, act_policy, _loss, OUTPUTS, _reader, **options)


class _Plan(nn.Module):
    """A plan within the bounds of the action, for the style 0."""

    def __init__(self, model: ACTModel, spec: Any) -> None:
        super().__init__()
        self.model, self.dtype = model, spec.dtype
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", spec.low)
        self.register_buffer("high", spec.high)

    def forward(self, observation: Tensor) -> Tensor:
        action, _, _ = self.model(observation.float())
        return action.to(self.dtype).clamp(self.low, self.high)


def act_policy(config: Any, env: Env) -> MultiStepActorWrapper:
    """The untrained policy, which executes the first actions of each plan.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats, or its observation no vector.
    """
    key, spec = bounded_action(config, env)
    observation, width = vector_of(config, env)
    model = ACTModel(
        width,
        spec.shape[0],
        config.chunk_size,
        hidden_dim=config.width,
        nheads=config.heads,
        num_encoder_layers=config.encoder_layers,
        num_decoder_layers=config.decoder_layers,
        latent_dim=config.latent,
        dropout=config.dropout,
    )
    plan = TensorDictModule(_Plan(model, spec), [observation], [key])
    wrapper = MultiStepActorWrapper(
        plan, config.chunk_size, spec=spec, action_keys=[key], replan_interval=config.executed
    )
    return wrapper.to(config.device).eval()


def _loss(config: ACTConfig, env: Env, policy: Any) -> ACTLoss:
    observation, _ = vector_of(config, env)
    reads: list[Any] = [observation, "action_chunk"]
    model = TensorDictModule(policy.actor.module.model, reads, ["action_pred", "mu", "log_var"])
    return ACTLoss(model, kl_weight=config.kl_weight)


def _reader(config: ACTConfig, env: Env, data: Any, policy: MultiStepActorWrapper) -> Callable[[], TensorDictBase]:
    (key,) = policy.action_keys
    observation, _ = vector_of(config, env)
    return chunk_reader(config, data, observation, key, chunk_key="action_chunk")
