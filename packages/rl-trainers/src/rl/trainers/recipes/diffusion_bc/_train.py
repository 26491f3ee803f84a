"""The recipe ``diffusion-bc``: diffusion policy, in the loop of `offline`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase

from rl.core.interfaces import Env
from rl.modules import DiffusionActor, MultiStepActorWrapper
from rl.objectives import DiffusionBCLoss
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.diffusion_bc._config import DIFFUSION_BC, DiffusionBCConfig
from rl.trainers.recipes.off_policy._networks import bounded_action
from rl.trainers.recipes.offline._networks import vector_of
from rl.trainers.recipes.offline._train import train_offline
from rl.trainers.recipes.offline._windows import chunk_reader

__all__ = ["diffusion_bc_policy", "train_diffusion_bc"]


def train_diffusion_bc(config: DiffusionBCConfig, **options: Any) -> TrainResult:
    """Train a diffusion policy on a data set.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    outputs = {"loss_diffusion": "loss_diffusion_bc"}
    return train_offline(DIFFUSION_BC, config, diffusion_bc_policy, _loss, outputs, _reader, **options)


def diffusion_bc_policy(config: Any, env: Env) -> MultiStepActorWrapper:
    """The untrained policy, which executes the first actions of each plan.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats, or its observation no vector.
    """
    key, spec = bounded_action(config, env)
    observation, width = vector_of(config, env)
    actor = DiffusionActor(
        spec.shape[0],
        width,
        num_steps=config.diffusion_steps,
        beta_start=min(0.5, 0.1 / config.diffusion_steps),  # the same noise for each number of steps
        beta_end=min(0.99, 10 / config.diffusion_steps),
        in_keys=[observation],
        out_keys=[key],
        spec=spec,
        chunk_size=config.chunk_size,
        sampling_steps=config.sampling_steps,
        num_cells=config.hidden,
    )
    return MultiStepActorWrapper(
        actor, config.chunk_size, spec=spec, action_keys=[key], replan_interval=config.executed
    ).to(config.device)


def _loss(config: DiffusionBCConfig, env: Env, policy: MultiStepActorWrapper) -> DiffusionBCLoss:
    del config, env
    loss = DiffusionBCLoss(policy.actor)
    loss.set_keys(action=policy.action_keys[0])
    return loss


def _reader(
    config: DiffusionBCConfig, env: Env, data: Any, policy: MultiStepActorWrapper
) -> Callable[[], TensorDictBase]:
    (key,) = policy.action_keys
    observation, _ = vector_of(config, env)
    return chunk_reader(config, data, observation, key, chunk_key=key)
