"""Decision transformer: actions for a wanted return, from a data set, for bounded continuous actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rl.trainers.algorithm import Algorithm
from rl.trainers.config import Rule, above, checked, in_range, where
from rl.trainers.families import OfflineConfig


@dataclass(frozen=True, kw_only=True)
class DTConfig(OfflineConfig):
    """Decision transformer: actions for a wanted return; bounded continuous actions.

    Chen et al., "Decision transformer: reinforcement learning via sequence modeling", 2021; with stochastic Zheng et
    al., "Online decision transformer", 2022, before its online phase.

    Args:
        inference_context: Number of steps that the policy sees.
        target_return: Return of an episode that is aimed at; the best one of the data set if left out.
        n_embd: Width of a token, a multiple of n_head.
        n_layer: Number of layers of the transformer.
        n_head: Number of heads of each attention.
        dropout: Share of attentions and hidden activations that are dropped in training.
        stochastic: Whether the policy is tanh-normal and maximizes the likelihood of actions, with an entropy bonus.
        batch_size: Number of windows of one gradient step.
        num_cells: No setting of dt: the hidden layer of the transformer is four times as wide as a token.

    Raises:
        ArgumentError: If a value is out of its range.

    Example:
        >>> DTConfig(dataset="minari:pendulum/medium-v0").recipe
        'dt'
    """

    recipe: ClassVar[str] = "dt"
    own_transforms: ClassVar[tuple[str, ...]] = ("reward-sum",)

    inference_context: int = above(0, 10)
    target_return: float | None = None
    n_embd: int = checked(
        64, where(lambda n, config: n > 0 and n % config.n_head == 0, "a multiple of n_head ({n_head})")
    )
    n_layer: int = above(0, 2)
    n_head: int = above(0, 2)
    dropout: float = in_range(0, 0.99, 0.0)
    stochastic: bool = False
    learning_rate: float = 5e-4
    total_frames: int = 5_000
    batch_size: int = 64
    max_grad_norm: float = 0.25
    num_cells: tuple[int, ...] = checked((), Rule(lambda sizes: not sizes, "left out: set n_embd and n_layer"))


#: key of the scaled return that is still to come
RETURN_TO_GO = "return_to_go"


def policy(config: DTConfig, env: Any) -> Any:
    """Create the untrained policy: the return that is still to come, and the decision transformer that acts for it.

    Raises:
        SpecError: If the environment's action is no vector of bounded floats, or its observation no vector.
    """
    from tensordict.nn import TensorDictModule, TensorDictSequential

    from rl.modules import (
        DecisionTransformerInferenceWrapper,
        DTActor,
        OnlineDTActor,
        ProbabilisticActor,
        TanhDelta,
        TanhNormal,
    )
    from rl.trainers.actors import RemainingReturn, bounded_action, vector_of
    from rl.trainers.networks import EPISODE_REWARD

    key, spec = bounded_action(config, env)
    observation, width = vector_of(config, env)
    sizes = {
        "n_embd": config.n_embd,
        "n_layer": config.n_layer,
        "n_head": config.n_head,
        "n_inner": 4 * config.n_embd,
        "activation": config.activation,
        "n_positions": 3 * config.inference_context,
        "resid_pdrop": config.dropout,
        "attn_pdrop": config.dropout,
    }
    reads: list[Any] = [observation, key, RETURN_TO_GO]
    make, kind = (OnlineDTActor, TanhNormal) if config.stochastic else (DTActor, TanhDelta)
    params: list[Any] = ["loc", "scale"] if config.stochastic else ["param"]
    actor = ProbabilisticActor(
        TensorDictModule(make(width, spec.shape[0], sizes), reads, params),
        in_keys=params,
        out_keys=[key],
        spec=spec,
        distribution_class=kind,
    )
    wrapper = DecisionTransformerInferenceWrapper(actor, inference_context=config.inference_context, spec=spec)
    wrapper.set_tensor_keys(observation=observation, action=key)
    remaining = TensorDictModule(RemainingReturn(), [EPISODE_REWARD], [RETURN_TO_GO])
    return TensorDictSequential(remaining, wrapper).to(config.device).eval()


def loss(config: DTConfig, env: Any, policy: Any) -> Any:
    """Create the loss of the transformer."""
    from rl.objectives import DTLoss, OnlineDTLoss

    del env
    _, wrapper = policy.module
    return OnlineDTLoss(wrapper.policy, alpha_init=0.1) if config.stochastic else DTLoss(wrapper.policy)


def reader(config: DTConfig, env: Any, data: Any, policy: Any) -> Any:
    """Return a sampler of windows with returns-to-go; sets the target and the scale of the policy."""
    import torch

    from rl.trainers.actors import bounded_action, vector_of
    from rl.trainers.datasets import Windows, check_entries, returns_to_go

    key, _ = bounded_action(config, env)
    observation, _ = vector_of(config, env)
    keys = [observation, key]
    check_entries(config.recipe, config.dataset, data[0], [*keys, ("next", "reward"), ("next", "done")])
    windows = Windows(data, keys, config.inference_context, config.batch_size)
    to_go = returns_to_go(data, windows.last_step)
    starts = torch.cat((torch.zeros(1, dtype=torch.long), windows.last_step.unique()[:-1] + 1))
    remaining = policy.module[0].module
    remaining.target.fill_(float(to_go[starts].max()) if config.target_return is None else config.target_return)
    remaining.scale.fill_(max(float(to_go.abs().max()), 1e-6))
    scaled = to_go / remaining.scale.cpu()

    def read() -> Any:
        batch = windows.sample(return_to_go=scaled)
        for name in keys:
            batch.set(name, batch.get(name).float())
        return batch

    return read


DT = Algorithm(
    DTConfig,
    loop="offline",
    policy=policy,
    loss=loss,
    reader=reader,
    outputs={
        "loss_actor": "loss",
        "loss_log_likelihood": "loss_log_likelihood",
        "loss_alpha": "loss_alpha",
        "alpha": "alpha",
        "entropy": "entropy",
    },
    presets="rl.trainers:presets/dt.yaml:dt",
)

train_dt = DT.train
