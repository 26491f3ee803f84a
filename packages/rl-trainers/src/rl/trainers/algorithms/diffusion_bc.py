"""Diffusion policy: imitates a data set with a model that denoises actions, for bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import above, checked, where
from rl.trainers.families import ChunkConfig


@dataclass(frozen=True, kw_only=True)
class DiffusionBCConfig(ChunkConfig):
    """Diffusion policy: imitates a data set with a model that denoises actions; bounded continuous actions.

    Chi et al., "Diffusion policy: visuomotor policy learning via action diffusion", 2023.

    Args:
        num_steps: Number of steps of the diffusion in training.
        sampling_steps: Number of steps that denoise when acting, as in Song et al., "Denoising diffusion implicit
            models", 2021.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DiffusionBCConfig(dataset="minari:pendulum/medium-v0").recipe
        'diffusion-bc'
    """

    recipe: ClassVar[str] = "diffusion-bc"

    learning_rate: float = 1e-3
    batch_size: int = 512
    total_frames: int = 5_000
    num_steps: int = above(0, 20)
    sampling_steps: int = checked(
        10, where(lambda n, config: 0 < n <= config.num_steps, "from 1 to num_steps ({num_steps})")
    )


def policy(config: DiffusionBCConfig, env: Any) -> Any:
    """Create the untrained policy, which executes the first actions of each plan.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats, or its observation no vector.
    """
    from rl.modules import DiffusionActor, MultiStepActorWrapper
    from rl.trainers.actors import bounded_action, vector_of

    key, spec = bounded_action(config, env)
    observation, width = vector_of(config, env)
    actor = DiffusionActor(
        spec.shape[0],
        width,
        num_steps=config.num_steps,
        beta_start=min(0.5, 0.1 / config.num_steps),  # the same noise for each number of steps
        beta_end=min(0.99, 10 / config.num_steps),
        in_keys=[observation],
        out_keys=[key],
        spec=spec,
        chunk_size=config.chunk_size,
        sampling_steps=config.sampling_steps,
        num_cells=config.num_cells,
    )
    return MultiStepActorWrapper(
        actor, config.chunk_size, spec=spec, action_keys=[key], replan_interval=config.replan_interval
    ).to(config.device)


def loss(config: DiffusionBCConfig, env: Any, policy: Any) -> Any:
    """Create the loss of the model."""
    from rl.objectives import DiffusionBCLoss

    del config, env
    loss = DiffusionBCLoss(policy.actor)
    loss.set_keys(action=policy.action_keys[0])
    return loss


def reader(config: DiffusionBCConfig, env: Any, data: Any, policy: Any) -> Any:
    """Return a sampler of observations with the chunks of actions that follow."""
    from rl.trainers.actors import vector_of
    from rl.trainers.datasets import chunk_reader

    (key,) = policy.action_keys
    return chunk_reader(config, data, vector_of(config, env)[0], key, chunk_key=key)


DIFFUSION_BC = Algorithm(
    DiffusionBCConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    reader=reader,
    outputs={"loss_diffusion": "loss_diffusion_bc"},
    presets="rl.trainers:presets/diffusion_bc.yaml:diffusion-bc",
)

train_diffusion_bc = DIFFUSION_BC.train
