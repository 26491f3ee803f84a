"""Base of losses of a policy and a critic: contract, estimated advantages, entropy bonus, critic loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import as_integer, as_number, constructor_setting, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, UnsupportedError
from rl.core.keys import NestedKey, as_tuple, key_str, next_key, unwrap
from rl.objectives._agents import Entries, group_of, mask_keys
from rl.objectives._batch import MASK, BatchReader, mean_of, scalar
from rl.objectives._estimator_base import ValueEstimatorBase
from rl.objectives._keyed_module import as_list, select_action, sum_log_probs
from rl.objectives._networks import ActorCall, NetworkCall, actor_keys, input_key, joint_states
from rl.objectives.estimators import ValueEstimators, VTrace
from rl.objectives.functional import policy_gradient
from rl.objectives.functional._q_learning import check_distance, distance, reduce
from rl.objectives.losses._base import LossModule, of_estimator
from rl.objectives.targets import make_target

EntropyCoeff = float | Mapping[NestedKey, float]

_LOG_PROB_REMEDY = "Build the actor with return_log_prob=True, or name the key with loss.set_keys(sample_log_prob=...)"
_ADVANTAGE_REMEDY = (
    "Run an estimator on the batch as it was collected, {}(value_network=critic)(batch), or call"
    " loss.make_value_estimator() and give the loss batches [*B, T] in time order"
)
_PER_DIMENSION = "a distribution with one log-probability for each dimension needs torch.distributions.Independent"


class PolicyLoss(LossModule):
    """Base of losses that weight log-probabilities of actions by an advantage and fit a critic.

    A subclass implements `_writes` and `forward`, and sets `_reads_log_prob` if it reads the log-probability of the
    action at collection. Arguments are those of `PPOLoss`.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
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
    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.GAE
    _options: ClassVar[tuple[str, ...]] = ("clip_value", "separate_losses")
    _reads_log_prob: ClassVar[bool] = False

    actor_network: nn.Module
    critic_network: nn.Module

    gamma: float | Tensor = of_estimator("gamma")
    """Discount, after `make_value_estimator`."""
    lmbda: float | Tensor = of_estimator("lmbda")
    """Weight of longer returns, after `make_value_estimator`."""

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        critic_coeff: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(reduction=reduction)
        self.separate_losses = separate_losses
        self.loss_critic_type = check_distance(loss_critic_type, type(self).__name__)
        self.critic_coeff = self._check_weight("critic_coeff", critic_coeff)
        self.actor_network, self.critic_network, self.clip_value = actor_network, critic_network, clip_value
        self._keys.update(actor_keys(actor_network))

    def _check_weight(self, name: str, weight: float) -> float:
        as_number(weight, type(self).__name__, name, least=0)
        return weight  # as it was given: a tensor may change later

    def _writes(self) -> tuple[Key, ...]:
        raise NotImplementedError

    def _extra_reads(self) -> tuple[Key, ...]:
        return ()

    def _derive(self) -> Contract:
        keys, clip, owner = self._keys, self.clip_value, type(self).__name__
        if clip is not None:
            as_number(clip, owner, "clip_value", above=0)
        self._actor = ActorCall(self.actor_network)
        constant = self.actor_network if self.separate_losses else None
        self._critic = NetworkCall(self.critic_network, {"value": keys["value"]}, constant)
        self._default_estimators: list[
            ValueEstimatorBase
        ] = []  # created when first needed; in a list, so that it is no child
        self._states = joint_states(owner, self.actor_network, self.critic_network)
        inputs = dict.fromkeys([*self._actor.in_keys, *self._critic.in_keys])
        doc = "log-probability of the action at collection, nats"
        reads = (
            *(input_key(key, self._states, "input of the networks") for key in inputs),
            *(Key(key, doc="action that was taken") for key in as_list(keys["action"])),
            *(
                Key(key, (), doc, remedy=_LOG_PROB_REMEDY)
                for key in as_list(keys["sample_log_prob"])
                if self._reads_log_prob
            ),
            *([] if clip is None else [Key(keys["value"], (1,), "value of the state before the update")]),
            *self._extra_reads(),
        )
        of_agents = self.default_value_estimator is ValueEstimators.MAGAE
        remedy = _ADVANTAGE_REMEDY.format("MultiAgentGAE" if of_agents else "GAE")
        estimated = (
            Key(keys["advantage"], (1,), "advantage of the action, units of return", remedy=remedy),
            Key(keys["value_target"], (1,), "target of the critic, units of return", remedy=remedy),
        )
        masks = mask_keys(keys["mask"], self._agents)
        self._reads = Contract((*reads, *estimated, *masks))
        self._estimated_reader = BatchReader(self._reads, keys, owner)
        if not self._estimators:
            return Contract(self._reads.reads, self._writes())
        estimated = tuple(Key(key.name, key.shape, key.doc, optional=True) for key in estimated)
        known = {key.name for key in self._reads.reads}
        more = (key for key in self._estimators[0].contract.reads if key.name not in known)
        return Contract((*reads, *masks, *more, *estimated), self._writes())

    def _estimator_networks(self) -> dict[str, nn.Module]:
        return {"value_network": self.critic_network, "actor_network": self.actor_network}

    def read_estimated(self, tensordict: TensorDictBase) -> tuple[Entries, Tensor | None]:
        """Return `read`, with advantage and target estimated if they are absent; the batch stays as it is."""
        self.derived()
        self._estimated_reader.check_unobserved(tensordict)
        if tensordict.get(self._keys["advantage"], None) is None:
            tensordict = self._estimated(tensordict)
        return self._read(tensordict, self._estimated_reader)

    def _estimated(self, td: TensorDictBase) -> TensorDictBase:
        """Return the batch with advantage and target; the one that came stays as it is."""
        estimator, name = self.value_estimator, self._keys["advantage"]
        if estimator is None:
            if "time" not in td.names:
                self._reads.refuse(td, name, self)
            if not self._default_estimators:
                self._default_estimators = [self._make_estimator(self.default_value_estimator, {})]
                self._name_keys(self._default_estimators[0])
            estimator = self._default_estimators[0]
            if not estimator.can_read(td):
                self._reads.refuse(td, name, self)
        if self.clip_value is None:
            return estimator(td.copy())
        name = self._keys["value"]
        old_value = td.get(name, None)
        if old_value is None:
            self._reads.refuse(td, name, self)
        # An estimator with a network overwrites the value; the clip needs the one from before the update.
        return estimator(td.copy()).set(name, old_value)

    def _log_prob(self, dist: Distribution, entries: Entries, size: torch.Size) -> Tensor:
        """Return the log-probability of the action that was taken, ``[*B]``."""
        keys = self._keys
        action, among = select_action(entries, keys["action"], size), getattr(dist, "batch_shape", ())
        if isinstance(action, Tensor) and action.shape[: len(among)] != among:
            raise ShapeError(
                f"{type(self).__name__} got {key_str(keys['action'])} of shape {tuple(action.shape)}, and the actor"
                f" gives distributions of {tuple(among)} actions: collect with a policy of the same actions and agents"
            )
        log_prob = sum_log_probs(dist.log_prob(action))
        old = sum_log_probs(select_action(entries, keys["sample_log_prob"], size)) if self._reads_log_prob else log_prob
        advantage = entries[keys["advantage"]]
        if log_prob.shape != old.shape or advantage.shape != (*log_prob.shape, 1):
            sampled = f", {keys['sample_log_prob']!r} {tuple(old.shape)}" if self._reads_log_prob else ""
            each = "*B, n_agents" if group_of(keys["action"]) else "*B"
            raise ShapeError(
                f"{type(self).__name__} got log-probabilities of shape {tuple(log_prob.shape)} from the actor{sampled}"
                f" and {keys['advantage']!r} {tuple(advantage.shape)}; expected [{each}],"
                f"{f' [{each}]' if sampled else ''} and [{each}, 1]; {_PER_DIMENSION}"
            )
        return log_prob - old.detach() if self._reads_log_prob else log_prob

    def _value_loss(self, entries: Entries, size: torch.Size, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the critic's loss, weighted and reduced, and the values."""
        (value,) = self._critic(entries, size)
        target = entries[self._keys["value_target"]].detach()
        elements = distance(value, target, self.loss_critic_type)
        if self.clip_value is not None:
            old = entries[self._keys["value"]].detach()
            if old.shape != value.shape:
                raise ShapeError(
                    f"{type(self).__name__} got values of shape {tuple(value.shape)} from the critic and"
                    f" {self._keys['value']!r} {tuple(old.shape)} in the batch; expected one shape"
                )
            # the larger of the errors of the value and of the value clipped around the old one
            near = old + (value - old).clamp(-self.clip_value, self.clip_value)
            elements = elements.maximum(distance(near, target, self.loss_critic_type))
        return self.critic_coeff * reduce(elements, self.reduction, mask), value


def check_entropy(coeff: EntropyCoeff, samples: int, owner: str, *, bonus: bool = True) -> EntropyCoeff:
    """Raise unless weights and number of samples are in their range; return the weight, 0 without a bonus.

    Raises:
        ArgumentError: If a weight is not a number, negative or NaN, or the number of samples below 1.
    """
    if isinstance(coeff, Mapping) and not coeff:
        raise ArgumentError(
            f"{owner} got entropy_coeff={coeff}; it is a number, or a mapping with one for each action key"
        )
    for key, weight in coeff.items() if isinstance(coeff, Mapping) else [("", coeff)]:
        as_number(weight, owner, f"entropy_coeff[{key_str(key)}]" if key else "entropy_coeff", least=0)
    as_integer(samples, owner, "samples_mc_entropy", least=1)
    return coeff if bonus else 0.0


def weighted_entropy(
    dist: Distribution, coeff: EntropyCoeff, samples: int, reduction: str, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return the negated, weighted and reduced entropy, and the entropy of each element.

    Raises:
        ArgumentError: If there are weights by action, and the distribution has others.
    """
    try:
        found: Any = dist.entropy()
    except NotImplementedError:
        shape = torch.Size([samples])
        fused = getattr(dist, "rsample_and_log_prob", None)  # scores the sample before it is rounded
        if fused is not None:
            found = -fused(shape)[1].mean(0)
        else:
            actions = dist.rsample(shape) if dist.has_rsample else dist.sample(shape)
            found = -dist.log_prob(actions).mean(0)
    entropy = sum_log_probs(found)
    if not isinstance(coeff, Mapping):
        return -coeff * reduce(entropy, reduction, mask), entropy
    parts = {} if isinstance(found, Tensor) else dict(found.items(include_nested=True, leaves_only=True))
    names = {unwrap((*as_tuple(key)[:-1], f"{as_tuple(key)[-1]}_entropy")): weight for key, weight in coeff.items()}
    if parts.keys() != names.keys():
        there = ", ".join(key_str(key) for key in parts) or "one for all actions"
        raise ArgumentError(
            f"entropy_coeff has weights for {', '.join(map(key_str, coeff))}, and the entropies of the policy are"
            f" {there}: pass one weight for each action key, or a number"
        )
    bonus = torch.stack([weight * parts[name] for name, weight in names.items()]).sum(0)
    return -reduce(bonus, reduction, mask), entropy


@final
@module_arguments()
class A2CLoss(PolicyLoss):
    """Advantage actor-critic: policy gradient with a critic and an entropy bonus.

    Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, section 4 and algorithm S3, with steps
    collected together.

    Reads the inputs of both networks, ``action``, ``advantage`` and ``value_target`` ``[*B, 1]``, and
    ``("collector", "mask")`` bool ``[*B]`` if there, as `PPOLoss` does, without ``action_log_prob``.
    Returns scalars: ``loss_objective``, ``loss_critic``, ``loss_entropy``, to be summed and minimized, and the detached
    ``entropy``. Without ``advantage`` in the batch it is estimated, as by `PPOLoss`.

    Args:
        actor_network: Policy with a distribution; returns log-probabilities ``[*B]``.
        critic_network: Network that writes ``state_value`` ``[*B, 1]``.
        entropy_bonus: Whether the entropy bonus is added.
        samples_mc_entropy: Number of actions that estimate the entropy of a distribution without a formula for it.
        entropy_coeff: Weight of the entropy bonus, at least 0; for an actor with several actions also a mapping from
            action key to weight.
        critic_coeff: Weight of the critic's loss, at least 0.
        loss_critic_type: Name of the distance, ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        clip_value: Argument of `PPOLoss`.
        separate_losses: Argument of `PPOLoss`.
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at
            padding.

    Raises:
        ContractError: If a network has no ``in_keys``.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> import torch
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> loss = A2CLoss(actor, critic)
        >>> loss.in_keys
        ['observation', 'action', 'advantage', 'value_target']
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = loss(batch)
        >>> (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    """

    entropy_bonus: bool = constructor_setting("_entropy_bonus", "Assign entropy_coeff, which is 0 without a bonus")
    """Whether the entropy bonus is added."""

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: EntropyCoeff = 0.01,
        critic_coeff: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            clip_value=clip_value,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.entropy_coeff = check_entropy(entropy_coeff, samples_mc_entropy, type(self).__name__, bonus=entropy_bonus)
        self._entropy_bonus = entropy_bonus
        self.samples_mc_entropy = samples_mc_entropy
        self.derive_early()

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_objective", "policy gradient"),
            scalar("loss_critic", "weighted distance of values and targets"),
            scalar("loss_entropy", "weighted negative entropy"),
            scalar("entropy", "entropy of the policy, nats, no gradient"),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read_estimated(tensordict)
        size = tensordict.batch_size
        dist = self._actor(entries, size)
        log_prob = self._log_prob(dist, entries, size)
        objective = policy_gradient(log_prob, entries[self._keys["advantage"]].squeeze(-1))
        loss_entropy, entropy = weighted_entropy(
            dist, self.entropy_coeff, self.samples_mc_entropy, self.reduction, mask
        )
        return TensorDict(
            {
                "loss_objective": reduce(objective, self.reduction, mask),
                "loss_critic": self._value_loss(entries, size, mask)[0],
                "loss_entropy": loss_entropy,
                "entropy": mean_of(entropy.detach(), mask),
            }
        )


@final
@module_arguments()
class ReinforceLoss(PolicyLoss):
    """REINFORCE: log-probability of each action times its advantage, with a critic as baseline.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992; Sutton
    and Barto, "Reinforcement learning: an introduction", 2018, section 13.4.

    Reads the inputs of both networks, ``action``, ``advantage`` and ``value_target`` ``[*B, 1]``, and
    ``("collector", "mask")`` bool ``[*B]`` if there, as `PPOLoss` does. Returns scalars: ``loss_actor`` and
    ``loss_value``, to be summed and minimized. Without ``advantage`` in the batch it is estimated, as by `PPOLoss`;
    ``make_value_estimator("td1")`` takes all rewards to the end.

    Args:
        actor_network: Policy with a distribution; returns log-probabilities ``[*B]``.
        critic_network: Network that writes ``state_value`` ``[*B, 1]``.
        delay_value: Whether advantages are estimated with a copy, ``target_critic_network``, that `SoftUpdate` or
            `HardUpdate` moves.
        loss_critic_type: Name of the distance, ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        clip_value: Argument of `PPOLoss`.
        separate_losses: Argument of `PPOLoss`.
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at
            padding.

    Raises:
        ContractError: If a network has no ``in_keys``, or parameters of the critic to be copied have no shape.
        ArgumentError: If an argument is out of its range.

    Example:
        >>> import torch
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = ReinforceLoss(actor, critic)(batch)
        >>> (out["loss_actor"] + out["loss_value"]).backward()
    """

    target_critic_network: nn.Module | None

    delay_value: bool = constructor_setting("_delay_value")
    """Whether advantages are estimated with a copy of the critic."""

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        delay_value: bool = False,
        loss_critic_type: str = "smooth_l1",
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            loss_critic_type=loss_critic_type,
            clip_value=clip_value,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.target_critic_network = make_target(critic_network, type(self).__name__) if delay_value else None
        self._delay_value = delay_value
        self.derive_early()

    def _writes(self) -> tuple[Key, ...]:
        return scalar("loss_actor", "policy gradient"), scalar("loss_value", "distance of values and targets")

    def _estimator_networks(self) -> dict[str, nn.Module]:
        networks = super()._estimator_networks()
        target = self.target_critic_network
        return networks if target is None else {**networks, "value_network": target}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read_estimated(tensordict)
        size = tensordict.batch_size
        log_prob = self._log_prob(self._actor(entries, size), entries, size)
        objective = policy_gradient(log_prob, entries[self._keys["advantage"]].squeeze(-1))
        return TensorDict(
            {
                "loss_actor": reduce(objective, self.reduction, mask),
                "loss_value": self._value_loss(entries, size, mask)[0],
            }
        )


@final
@module_arguments()
class ImpalaLoss(PolicyLoss):
    """V-trace actor-critic: an off-policy policy gradient with a critic and an entropy bonus.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
    section 4.2. Targets and advantages are computed from the present networks in each call; an ``advantage`` of the
    batch is not read.

    Reads batches ``[*B, T]`` in time order: the inputs of both networks, those of the critic under ``next`` too,
    ``action``, ``action_log_prob`` ``[*B, T]`` of the policy that collected, ``("next", "reward")``, ``("next",
    "done")`` and, if there, ``("next", "terminated")`` ``[*B, T, 1]`` and ``("collector", "mask")`` ``[*B, T]``.
    Returns scalars: ``loss_objective``, ``loss_critic``, ``loss_entropy``, to be summed and minimized, and the detached
    ``entropy``.

    Args:
        actor_network: Policy with a distribution; returns log-probabilities ``[*B, T]``.
        critic_network: Network that writes ``state_value`` ``[*B, T, 1]``.
        gamma: Discount, in [0, 1].
        lmbda: Weight of longer returns, in [0, 1].
        rho_thresh: Largest weight of a temporal difference.
        c_thresh: Largest weight of what follows, at most `rho_thresh`.
        entropy_bonus: Whether the entropy bonus is added.
        samples_mc_entropy: Number of actions that estimate the entropy of a distribution without a formula for it.
        entropy_coeff: Weight of the entropy bonus, at least 0; for an actor with several actions also a mapping from
            action key to weight.
        critic_coeff: Weight of the critic's loss, at least 0.
        loss_critic_type: Name of the distance, ``"l2"``, ``"smooth_l1"`` or ``"l1"``.
        separate_losses: Argument of `PPOLoss`.
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` (as in the paper) or ``"none"``;
            ``"none"`` has 0 at padding.

    Raises:
        ContractError: If a network has no ``in_keys``.
        ArgumentError: If an argument is out of its range.

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
        >>> batch = actor(TensorDict(observation=torch.randn(2, 5, 3), batch_size=[2, 5])).detach()
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> batch["next"] = TensorDict(
        ...     observation=torch.randn(2, 5, 3), reward=torch.ones(2, 5, 1), done=flag, terminated=flag
        ... )
        >>> out = ImpalaLoss(actor, critic)(batch)
        >>> (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    """

    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.VTrace
    _reads_log_prob: ClassVar[bool] = True

    entropy_bonus: bool = constructor_setting("_entropy_bonus", "Assign entropy_coeff, which is 0 without a bonus")
    """Whether the entropy bonus is added."""

    def __init__(  # noqa: PLR0913 - as elsewhere
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        gamma: float = 0.99,
        lmbda: float = 1.0,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: EntropyCoeff = 0.01,
        critic_coeff: float = 0.5,
        loss_critic_type: str = "l2",
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.entropy_coeff = check_entropy(entropy_coeff, samples_mc_entropy, type(self).__name__, bonus=entropy_bonus)
        self._entropy_bonus = entropy_bonus
        self.samples_mc_entropy = samples_mc_entropy
        self.make_value_estimator(gamma=gamma, lmbda=lmbda, rho_thresh=rho_thresh, c_thresh=c_thresh)

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        if not isinstance(estimator, VTrace) or estimator.shifted or estimator.differentiable:
            raise UnsupportedError(
                f"{type(self).__name__} takes VTrace without shifted and differentiable, got"
                f" {type(estimator).__name__}: it evaluates both networks itself. For another estimator use A2CLoss"
            )

    def _derive(self) -> Contract:
        contract, computed = super()._derive(), (self._keys["advantage"], self._keys["value_target"])
        return Contract(tuple(key for key in contract.reads if key.name not in computed), contract.writes)

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_objective", "policy gradient"),
            scalar("loss_critic", "weighted distance of values and targets"),
            scalar("loss_entropy", "weighted negative entropy"),
            scalar("entropy", "entropy of the policy, nats, no gradient"),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: Batch ``[*B, T]``, in time order.

        Raises:
            ContractError: If a key that is read is absent, the batch is not in time order, or a step is terminated or
                truncated and not done.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size, owner = self._keys, tensordict.batch_size, type(self).__name__
        estimator = self._estimators[0]
        assert isinstance(estimator, VTrace)
        reader = self._reader
        raw, ended = (reader.entry(tensordict, next_key(keys[name])) for name in ("done", "terminated"))
        assert raw is not None  # it was read
        done, terminated = reader.end_flags(tensordict, raw, ended, mask)
        time = estimator.find_time(tensordict, done)
        dist = self._actor(entries, size)
        log_pi = sum_log_probs(dist.log_prob(select_action(entries, keys["action"], size)))
        log_mu = sum_log_probs(select_action(entries, keys["sample_log_prob"], size)).detach()
        if log_pi.shape != size or log_mu.shape != size:
            raise ShapeError(
                f"{owner} got log-probabilities of shape {tuple(log_pi.shape)} from the actor and {tuple(log_mu.shape)}"
                f" under {keys['sample_log_prob']!r} for a batch of shape {tuple(size)}; expected the shape of the"
                " batch; a distribution with one for each dimension needs torch.distributions.Independent"
            )
        value, next_value = self._values(entries, size)
        with torch.no_grad():
            scores = log_pi.detach().unsqueeze(-1), log_mu.unsqueeze(-1)
            reward = entries[next_key(keys["reward"])]
            advantage, target = estimator.off_policy(
                *scores, value.detach(), next_value, reward, done, terminated, time
            )
        objective = policy_gradient(log_pi, advantage.squeeze(-1))
        loss_critic = reduce(distance(value, target, self.loss_critic_type), self.reduction, mask)
        loss_entropy, entropy = weighted_entropy(
            dist, self.entropy_coeff, self.samples_mc_entropy, self.reduction, mask
        )
        return TensorDict(
            {
                "loss_objective": reduce(objective, self.reduction, mask),
                "loss_critic": self.critic_coeff * loss_critic,
                "loss_entropy": loss_entropy,
                "entropy": mean_of(entropy.detach(), mask),
            }
        )

    def _values(self, entries: Entries, size: torch.Size) -> tuple[Tensor, Tensor]:
        """Return the values of the states before and after each step, the latter without gradient."""
        if not self._critic.states:
            (value,) = self._critic(entries, size)
            with torch.no_grad():
                return value, self._critic.after(entries, size)[0]
        (value,), after = self._critic.sequence(entries, size)
        with torch.no_grad():
            return value, self._critic.following(entries, after, size)[0]
