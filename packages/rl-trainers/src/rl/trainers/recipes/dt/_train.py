"""The recipe ``dt``: decision transformer, in the loop of `offline`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn

from rl.core.interfaces import Env
from rl.modules import (
    DecisionTransformerInferenceWrapper,
    DTActor,
    OnlineDTActor,
    ProbabilisticActor,
    TanhDelta,
    TanhNormal,
)
from rl.objectives import DTLoss, OnlineDTLoss
from rl.trainers._build.networks import EPISODE_REWARD
from rl.trainers._run.run import TrainResult
from rl.trainers.recipes.dt._config import DT, DTConfig
from rl.trainers.recipes.off_policy._networks import bounded_action
from rl.trainers.recipes.offline._networks import vector_of
from rl.trainers.recipes.offline._train import train_offline
from rl.trainers.recipes.offline._windows import Windows, check_entries, returns_to_go

__all__ = ["dt_policy", "train_dt"]

#: key of the scaled return that is still to come
RETURN_TO_GO = "return_to_go"

OUTPUTS = {
    "loss_actor": "loss",
    "loss_log_likelihood": "loss_log_likelihood",
    "loss_alpha": "loss_alpha",
    "alpha": "alpha",
    "entropy": "entropy",
}


def train_dt(config: DTConfig, **options: Any) -> TrainResult:
    """Train a decision transformer on a data set.

    Args:
        config: what to train, and how.
        options: ``out``, ``resume``, ``display`` and ``should_stop``, as for `train_dqn`.

    Raises:
        SpecError: if there is no data set, or it does not fit the environment.
    """
    return train_offline(DT, config, dt_policy, _loss, OUTPUTS, _reader, **options)


class _Remaining(nn.Module):
    """The return that is still to come: the target minus the return so far; both in units of the largest return.

    Its buffers are set from the data set, and part of the policy's state.
    """

    target: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("target", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, episode_reward: Tensor) -> Tensor:
        return (self.target - episode_reward.float()) / self.scale


def dt_policy(config: Any, env: Env) -> TensorDictSequential:
    """The untrained policy: the return that is still to come, and the decision transformer that acts for it.

    Raises:
        SpecError: if the environment's action is no vector of bounded floats, or its observation no vector.
    """
    key, spec = bounded_action(config, env)
    observation, width = vector_of(config, env)
    sizes = {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": config.heads,
        "n_inner": 4 * config.width,
        "activation": config.activation,
        "n_positions": 3 * config.context,
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
    wrapper = DecisionTransformerInferenceWrapper(actor, inference_context=config.context, spec=spec)
    wrapper.set_tensor_keys(observation=observation, action=key)
    remaining = TensorDictModule(_Remaining(), [EPISODE_REWARD], [RETURN_TO_GO])
    return TensorDictSequential(remaining, wrapper).to(config.device).eval()


def _parts(policy: Any) -> tuple[_Remaining, DecisionTransformerInferenceWrapper]:
    """What scales returns, and what acts."""
    remaining, wrapper = policy.module
    return remaining.module, wrapper


def _loss(config: DTConfig, env: Env, policy: Any) -> DTLoss | OnlineDTLoss:
    del env
    actor = _parts(policy)[1].policy
    if config.stochastic:
        return OnlineDTLoss(actor, alpha_init=0.1)
    return DTLoss(actor)


def _reader(config: Any, env: Env, data: Any, policy: Any) -> Callable[[], TensorDictBase]:
    """Samples windows with returns-to-go; sets the target and the scale of the policy."""
    key, _ = bounded_action(config, env)
    observation, _ = vector_of(config, env)
    keys = [observation, key]
    check_entries(config.recipe, config.dataset, data[0], [*keys, ("next", "reward"), ("next", "done")])
    windows = Windows(data, keys, config.context, config.minibatch_size)
    remaining = _parts(policy)[0]
    to_go = returns_to_go(data, windows.last_step)
    starts = torch.cat((torch.zeros(1, dtype=torch.long), windows.last_step.unique()[:-1] + 1))
    best = float(to_go[starts].max()) if config.target_return is None else config.target_return
    remaining.target.fill_(best)
    remaining.scale.fill_(max(float(to_go.abs().max()), 1e-6))
    scaled = to_go / remaining.scale.cpu()

    def read() -> TensorDictBase:
        batch = windows.sample(return_to_go=scaled)
        for name in keys:
            batch.set(name, batch.get(name).float())
        return batch

    return read
