"""Proximal policy optimization, with and without a clip."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core._sequences import check_sequences
from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError, SpecError
from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives._counted import MASK, counted_steps, fitted, mask_key, mean_of, mean_std
from rl.objectives._distance import distance, reduce, refuse_empty, reject_unknown
from rl.objectives._loss_module import LossModule
from rl.objectives._networks import ActorCall, NetworkCall, actor_keys, input_key, joint_states
from rl.objectives._surrogate import clipped_surrogate, surrogate
from rl.objectives.value._estimator import ValueEstimatorBase
from rl.objectives.value._kinds import ValueEstimators, make_estimator

__all__ = ["ClipPPOLoss", "PPOLoss"]

_LOG_PROB_REMEDY = "Build the actor with return_log_prob=True, or name the key with loss.set_keys(sample_log_prob=...)"
_ADVANTAGE_REMEDY = (
    "Run an estimator on the batch as it was collected, GAE(value_network=critic)(batch), or call"
    " loss.make_value_estimator() and give the loss batches [*B, T] in time order"
)
_PER_DIMENSION = "; one that scores each dimension of the action by itself needs torch.distributions.Independent"


@_foreign.ppo_loss
class PPOLoss(LossModule):
    """Policy gradient on the probability ratio, with a critic and an entropy bonus; nothing is clipped.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 6 and 9.

    Reads the inputs of both networks, ``action``, ``action_log_prob`` ``[*B]``, ``advantage`` and ``value_target``
    ``[*B, 1]``; where ``("collector", "mask")`` bool ``[*B]``, if there, is false, a step is padding, which counts
    nothing. Returns scalars: ``loss_objective``, ``loss_critic``, ``loss_entropy``, to be summed and minimized, and
    detached ``entropy``, ``kl_approx``, ``ESS``, ``explained_variance``. The batch stays as it is. Without
    ``advantage`` in the batch it is estimated (`make_value_estimator`), which needs whole sequences: a dimension named
    ``time``. Networks that carry state read the batch as sequences, whose last dimension is time; steps that were
    shuffled are refused.

    Args:
        actor_network: policy with a distribution; gives log-probabilities ``[*B]``.
        critic_network: writes ``state_value`` ``[*B, 1]``.
        entropy_coeff: weight of the entropy bonus, at least 0.
        critic_coeff: weight of the critic's loss, at least 0.
        loss_critic_type: ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        normalize_advantage: whether the advantage is scaled to mean 0 and standard deviation 1 over the batch.
        clip_value: if given, the critic gains nothing from moving further than this from ``state_value`` in the batch,
            units of return.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch; ``"none"`` has 0 at padding.
        samples_mc_entropy: number of actions that estimate the entropy of a distribution without a formula for it.
        diagnostics: whether the detached figures are computed, too; on small networks they are a fifth of the cost.

    Raises:
        ContractError: if the networks do not say what they read and write.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> loss = PPOLoss(actor, critic)
        >>> loss.in_keys
        ['observation', 'action', 'action_log_prob', 'advantage', 'value_target']
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = loss(batch)
        >>> (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    """

    _defaults: ClassVar[dict[str, NestedKey]] = {
        "advantage": "advantage",
        "value_target": "value_target",
        "value": "state_value",
        "sample_log_prob": "action_log_prob",
        "action": "action",
        "reward": "reward",
        "done": "done",
        "terminated": "terminated",
        "mask": MASK,
    }
    _default_estimator: ClassVar[ValueEstimators] = ValueEstimators.GAE
    _derived: ClassVar[tuple[str, ...]] = ("_actor", "_critic", "_usual")
    _decisive: ClassVar[tuple[str, ...]] = ("clip_value", "diagnostics")

    actor_network: nn.Module
    critic_network: nn.Module

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        entropy_coeff: float = 0.01,
        critic_coeff: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        normalize_advantage: bool = False,
        clip_value: float | None = None,
        reduction: str = "mean",
        samples_mc_entropy: int = 1,
        diagnostics: bool = True,
    ) -> None:
        super().__init__()
        owner = type(self).__name__
        reject_unknown(owner, kind=loss_critic_type, reduction=reduction)
        for name, weight in (("entropy_coeff", entropy_coeff), ("critic_coeff", critic_coeff)):
            if not weight >= 0:
                raise SpecError(f"{owner} got {name}={weight}; it is a number of at least 0")
        if samples_mc_entropy < 1:
            raise SpecError(f"{owner} got samples_mc_entropy={samples_mc_entropy}; it is at least 1")
        self.actor_network, self.critic_network = actor_network, critic_network
        self.entropy_coeff, self.critic_coeff = entropy_coeff, critic_coeff
        self.loss_critic_type, self.reduction = loss_critic_type, reduction
        self.normalize_advantage, self.clip_value = normalize_advantage, clip_value
        self.samples_mc_entropy, self.diagnostics = samples_mc_entropy, diagnostics
        self._keys.update(actor_keys(actor_network))
        self._prepare()

    def _prepare(self) -> None:
        keys, clip = self._keys, self.clip_value
        if clip is not None and (isinstance(clip, bool) or not clip > 0):
            owner = type(self).__name__
            raise SpecError(f"{owner} got clip_value={clip}; it is a width above 0 in units of return, or None")
        self._actor = ActorCall(self.actor_network)
        self._critic = NetworkCall(self.critic_network, [keys["value"]])
        self._usual: list[ValueEstimatorBase] = []  # made when first needed; in a list, so that it is no child
        inputs = list(dict.fromkeys([*self._actor.in_keys, *self._critic.in_keys]))
        self._states = joint_states(type(self).__name__, self.actor_network, self.critic_network)
        self._of_actor = [inputs.index(key) for key in self._actor.in_keys]
        self._of_critic = [inputs.index(key) for key in self._critic.in_keys]
        estimates = bool(self._estimators)
        reads = [
            *(input_key(key, self._states, "input of the networks") for key in inputs),
            Key(keys["action"], doc="action that was taken"),
            Key(keys["sample_log_prob"], (), "its log-probability when it was taken, nats", remedy=_LOG_PROB_REMEDY),
        ]
        if clip is not None:
            reads.append(Key(keys["value"], (1,), "value of the state before the update, units of return"))
        estimated = [
            Key(keys["advantage"], (1,), "advantage of the action, units of return", remedy=_ADVANTAGE_REMEDY),
            Key(keys["value_target"], (1,), "target of the critic, units of return", remedy=_ADVANTAGE_REMEDY),
        ]
        self._reads = Contract((*reads, *estimated))
        reads.append(mask_key(keys["mask"]))
        if estimates:
            estimated = [Key(key.name, key.shape, key.doc, optional=True) for key in estimated]
            known = {key.name for key in reads}
            reads += [key for key in self._estimators[0].contract.reads if key.name not in known]
        writes = [key for key in self._writes() if self.diagnostics or str(key.name).startswith("loss_")]
        self.contract = Contract((*reads, *estimated), tuple(writes))

    def _writes(self) -> tuple[Key, ...]:
        return (
            Key("loss_objective", (), "surrogate of the policy", batched=False),
            Key("loss_critic", (), "weighted distance of values and targets", batched=False),
            Key("loss_entropy", (), "weighted negative entropy", batched=False),
            Key("entropy", (), "entropy of the policy, nats, no gradient", batched=False),
            Key("kl_approx", (), "estimate of KL(old || new), nats, no gradient", batched=False),
            Key("ESS", (), "effective sample size as a share of the batch, (0, 1], no gradient", batched=False),
            Key(
                "explained_variance",
                (),
                "share of the targets' variance that the critic explains, no gradient",
                batched=False,
            ),
        )

    def _estimator_network(self) -> nn.Module | None:
        return self.critic_network

    def _estimator_actor(self) -> nn.Module | None:
        return self.actor_network

    def _surrogate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return surrogate(log_ratio, advantage)

    def _more_diagnostics(self, log_ratio: Tensor, mask: Tensor | None) -> dict[str, Tensor]:  # noqa: ARG002 - for subclasses
        return {}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """
        if tensordict.get(self._keys["advantage"], None) is None:
            tensordict = self._estimated(tensordict)
        leaves = self._reads.read(tensordict, self)
        if self._states:
            check_sequences(tensordict, self._states, type(self).__name__, done_key=self._keys["done"])
        advantage, target = leaves[-2:]
        action, old_log_prob = leaves[-4:-2] if self.clip_value is None else leaves[-5:-3]
        size = tensordict.batch_size

        dist = self._actor([leaves[i] for i in self._of_actor], size)
        mask = counted_steps(tensordict, self._keys["mask"], type(self).__name__)
        log_ratio, advantage = self._log_ratio(dist.log_prob(action), old_log_prob, advantage, mask)
        refuse_empty(type(self).__name__, log_ratio, self.reduction)
        entropy = self._entropy(dist)
        (value,) = self._critic([leaves[i] for i in self._of_critic], size)
        old_value = None if self.clip_value is None else leaves[-3]
        out = {
            "loss_objective": reduce(self._surrogate(log_ratio, advantage), self.reduction, mask),
            "loss_critic": self.critic_coeff * reduce(self._value_loss(value, target, old_value), self.reduction, mask),
            "loss_entropy": -self.entropy_coeff * reduce(entropy, self.reduction, mask),
        }
        if self.diagnostics:
            with torch.no_grad():
                out |= self._diagnostics(log_ratio, entropy, value, target, mask)
        return TensorDict(out)

    def _estimated(self, td: TensorDictBase) -> TensorDictBase:
        """The batch with advantage and target; the one that came stays as it is."""
        estimator = self.value_estimator
        if estimator is None:
            name = self._keys["advantage"]
            if "time" not in td.names:
                self._reads.refuse(td, name, self)
            if not self._usual:
                self._usual = [make_estimator(self._default_estimator, value_network=self.critic_network)]
                self._name_keys(self._usual[0])
            estimator = self._usual[0]
            if any(td.get(key, None) is None for key in estimator.in_keys):
                self._reads.refuse(td, name, self)
        if self.clip_value is None:
            return estimator(td.copy())
        name = self._keys["value"]
        old_value = td.get(name, None)
        if old_value is None:
            self._reads.refuse(td, name, self)
        # An estimator with a network writes what that says today; the clip is about what it said before the update.
        return estimator(td.copy()).set(name, old_value)

    def _log_ratio(
        self, log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Logarithm of the probability ratio, and the advantage, both ``[*B]``."""
        if log_prob.shape != old_log_prob.shape or advantage.shape != (*log_prob.shape, 1):
            keys = self._keys
            raise ShapeError(
                f"{type(self).__name__} got log-probabilities of shape {tuple(log_prob.shape)} from the actor,"
                f" {keys['sample_log_prob']!r} {tuple(old_log_prob.shape)} and {keys['advantage']!r}"
                f" {tuple(advantage.shape)}; expected [*B], [*B] and [*B, 1]{_PER_DIMENSION}"
            )
        advantage = advantage.squeeze(-1)
        if self.normalize_advantage:
            mean, std = mean_std(advantage, mask)
            advantage = (advantage - mean) / std.clamp_min(1e-6)  # a constant advantage stays finite
        return log_prob - old_log_prob.detach(), advantage

    def _entropy(self, dist: Distribution) -> Tensor:
        try:
            return dist.entropy()
        except NotImplementedError:
            shape = torch.Size([self.samples_mc_entropy])
            actions = dist.rsample(shape) if dist.has_rsample else dist.sample(shape)
            return -dist.log_prob(actions).mean(0)

    def _value_loss(self, value: Tensor, target: Tensor, old_value: Tensor | None) -> Tensor:
        plain = distance(value, target, self.loss_critic_type)
        if old_value is None or self.clip_value is None:
            return plain
        if old_value.shape != value.shape:
            raise ShapeError(
                f"{type(self).__name__} got values of shape {tuple(value.shape)} from the critic and"
                f" {self._keys['value']!r} {tuple(old_value.shape)} in the batch; expected one shape"
            )
        near = old_value + (value - old_value).clamp(-self.clip_value, self.clip_value)
        return plain.maximum(distance(near, target, self.loss_critic_type))

    def _diagnostics(
        self, log_ratio: Tensor, entropy: Tensor, value: Tensor, target: Tensor, mask: Tensor | None
    ) -> dict[str, Tensor]:
        log_ratio = log_ratio.detach()
        flat, count = log_ratio.reshape(-1), max(log_ratio.numel(), 1)
        if mask is not None:
            inside = fitted(mask, log_ratio).reshape(-1)
            flat, count = flat.where(inside, -torch.inf), inside.sum()
        doubled = torch.logsumexp(2 * flat, 0)
        unexplained, spread = (mean_std(x, mask)[1].square() for x in (target - value, target))
        return {
            "entropy": mean_of(entropy.detach(), mask),
            "kl_approx": mean_of(log_ratio.expm1() - log_ratio, mask),
            "ESS": (2 * torch.logsumexp(flat, 0) - doubled).exp() / count,
            "explained_variance": 1 - unexplained / spread.clamp_min(1e-8),
            **self._more_diagnostics(log_ratio, mask),
        }


class ClipPPOLoss(PPOLoss):
    """Proximal policy optimization with a clipped probability ratio.

    Schulman et al., "Proximal policy optimization algorithms", 2017, eq. 7 and 9.

    Keys and behaviour are those of `PPOLoss`; returns one more detached scalar, ``clip_fraction``.

    Args:
        actor_network: policy with a distribution; gives log-probabilities ``[*B]``.
        critic_network: writes ``state_value`` ``[*B, 1]``.
        clip_epsilon: half-width of the interval around ratio 1, in (0, 1).
        others: those of `PPOLoss`.

    Raises:
        ContractError: if the networks do not say what they read and write.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> ClipPPOLoss(ProbabilisticTensorDictSequential(body, head), critic, clip_epsilon=0.1).out_keys[-1]
        'clip_fraction'
    """

    def __init__(
        self, actor_network: nn.Module, critic_network: nn.Module, *, clip_epsilon: float = 0.2, **others: Any
    ) -> None:
        if not 0 < clip_epsilon < 1:
            raise SpecError(f"{type(self).__name__} got clip_epsilon={clip_epsilon}; it is in (0, 1)")
        super().__init__(actor_network, critic_network, **others)
        self.clip_epsilon = clip_epsilon

    def _writes(self) -> tuple[Key, ...]:
        more = Key("clip_fraction", (), "share of ratios outside the interval, [0, 1], no gradient", batched=False)
        return (*super()._writes(), more)

    def _surrogate(self, log_ratio: Tensor, advantage: Tensor) -> Tensor:
        return clipped_surrogate(log_ratio, advantage, self.clip_epsilon)

    def _more_diagnostics(self, log_ratio: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
        outside = (log_ratio.exp() - 1).abs() > self.clip_epsilon
        return {"clip_fraction": mean_of(outside.to(log_ratio.dtype), mask)}
