"""Losses of Dreamer, and what they share with those of DreamerV3."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar, NamedTuple, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import InteractionType, set_interaction_type
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import as_integer, as_number
from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, UnsupportedError
from rl.core.keys import NestedKey, key_str, leaf_keys, next_key, unwrap
from rl.core.mdp import FLAGS, step_mdp
from rl.objectives._agents import Entries
from rl.objectives._batch import MASK, mask_keys_of_steps, mean_of, scalar
from rl.objectives._estimator_base import ValueEstimatorBase
from rl.objectives._keyed_module import sum_log_probs
from rl.objectives._networks import ActorCall
from rl.objectives._utils import hold_out_net
from rl.objectives.estimators import ValueEstimators
from rl.objectives.functional._q_learning import check_distance, distance
from rl.objectives.functional._world_models import (
    lambda_return,
    normal_kl,
)
from rl.objectives.losses._base import LossModule

__all__ = [
    "DreamerActorLoss",
    "DreamerModelLoss",
    "DreamerValueLoss",
    "LossesAndData",
]


class LossesAndData(NamedTuple):
    """What a Dreamer loss returns: the losses, and the states that the next loss of the algorithm reads.

    Attributes:
        losses: Scalars; those that start with ``loss`` are summed and minimized.
        data: States of the batch, or imagined steps.
    """

    losses: TensorDict
    data: TensorDictBase

    def get(self, key: NestedKey) -> Tensor:
        """Return a loss."""
        return self.losses.get(key)

    def select(self, *keys: NestedKey) -> LossesAndData:
        """Return some of the losses, and the data."""
        return LossesAndData(self.losses.select(*keys), self.data)


def keys_of(module: Any, owner: str) -> list[NestedKey]:
    keys = getattr(module, "in_keys", None)
    if keys is None:
        raise ContractError(f"{owner} got {type(module).__name__} without in_keys: wrap it in a TensorDictModule")
    return [unwrap(key) for key in keys]


def replace_entries(td: TensorDictBase, entries: Entries) -> TensorDictBase:
    """Return a copy of a batch with what `LossModule.read` returned, which has no padding."""
    td = td.copy()
    for key, leaf in entries.items():
        td.set(key, leaf)
    return td


def sum_to(size: torch.Size, elements: Tensor) -> Tensor:
    """Sum what a distribution returns for each dimension of its event, to ``size``."""
    return elements if elements.shape == size else elements.reshape(*size, -1).sum(-1)


def head_of(call: ActorCall, td: TensorDictBase) -> Distribution:
    """Return the distribution of a head for a TensorDict of states."""
    return call({key: td.get(key) for key in call.in_keys}, td.batch_size)


def entropy_of(dist: Distribution) -> Tensor:
    """Return the entropy of a policy; minus the log-probability of a sample where it has no closed form."""
    try:
        return sum_log_probs(dist.entropy())
    except NotImplementedError:
        return -sum_log_probs(dist.log_prob(dist.rsample()))


def imagine(start: TensorDictBase, policy: Any, env: Any, horizon: int) -> tuple[TensorDictBase, TensorDictBase]:
    """Return steps of a policy in a model of the environment, ``[N, horizon]``, and the states, ``[N, horizon + 1]``.

    The state after a step is that before the next one: both are views of one tensor.
    """
    rows: list[TensorDictBase] = []
    td = start
    with set_interaction_type(InteractionType.RANDOM):
        for _ in range(horizon):
            rows.append(env.step(policy(td)))
            td = step_mdp(rows[-1], exclude_done=True, done_keys=[*FLAGS])  # all rows have the keys of the first one
    first, after = rows[0].exclude("next"), [row.get("next") for row in rows]
    shared = [key for key in leaf_keys(after[0]) if first.get(key, None) is not None]
    states = TensorDict.stack([first.select(*shared), *(one.select(*shared) for one in after)], 1)
    steps = TensorDict.stack([row.exclude("next", *shared) for row in rows], 1).update(states[:, :-1])
    outcome = TensorDict.stack([one.exclude(*shared) for one in after], 1).update(states[:, 1:])
    return steps.set("next", outcome), states


@contextmanager
def _held_out(*parts: Any) -> Generator[None]:
    """Context in which gradients pass through modules, and environments of modules, and not into their parameters."""
    with ExitStack() as stack:
        for part in parts:
            for one in (part, getattr(part, "world_model", None)):
                if isinstance(one, nn.Module):
                    stack.enter_context(hold_out_net(one))
        yield


def start_states(td: TensorDictBase, keys: Iterable[NestedKey], owner: str) -> TensorDictBase:
    """Return the states of a batch as one row of constants, ``[N]``."""
    for key in keys:
        if td.get(key, None) is None:
            raise ContractError(f"{owner} reads {key_str(key)}, which the batch lacks: call the model loss before")
    return td.select(*keys).detach().reshape(-1)


@final
class DreamerModelLoss(LossModule):
    """Loss of a world model with Gaussian states: divergence, reconstruction and reward.

    Hafner et al., "Dream to control: learning behaviors by latent imagination", 2020, eq. 10. Reads the inputs of the
    world model, and under ``next`` ``pixels`` and ``reward`` ``[*B, T, 1]``. The model writes under ``next`` mean and
    standard deviation of prior and posterior, ``reco_pixels``, and its own ``reward``.

    Returns `LossesAndData`: ``loss_model_kl``, ``loss_model_reco`` and ``loss_model_reward``; and what the model wrote,
    without gradient, with the reward of the batch as ``("next", "true_reward")``.

    Args:
        world_model: World model on TensorDicts.
        lambda_kl: Weight of the divergence.
        lambda_reco: Weight of the reconstruction.
        lambda_reward: Weight of the reward.
        reco_loss: Distance of the reconstruction, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        reward_loss: Distance of the reward.
        free_nats: Divergence below which there is no gradient, summed over the state.
        delayed_clamp: Whether the mean divergence of the batch is bounded, in place of that of each step.
        global_average: Whether to average over all dimensions; otherwise those of images and states are summed.

    Raises:
        ArgumentError: If an argument is out of its range.
        ContractError: If the world model has no keys.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> names = ["prior_mean", "prior_std", "posterior_mean", "posterior_std", "reco_pixels", "reward"]
        >>> class Model(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(2, 3)
        ...     def forward(self, x):
        ...         y = self.net(x)
        ...         return y, y.exp(), y, y.exp(), y[..., None, None, :], y[..., :1]
        >>> model = TensorDictModule(Model(), ["observation"], [("next", name) for name in names])
        >>> after = TensorDict(pixels=torch.rand(4, 5, 1, 1, 3), reward=torch.rand(4, 5, 1), batch_size=[4, 5])
        >>> batch = TensorDict(observation=torch.randn(4, 5, 2), next=after, batch_size=[4, 5])
        >>> losses, states = DreamerModelLoss(model)(batch)
        >>> losses["loss_model_kl"]
        tensor(3., grad_fn=<MulBackward0>)
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "reward": "reward",
        "true_reward": "true_reward",
        "prior_mean": "prior_mean",
        "prior_std": "prior_std",
        "posterior_mean": "posterior_mean",
        "posterior_std": "posterior_std",
        "pixels": "pixels",
        "reco_pixels": "reco_pixels",
        "done": "done",
        "mask": MASK,
    }

    def __init__(
        self,
        world_model: nn.Module,
        *,
        lambda_kl: float = 1.0,
        lambda_reco: float = 1.0,
        lambda_reward: float = 1.0,
        reco_loss: str | None = None,
        reward_loss: str | None = None,
        free_nats: float = 3.0,
        delayed_clamp: bool = False,
        global_average: bool = False,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.world_model = world_model
        self.lambda_kl = as_number(lambda_kl, owner, "lambda_kl", least=0)
        self.lambda_reco = as_number(lambda_reco, owner, "lambda_reco", least=0)
        self.lambda_reward = as_number(lambda_reward, owner, "lambda_reward", least=0)
        self.reco_loss = check_distance(reco_loss or "l2", owner)
        self.reward_loss = check_distance(reward_loss or "l2", owner)
        self.free_nats = as_number(free_nats, owner, "free_nats", least=0)
        self.delayed_clamp, self.global_average = delayed_clamp, global_average
        self.derive_early()

    def _derive(self) -> Contract:
        reads = [Key(key) for key in keys_of(self.world_model, type(self).__name__)]
        targets = [Key(next_key(self._keys[name])) for name in ("pixels", "reward")]
        return Contract(
            (*reads, *targets, *mask_keys_of_steps(self._keys["mask"])),
            (
                scalar("loss_model_kl", "divergence of posterior and prior"),
                scalar("loss_model_reco", "distance of the reconstruction"),
                scalar("loss_model_reward", "distance of the reward"),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> LossesAndData:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the losses of sequences.

        Args:
            tensordict: Batch, ``[*B, T]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        key = {name: next_key(self._keys[name]) for name in self._keys if name not in ("done", "mask")}
        found = self.world_model(replace_entries(tensordict, entries))
        pixels, reward = entries[key["pixels"]], entries[key["reward"]]
        reco = distance(found.get(key["reco_pixels"]), pixels, self.reco_loss).flatten(tensordict.ndim)
        rewards = distance(found.get(key["reward"]), reward, self.reward_loss).flatten(tensordict.ndim)
        data = found.detach().set(key["true_reward"], reward)
        return LossesAndData(
            TensorDict(
                loss_model_kl=self.lambda_kl * self._divergence(found, key, mask),
                loss_model_reco=self.lambda_reco
                * mean_of(reco.mean(-1) if self.global_average else reco.sum(-1), mask),
                loss_model_reward=self.lambda_reward * mean_of(rewards.mean(-1), mask),
            ),
            data,
        )

    def _divergence(self, td: TensorDictBase, key: Mapping[str, NestedKey], mask: Tensor | None) -> Tensor:
        names = ("posterior_mean", "posterior_std", "prior_mean", "prior_std")
        parts = [td.get(key[name]) for name in names]
        kl = normal_kl(*parts, free_nats=-torch.inf)  # a sum over the state
        kl = kl / parts[0].shape[-1] if self.global_average else kl
        if self.delayed_clamp:
            return mean_of(kl, mask).clamp_min(self.free_nats)
        return mean_of(kl.clamp_min(self.free_nats), mask)


class ImaginedActorLoss(LossModule):
    """Base of losses of actors that act in a model of the environment."""

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "state": "state",
        "belief": "belief",
        "reward": "reward",
        "value": "state_value",
        "action": "action",
        "continuation": "continuation",
        "discount_weight": "discount_weight",
        "done": "done",
        "terminated": "terminated",
        "mask": MASK,
    }
    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.TDLambda

    def __init__(self, actor_model: nn.Module, others: Sequence[Any], horizon: int, gamma: float, lmbda: float) -> None:
        super().__init__()
        owner = type(self).__name__
        self.actor_model = actor_model
        # Networks of other losses are held in a tuple: their parameters and states are not those of this loss.
        self._others = tuple(others)
        for part in others:
            if part is not None and not callable(getattr(part, "step", part)):
                raise ContractError(f"{owner} got {type(part).__name__}: expected a module, or an object with step()")
        self.imagination_horizon = as_integer(horizon, owner, "imagination_horizon", least=1)
        self.gamma: float | Tensor = as_number(gamma, owner, "gamma", least=0, most=1)
        self.lmbda: float | Tensor = as_number(lmbda, owner, "lmbda", least=0, most=1)

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        """Take over discount and weight of an estimator of lambda returns, as TorchRL's users set them."""
        gamma, lmbda = getattr(estimator, "gamma", None), getattr(estimator, "lmbda", None)
        if gamma is None or lmbda is None:
            raise UnsupportedError(f"{type(self).__name__} learns from lambda returns: use TDLambda")
        self.gamma, self.lmbda = gamma, lmbda

    def _start_keys(self) -> list[NestedKey]:
        return [self._keys["state"], self._keys["belief"]]


@final
class DreamerActorLoss(ImaginedActorLoss):
    """Loss of an actor in imagination, whose gradient passes through the model: minus the returns.

    Hafner et al., "Dream to control: learning behaviors by latent imagination", 2020, eq. 6 and 7. Reads ``state`` and
    ``belief`` ``[*B, .]``, of which each row starts an imagined trajectory. Returns `LossesAndData`: ``loss_actor``;
    and the imagined steps ``[N, horizon]`` without gradient, with ``lambda_target``.

    Args:
        actor_model: Policy with reparameterized samples, which writes the action.
        value_model: Critic, which writes ``state_value``. It gets no gradient, and is no part of ``parameters()``.
        model_based_env: Model of the environment, whose ``step(td)`` reads state, belief and action, and writes the
            next ones and ``reward`` under ``next``. It gets no gradient, and is no part of ``parameters()``.
        imagination_horizon: Number of imagined steps.
        discount_loss: Whether steps count ``gamma ** t``.
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1].

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> class Model:
        ...     def step(self, td):
        ...         state = td["state"] + td["action"]
        ...         return td.set("next", TensorDict(state=state, belief=td["belief"], reward=-state.square()))
        >>> actor = TensorDictModule(nn.Linear(1, 1), ["state"], ["action"])
        >>> critic = TensorDictModule(nn.Linear(1, 1), ["state"], ["state_value"])
        >>> loss = DreamerActorLoss(actor, critic, Model(), imagination_horizon=3)
        >>> losses, imagined = loss(TensorDict(state=torch.ones(4, 1), belief=torch.ones(4, 1), batch_size=[4]))
        >>> losses["loss_actor"].backward()
        >>> imagined["lambda_target"].shape
        torch.Size([4, 3, 1])
    """

    def __init__(
        self,
        actor_model: nn.Module,
        value_model: nn.Module,
        model_based_env: Any,
        *,
        imagination_horizon: int = 15,
        discount_loss: bool = True,
        gamma: float = 0.99,
        lmbda: float = 0.95,
    ) -> None:
        super().__init__(actor_model, (value_model, model_based_env), imagination_horizon, gamma, lmbda)
        self.discount_loss = discount_loss
        self.derive_early()

    def _derive(self) -> Contract:
        return Contract(tuple(map(Key, self._start_keys())), (scalar("loss_actor", "minus the imagined returns"),))

    def forward(self, tensordict: TensorDictBase) -> LossesAndData:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Imagine trajectories from the states of a batch, and compute the loss.

        Args:
            tensordict: Batch, ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
        """
        start = start_states(tensordict, self._start_keys(), type(self).__name__)
        value_model, env = self._others
        with _held_out(value_model, env):
            steps, _ = imagine(start, self.actor_model, env, self.imagination_horizon)
            after = steps.get("next")
            value = value_model(after.select(*value_model.in_keys)).get(self._keys["value"])
        never = torch.zeros_like(value)
        target = lambda_return(after.get(self._keys["reward"]), value, never, never, self.gamma, self.lmbda)  # pyright: ignore[reportArgumentType]
        weight = _powers(self.gamma, target) if self.discount_loss else torch.ones_like(target)
        loss = -(weight * target).sum((-2, -1)).mean()
        data = steps.detach().set("lambda_target", target.detach())
        return LossesAndData(TensorDict(loss_actor=loss), data)


def _powers(gamma: float | Tensor, like: Tensor) -> Tensor:
    """``gamma ** t`` along the second-last dimension."""
    exponent = torch.arange(like.shape[-2], dtype=like.dtype, device=like.device)
    return (torch.as_tensor(gamma, dtype=like.dtype, device=like.device) ** exponent).unsqueeze(-1).expand_as(like)


@final
class DreamerValueLoss(LossModule):
    """Loss of a critic of imagined states: the distance to their returns.

    Hafner et al., "Dream to control: learning behaviors by latent imagination", 2020, eq. 8. Reads the inputs of the
    critic and ``lambda_target`` ``[N, T, 1]``, which `DreamerActorLoss` writes. Returns `LossesAndData`:
    ``loss_value``, summed over time; and the batch.

    Args:
        value_model: Critic, which writes ``state_value`` ``[N, T, 1]``.
        value_loss: Distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        discount_loss: Whether steps count ``gamma ** t``.
        gamma: Discount of `discount_loss`, in [0, 1].

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> loss = DreamerValueLoss(TensorDictModule(nn.Linear(2, 1), ["state"], ["state_value"]))
        >>> batch = TensorDict(state=torch.randn(4, 3, 2), lambda_target=torch.randn(4, 3, 1), batch_size=[4, 3])
        >>> loss(batch).losses["loss_value"].backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "value": "state_value",
        "lambda_target": "lambda_target",
        "done": "done",
        "mask": MASK,
    }

    def __init__(
        self,
        value_model: nn.Module,
        value_loss: str | None = None,
        discount_loss: bool = True,  # noqa: FBT001, FBT002 - as in TorchRL
        gamma: float = 0.99,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.value_model = value_model
        self.value_loss = check_distance(value_loss or "l2", owner)
        self.discount_loss = discount_loss
        self.gamma = as_number(gamma, owner, "gamma", least=0, most=1)
        self.derive_early()

    def _derive(self) -> Contract:
        reads = [*keys_of(self.value_model, type(self).__name__), self._keys["lambda_target"]]
        return Contract(tuple(map(Key, reads)), (scalar("loss_value", "distance to the imagined returns"),))

    def forward(self, tensordict: TensorDictBase) -> LossesAndData:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the loss of imagined steps.

        Args:
            tensordict: Steps, ``[N, T]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        self.read(tensordict)
        target = tensordict.get(self._keys["lambda_target"])
        inputs = tensordict.select(*keys_of(self.value_model, type(self).__name__))
        value = self.value_model(inputs).get(self._keys["value"])
        elements = distance(value, target, self.value_loss)
        if self.discount_loss:
            elements = _powers(self.gamma, target) * elements
        return LossesAndData(TensorDict(loss_value=elements.sum((-1, -2)).mean()), tensordict)
