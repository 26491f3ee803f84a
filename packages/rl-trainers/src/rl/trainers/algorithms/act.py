"""ACT: action chunking with transformers, from a data set, for bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import Rule, above, at_least, checked, in_range, where
from rl.trainers.families import ChunkConfig


@dataclass(frozen=True, kw_only=True)
class ACTConfig(ChunkConfig):
    """Action chunking with transformers: imitates chunks of actions; bounded continuous actions.

    Zhao et al., "Learning fine-grained bimanual manipulation with low-cost hardware", 2023.

    Args:
        kl_weight: Weight of the divergence of the style from its prior.
        hidden_dim: Width of a token, an even multiple of nheads.
        nheads: Number of heads of each attention.
        num_encoder_layers: Number of layers of the encoder, which is used in training only.
        num_decoder_layers: Number of layers of the decoder.
        latent_dim: Width of the style.
        dropout: Share of activations that are dropped in training.
        num_cells: No setting of act: the hidden layers of the transformer are four times as wide as a token.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> ACTConfig(dataset="minari:pendulum/medium-v0").recipe
        'act'
    """

    recipe: ClassVar[str] = "act"

    kl_weight: float = at_least(0, 10.0)
    hidden_dim: int = checked(
        64,
        where(
            lambda n, config: n > 0 and n % config.nheads == 0 and n % 2 == 0,
            "even, and a multiple of nheads ({nheads})",
        ),
    )
    nheads: int = above(0, 4)
    num_encoder_layers: int = above(0, 1)
    num_decoder_layers: int = above(0, 1)
    latent_dim: int = above(0, 8)
    dropout: float = in_range(0, 0.99, 0.0)
    learning_rate: float = 1e-3
    total_frames: int = 5_000
    batch_size: int = 64
    num_cells: tuple[int, ...] = checked(
        (), Rule(lambda sizes: not sizes, "left out: set hidden_dim, num_encoder_layers and num_decoder_layers")
    )


def policy(config: ACTConfig, env: Any) -> Any:
    """Create the untrained policy, which executes the first actions of each plan.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats, or its observation no vector.
    """
    from tensordict.nn import TensorDictModule

    from rl.modules import ACTModel, MultiStepActorWrapper
    from rl.trainers.actors import BoundedPlan, bounded_action, vector_of

    key, spec = bounded_action(config, env)
    observation, width = vector_of(config, env)
    model = ACTModel(
        width,
        spec.shape[0],
        config.chunk_size,
        hidden_dim=config.hidden_dim,
        nheads=config.nheads,
        num_encoder_layers=config.num_encoder_layers,
        num_decoder_layers=config.num_decoder_layers,
        latent_dim=config.latent_dim,
        dropout=config.dropout,
    )
    plan = TensorDictModule(BoundedPlan(model, spec), [observation], [key])
    wrapper = MultiStepActorWrapper(
        plan, config.chunk_size, spec=spec, action_keys=[key], replan_interval=config.replan_interval
    )
    return wrapper.to(config.device).eval()


def loss(config: ACTConfig, env: Any, policy: Any) -> Any:
    """Create the loss of the transformer."""
    from tensordict.nn import TensorDictModule

    from rl.objectives import ACTLoss
    from rl.trainers.actors import vector_of

    reads: list[Any] = [vector_of(config, env)[0], "action_chunk"]
    model = TensorDictModule(policy.actor.module.model, reads, ["action_pred", "mu", "log_var"])
    return ACTLoss(model, kl_weight=config.kl_weight)


def reader(config: ACTConfig, env: Any, data: Any, policy: Any) -> Any:
    """Return a sampler of observations with the chunks of actions that follow."""
    from rl.trainers.actors import vector_of
    from rl.trainers.datasets import chunk_reader

    (key,) = policy.action_keys
    return chunk_reader(config, data, vector_of(config, env)[0], key, chunk_key="action_chunk")


ACT = Algorithm(
    ACTConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    reader=reader,
    outputs={"loss_actor": "loss_act", "loss_reconstruction": "loss_reconstruction", "loss_kl": "loss_kl"},
    presets="rl.trainers:presets/act.yaml:act",
)

train_act = ACT.train
