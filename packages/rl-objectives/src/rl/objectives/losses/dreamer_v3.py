"""Losses of DreamerV3: the world model, and the actor and the critic that learn in imagination."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - its usual name

from rl.core.arguments import as_number
from rl.core.contract import Contract, Key
from rl.core.errors import ContractError, ShapeError
from rl.core.keys import NestedKey, next_key, unwrap
from rl.objectives._batch import MASK, mask_keys_of_steps, mean_of, scalar
from rl.objectives._keyed_module import sum_log_probs
from rl.objectives._networks import ActorCall
from rl.objectives.functional._world_models import (
    PercentileScale,
    categorical_kl_terms,
    critic_regression,
    imagination_weight,
    lambda_return,
    reinforce_objective,
)
from rl.objectives.losses._base import LossModule
from rl.objectives.losses.dreamer import (
    ImaginedActorLoss,
    LossesAndData,
    entropy_of,
    head_of,
    imagine,
    keys_of,
    replace_entries,
    start_states,
    sum_to,
)
from rl.objectives.targets import make_target

__all__ = ["DreamerV3ActorLoss", "DreamerV3ModelLoss", "DreamerV3ValueLoss"]


@final
class DreamerV3ModelLoss(LossModule):
    """Loss of DreamerV3's world model: likelihood of observation, reward and continuation, and two divergences.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 4 and 5. Reads the inputs of
    the world model, and the targets of the heads under the keys that the heads sample: ``("next", "reward")``
    ``[*B, T, 1]``, observations; ``("next", "terminated")`` and ``("next", "done")`` bool ``[*B, T, 1]``. The world
    model writes ``prior_logits`` and ``posterior_logits`` ``[*B, T, categoricals, classes]``, ``state`` and ``belief``
    under ``next``.

    Returns `LossesAndData`: ``loss_model_dynamic``, ``loss_model_representation``, ``loss_model_reco``,
    ``loss_model_reward`` and ``loss_model_continue``; and for each step the posterior ``state`` and ``belief``, with
    gradient, and under ``next`` the reward and the flags of arriving there. `DreamerV3ActorLoss` starts from them.

    Args:
        world_model: Encoder and `RSSMRolloutV3` of rl-modules, or any such module.
        decoder: Head of observations, or several: modules with ``get_dist``.
        reward_model: Head of the reward, with ``get_dist``: two-hot over exponential bins.
        continue_model: Head of the continuation: ``get_dist`` returns a Bernoulli distribution.
        lambda_dynamic: Weight of the divergence that trains the prior.
        lambda_representation: Weight of the divergence that trains the posterior.
        lambda_reco: Weight of the observations.
        lambda_reward: Weight of the reward.
        lambda_continue: Weight of the continuation.
        free_nats: Divergence below which there is no gradient, summed over the categoricals.
        unimix: Share of the uniform distribution in prior and posterior.
        continue_target_scale: Target of the continuation where the episode goes on: the discount.

    Raises:
        ArgumentError: If an argument is out of its range.
        ContractError: If a network has no keys, or a head no distribution.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "state": "state",
        "belief": "belief",
        "prior_logits": "prior_logits",
        "posterior_logits": "posterior_logits",
        "reward": "reward",
        "terminated": "terminated",
        "done": "done",
        "mask": MASK,
    }

    def __init__(  # noqa: PLR0913 - the names of TorchRL
        self,
        world_model: nn.Module,
        decoder: nn.Module | Sequence[nn.Module],
        reward_model: nn.Module,
        continue_model: nn.Module,
        *,
        lambda_dynamic: float = 1.0,
        lambda_representation: float = 0.1,
        lambda_reco: float = 1.0,
        lambda_reward: float = 1.0,
        lambda_continue: float = 1.0,
        free_nats: float = 1.0,
        unimix: float = 0.01,
        continue_target_scale: float = 1 - 1 / 333,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.world_model = world_model
        heads = (
            [decoder] if isinstance(decoder, nn.Module) and not isinstance(decoder, nn.ModuleList) else list(decoder)
        )
        self.decoder = nn.ModuleList(heads)
        self.reward_model, self.continue_model = reward_model, continue_model
        self.lambda_dynamic = as_number(lambda_dynamic, owner, "lambda_dynamic", least=0)
        self.lambda_representation = as_number(lambda_representation, owner, "lambda_representation", least=0)
        self.lambda_reco = as_number(lambda_reco, owner, "lambda_reco", least=0)
        self.lambda_reward = as_number(lambda_reward, owner, "lambda_reward", least=0)
        self.lambda_continue = as_number(lambda_continue, owner, "lambda_continue", least=0)
        self.free_nats = as_number(free_nats, owner, "free_nats", least=0)
        self.unimix = as_number(unimix, owner, "unimix", least=0, below=1)
        self.continue_target_scale = as_number(continue_target_scale, owner, "continue_target_scale", above=0, most=1)
        self.derive_early()

    def __getstate__(self) -> dict[str, Any]:
        # Network calls hold the networks of the original; a copy builds its own.
        return {key: value for key, value in super().__getstate__().items() if key != "_decoders"}

    def _derive(self) -> Contract:
        owner, keys = type(self).__name__, self._keys
        self._decoders = [(ActorCall(head), _sample_key(head, owner)) for head in self.decoder]
        self._reward, self._continue = ActorCall(self.reward_model), ActorCall(self.continue_model)
        flag = torch.bool
        return Contract(
            (
                *map(Key, keys_of(self.world_model, owner)),
                *(Key(key, doc="target of a decoder") for _, key in self._decoders),
                Key(next_key(keys["reward"]), (1,), "reward on arriving at the state"),
                Key(next_key(keys["terminated"]), (1,), "whether the episode terminated there", flag),
                Key(next_key(keys["done"]), (1,), "whether the episode ended there", flag),
                *mask_keys_of_steps(keys["mask"]),
            ),
            (
                scalar("loss_model_dynamic", "divergence that trains the prior"),
                scalar("loss_model_representation", "divergence that trains the posterior"),
                scalar("loss_model_reco", "negative log-likelihood of the observations"),
                scalar("loss_model_reward", "negative log-likelihood of the reward"),
                scalar("loss_model_continue", "cross-entropy of the continuation"),
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
        size = tensordict.batch_size
        entries, mask = self.read(tensordict)
        key = {name: next_key(key) for name, key in self._keys.items()}
        found = self.world_model(replace_entries(tensordict, entries))
        dynamic, representation = categorical_kl_terms(
            found.get(key["posterior_logits"]), found.get(key["prior_logits"]), self.free_nats, self.unimix
        )
        reward, terminated = entries[key["reward"]], entries[key["terminated"]]
        reco = [-sum_to(size, head_of(call, found).log_prob(entries[target])) for call, target in self._decoders]
        rewards = -sum_to(size, head_of(self._reward, found).log_prob(reward))
        logits: Tensor = head_of(self._continue, found).logits  # pyright: ignore[reportAttributeAccessIssue]
        live = (~terminated).to(logits.dtype) * self.continue_target_scale
        going = F.binary_cross_entropy_with_logits(logits.reshape(live.shape), live, reduction="none").squeeze(-1)
        losses = TensorDict(
            loss_model_dynamic=self.lambda_dynamic * mean_of(dynamic, mask),
            loss_model_representation=self.lambda_representation * mean_of(representation, mask),
            loss_model_reco=self.lambda_reco * mean_of(torch.stack(reco).sum(0), mask),
            loss_model_reward=self.lambda_reward * mean_of(rewards, mask),
            loss_model_continue=self.lambda_continue * mean_of(going, mask),
        )
        after = tensordict.select(key["reward"], key["terminated"], key["done"])
        states = {self._keys[name]: found.get(key[name]) for name in ("state", "belief")}
        return LossesAndData(losses, after.update(TensorDict(states, batch_size=size)))  # pyright: ignore[reportArgumentType]


def _sample_key(head: Any, owner: str) -> NestedKey:
    """Return the key under which a head samples, which is that of its target in the batch."""
    keys = getattr(head, "dist_sample_keys", None)
    if not keys or len(keys) != 1:
        raise ContractError(
            f"{owner}: the decoder {type(head).__name__} has to sample one entry, whose key is that of its target:"
            " build a ProbabilisticTensorDictSequential with out_keys=[('next', 'pixels')], for example"
        )
    return unwrap(keys[0])


@final
class DreamerV3ActorLoss(ImaginedActorLoss):
    """Loss of DreamerV3's actor in imagination: policy gradient with advantages scaled by the range of returns.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, eq. 6 and 7. No gradient passes
    through the model, for discrete and continuous actions. The range of returns follows in training mode.

    Reads ``state`` and ``belief`` ``[*B, .]``, of which each row starts an imagined trajectory. Returns
    `LossesAndData`: ``loss_actor``, and the detached ``entropy``, ``return_scale`` and ``imagined_return``; and the
    imagined steps ``[N, horizon]`` with ``lambda_target`` and ``discount_weight`` ``[N, horizon, 1]``. The first
    ``lambda_target`` of each row is the ``bootstrap`` of `DreamerV3ValueLoss.replay_value_loss`.

    Args:
        actor_model: Policy with ``get_dist``.
        value_model: Critic with ``get_dist``, whose mean is the value; no part of ``parameters()``.
        model_based_env: Model of the environment, whose ``step(td)`` reads state, belief and action, and writes the
            next ones and ``reward`` under ``next``; no part of ``parameters()``.
        continuation_model: Head of the continuation, with ``get_dist`` of a Bernoulli distribution, as
            `DreamerV3ModelLoss` trains it: its mean *includes the discount*. Without it no episode ends in imagination.
        imagination_horizon: Number of imagined steps.
        entropy_bonus: Weight of the entropy of the policy.
        return_normalization_rate: Share of a batch in the moving range of returns, in [0, 1].
        return_normalization_quantiles: Quantiles of the range.
        return_normalization_min_scale: Smallest divisor of advantages.
        gamma: Discount where there is no `continuation_model`.
        lmbda: Weight of longer returns, in [0, 1].

    Raises:
        ArgumentError: If an argument is out of its range.
        ContractError: If actor or critic have no distribution.
    """

    def __init__(  # noqa: PLR0913 - the names of TorchRL
        self,
        actor_model: nn.Module,
        value_model: nn.Module,
        model_based_env: Any,
        *,
        continuation_model: nn.Module | None = None,
        imagination_horizon: int = 15,
        entropy_bonus: float = 3e-4,
        return_normalization_rate: float = 0.01,
        return_normalization_quantiles: tuple[float, float] = (0.05, 0.95),
        return_normalization_min_scale: float = 1.0,
        gamma: float = 1 - 1 / 333,
        lmbda: float = 0.95,
    ) -> None:
        others = (value_model, model_based_env, continuation_model)
        super().__init__(actor_model, others, imagination_horizon, gamma, lmbda)
        self.entropy_bonus = as_number(entropy_bonus, type(self).__name__, "entropy_bonus", least=0)
        self.return_scale = PercentileScale(
            return_normalization_rate, *return_normalization_quantiles, return_normalization_min_scale
        )
        self.derive_early()

    def _derive(self) -> Contract:
        value_model, _, continuation_model = self._others
        self._actor, self._value = ActorCall(self.actor_model), ActorCall(value_model)
        self._continuation = None if continuation_model is None else ActorCall(continuation_model)
        return Contract(
            tuple(map(Key, self._start_keys())),
            (
                scalar("loss_actor", "policy gradient and entropy bonus"),
                scalar("entropy", "mean entropy of the policy, nats, no gradient"),
                scalar("return_scale", "divisor of advantages, no gradient"),
                scalar("imagined_return", "mean return, no gradient"),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> LossesAndData:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Imagine trajectories from the states of a batch, and compute the loss.

        Args:
            tensordict: Batch, ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
        """
        start = start_states(tensordict, self._start_keys(), type(self).__name__)
        data, value = self._returns(start)
        target, weight = data.get("lambda_target"), data.get(self._keys["discount_weight"])
        if self.training:
            self.return_scale.update(target)
        scale = self.return_scale()
        dist = head_of(self._actor, data)
        size = data.batch_size
        action = data.get(self._keys["action"])
        entropy = sum_to(size, entropy_of(dist))
        loss = reinforce_objective(
            sum_to(size, sum_log_probs(dist.log_prob(action))),
            ((target - value) / scale).squeeze(-1),
            entropy,
            weight.squeeze(-1),
            self.entropy_bonus,
        ).mean()
        return LossesAndData(
            TensorDict(
                loss_actor=loss,
                entropy=entropy.detach().mean(),
                return_scale=scale,
                imagined_return=target.mean(),
            ),
            data,
        )

    @torch.no_grad()
    def _returns(self, start: TensorDictBase) -> tuple[TensorDictBase, Tensor]:
        """Return imagined steps with returns and weights, and the values ``[N, T, 1]`` of their states."""
        _, env, _ = self._others
        steps, states = imagine(start, self.actor_model, env, self.imagination_horizon)
        after = steps.get("next")
        value: Tensor = head_of(self._value, states).mean
        if self._continuation is None:
            live = torch.full_like(value, float(self.gamma))
            live[:, 0] = 1.0
        else:
            live = head_of(self._continuation, states).mean.reshape(value.shape)  # pyright: ignore[reportOptionalMemberAccess]
        never = torch.zeros_like(value[:, 1:])
        target = lambda_return(
            after.get(self._keys["reward"]), value[:, 1:], never, 1 - live[:, 1:], 1.0, float(self.lmbda)
        )
        steps.set("lambda_target", target)
        return steps.set(self._keys["discount_weight"], imagination_weight(live)[:, :-1]), value[:, :-1]


@final
class DreamerV3ValueLoss(LossModule):
    """Loss of DreamerV3's critic: likelihood of returns, near a slow copy, in imagination and in replay.

    Hafner et al., "Mastering diverse control tasks through world models", Nature 2025, section "Critic learning". The
    targets come from the critic itself; ``target_value_model`` is a slow copy, which `SoftUpdate` with ``tau=0.02``
    moves after each step of the optimizer, and whose predictions are a second target.

    Reads the inputs of the critic, ``lambda_target`` and ``discount_weight`` ``[N, T, 1]``, as `DreamerV3ActorLoss`
    writes them. Returns `LossesAndData`: ``loss_value``, and the detached ``value_slow_loss``; and the batch.

    Args:
        value_model: Critic with ``get_dist``, whose event is ``[1]``: two-hot over exponential bins.
        slow_critic_regularization: Weight of the predictions of the slow copy as targets.
        replay_weight: Weight of `replay_value_loss`.
        gamma: Discount of replayed rewards, in [0, 1].
        lmbda: Weight of longer returns in replay, in [0, 1].

    Raises:
        ArgumentError: If an argument is out of its range.
        ContractError: If the critic has no distribution.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "lambda_target": "lambda_target",
        "discount_weight": "discount_weight",
        "bootstrap": "bootstrap",
        "reward": "reward",
        "done": "done",
        "terminated": "terminated",
        "mask": MASK,
    }

    def __init__(
        self,
        value_model: nn.Module,
        *,
        slow_critic_regularization: float = 1.0,
        replay_weight: float = 0.3,
        gamma: float = 1 - 1 / 333,
        lmbda: float = 0.95,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        self.value_model, self.target_value_model = value_model, make_target(value_model, owner)
        self.slow_critic_regularization = as_number(
            slow_critic_regularization, owner, "slow_critic_regularization", least=0
        )
        self.replay_weight = as_number(replay_weight, owner, "replay_weight", least=0)
        self.gamma = as_number(gamma, owner, "gamma", least=0, most=1)
        self.lmbda = as_number(lmbda, owner, "lmbda", least=0, most=1)
        self.derive_early()

    def _derive(self) -> Contract:
        self._value, self._slow = ActorCall(self.value_model), ActorCall(self.target_value_model)
        reads = [*self._value.in_keys, self._keys["lambda_target"], self._keys["discount_weight"]]
        return Contract(
            tuple(map(Key, reads)),
            (
                scalar("loss_value", "negative log-likelihood of returns and slow values"),
                scalar("value_slow_loss", "that of the slow values, no gradient"),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> LossesAndData:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Compute the loss of imagined steps.

        Args:
            tensordict: Steps, ``[N, T]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        self.read(tensordict)
        weight = tensordict.get(self._keys["discount_weight"]).squeeze(-1)
        both, slow = self._regression(tensordict, tensordict.get(self._keys["lambda_target"]))
        losses = TensorDict(loss_value=(weight * both).mean(), value_slow_loss=(weight * slow).mean().detach())
        return LossesAndData(losses, tensordict)

    def _regression(self, states: TensorDictBase, target: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each state ``[*B]``, and the part of it that is due to the slow copy."""
        dist = head_of(self._value, states)
        with torch.no_grad():
            slow_value = head_of(self._slow, states).mean
        slow = -self.slow_critic_regularization * dist.log_prob(slow_value)
        return critic_regression(dist, target) + slow, slow

    def replay_value_loss(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the loss of replayed sequences, whose gradient reaches the world model through the states.

        The return of a state is that of the rewards that were replayed after it, and of the imagined returns
        ``bootstrap`` of the states that follow. A truncated segment ends with a bootstrap, a terminal one without.

        Args:
            tensordict: States of `DreamerV3ModelLoss` ``[*B, T]``, with ``bootstrap`` ``[*B, T, 1]``, and under
                ``next`` reward and flags of *arriving* at each state.

        Returns:
            The weighted scalar ``loss_replay_value``.

        Raises:
            ContractError: If ``bootstrap`` is absent.
            ShapeError: If there are fewer than two steps, or shapes do not agree.
        """
        keys = self._keys
        names = [next_key(keys[name]) for name in ("reward", "done", "terminated")]
        reads = Key(keys["bootstrap"], (1,), "first imagined return of each state"), *map(Key, names)
        entries, mask = self.read(tensordict, Contract((*reads, *mask_keys_of_steps(keys["mask"]))))
        if not tensordict.ndim or tensordict.shape[-1] < 2:
            raise ShapeError(f"{type(self).__name__}: {list(tensordict.shape)} has no state with a successor")
        bootstrap = entries[keys["bootstrap"]].detach()
        reward, last, terminal = (entries[name] for name in names)
        reward, bootstrap, ends, terminal = (leaf[..., 1:, :] for leaf in (reward, bootstrap, last, terminal))
        target = lambda_return(reward, bootstrap, ends, terminal, self.gamma, self.lmbda)
        loss, _ = self._regression(tensordict[..., :-1], target)
        # The state after an end belongs to another episode, so a state at an end has no return here.
        counts = ~last[..., :-1, :].squeeze(-1)
        counts = counts if mask is None else counts & mask[..., :-1] & mask[..., 1:]
        return TensorDict(loss_replay_value=self.replay_weight * (loss * counts).mean())
