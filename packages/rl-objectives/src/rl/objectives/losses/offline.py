"""Losses of offline reinforcement learning: IQL, CQL and TD3+BC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import as_integer, as_number, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import SpecError
from rl.core.keys import NestedKey
from rl.objectives._agents import Entries
from rl.objectives._batch import mean_of, scalar
from rl.objectives._keyed_module import select_action, sum_log_probs
from rl.objectives._networks import ActorCall, NetworkCall
from rl.objectives.functional import advantage_weight, conservative_gap, expectile_loss
from rl.objectives.functional._q_learning import reduce
from rl.objectives.losses.actor_critic._base import Batch, OffPolicyLoss, TD3Loss, chosen_values
from rl.objectives.losses.actor_critic._sac import SACLoss
from rl.objectives.losses.policy_gradient._base import weighted_entropy
from rl.objectives.losses.q_learning import DQNLoss

__all__ = ["CQLLoss", "DiscreteCQLLoss", "DiscreteIQLLoss", "IQLLoss", "TD3BCLoss"]


@module_arguments()
class IQLLoss(OffPolicyLoss):
    """Implicit Q-learning: values of the better actions of a dataset, without values of other actions.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022, eq. 5 to 7.

    Reads the inputs of the networks, those of the value network also under ``next``, ``action``,
    ``("next", "reward")``, ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]``,
    ``priority_weight`` ``[*B]`` and ``("collector", "mask")`` bool ``[*B]``. Returns scalars: ``loss_actor``,
    ``loss_qvalue`` and ``loss_value``, to be summed and minimized, and the detached ``entropy`` and means of
    ``td_error`` (absolute), ``pred_value`` and ``target_value``. Writes ``td_error`` ``[*B]`` into the batch.

    Args:
        actor_network: Policy with a distribution.
        qvalue_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics
            are copies with new initial parameters. Or a list of critics.
        value_network: Network that writes ``state_value`` ``[*B, 1]``.
        num_qvalue_nets: Number of critics.
        loss_function: Name of the distance of the critics, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        temperature: Inverse temperature of the weights of actions, at least 0; 0 is behavior cloning.
        expectile: Expectile of the values of actions that is fitted, in [0, 1]; 0.5 is their mean, 1 the best.
        gamma: Discount, in [0, 1].
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule, TensorDictSequential
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc"], ["action"], distribution_class=lambda loc: Independent(Normal(loc, 1.0), 1)
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), ["observation"], ["loc"])
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> value = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
        >>> loss = IQLLoss(ProbabilisticTensorDictSequential(body, head), critic, value, expectile=0.7)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"] + out["loss_value"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {**OffPolicyLoss.default_keys, "value": "state_value"}

    value_network: nn.Module

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module,
        *,
        num_qvalue_nets: int = 2,
        loss_function: str = "smooth_l1",
        temperature: float = 1.0,
        expectile: float = 0.5,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        owner = type(self).__name__
        as_number(temperature, owner, "temperature", least=0)
        as_number(expectile, owner, "expectile", least=0, most=1)
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=True,
            delay_actor=False,
            gamma=gamma,
            reduction=reduction,
        )
        self.temperature, self.expectile = temperature, expectile
        self.value_network = value_network
        self.derive_early()

    def _derive_actor(self) -> list[NestedKey]:
        self._policy = ActorCall(self.actor_network)
        network = self._modules.get("value_network")
        if network is None:  # it is set after the first derivation
            return self._policy.in_keys
        self._value = NetworkCall(network, {"value": self._keys["value"]})
        return [*self._policy.in_keys, *self._value.in_keys]

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_actor", "negative log-probability of the actions, weighted by their advantage"),
            scalar("loss_value", "expectile regression of the value to those of the actions"),
            scalar("entropy", "entropy of the policy, nats, no gradient"),
        )

    def _next_value(self, batch: Batch) -> Tensor:
        return self._value(batch.after, batch.size)[0]

    def _action_values(self, call: NetworkCall, batch: Batch) -> Tensor:
        """Return the values of the actions that were taken, ``[n, *B, 1]``."""
        (values,) = call(batch.entries, batch.size)
        return values

    def _predicted(self, batch: Batch) -> Tensor:
        return self._action_values(self._critic_call, batch)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            action_value = self._action_values(self._target_critic, batch).amin(0)
        (value,) = self._value(batch.entries, batch.size)
        dist = self._policy(batch.entries, batch.size)
        log_prob = sum_log_probs(dist.log_prob(select_action(batch.entries, self._keys["action"], batch.size)))
        # weighted cloning, exp(beta * (Q - V)) * log pi(a|s) (eq. 7), and the expectile of Q in V (eq. 5)
        weight = advantage_weight((action_value - value.detach()).squeeze(-1), self.temperature)
        fit = expectile_loss(action_value - value, self.expectile).squeeze(-1)
        with torch.no_grad():
            _, entropy = weighted_entropy(dist, 0.0, 1, self.reduction, batch.mask)
        return {
            "loss_actor": reduce(-weight * log_prob, self.reduction, batch.mask),
            "loss_value": reduce(fit, self.reduction, batch.mask),
            "entropy": mean_of(entropy, batch.mask),
        }


@final
class DiscreteIQLLoss(IQLLoss):
    """Implicit Q-learning for discrete actions: critics of all actions.

    Kostrikov et al., "Offline reinforcement learning with implicit Q-learning", 2022. Keys and behavior are those of
    `IQLLoss`; ``action`` is one-hot ``[*B, n]`` or integer ``[*B]``.

    Args:
        actor_network: Policy with a discrete distribution.
        qvalue_network: Network that writes ``action_value`` ``[*B, n]``, or a list of critics.
        value_network: Network that writes ``state_value`` ``[*B, 1]``.
        others: Arguments of `IQLLoss`.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), ["observation"], ["logits"])
        >>> critic = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action_value"])
        >>> value = TensorDictModule(nn.Linear(3, 1), ["observation"], ["state_value"])
        >>> DiscreteIQLLoss(ProbabilisticTensorDictSequential(body, head), critic, value).out_keys[:3]
        ['loss_actor', 'loss_value', 'entropy']
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {**IQLLoss.default_keys, "action_value": "action_value"}
    _critic_reads: ClassVar[str] = "action_value"

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: Any,
        value_network: nn.Module,
        *,
        action_space: Any = None,
        **others: Any,
    ) -> None:
        del action_space  # of TorchRL: the batch and the critics say it
        super().__init__(actor_network, qvalue_network, value_network, **others)

    def _action_values(self, call: NetworkCall, batch: Batch) -> Tensor:
        key = self._keys["action"]
        return chosen_values(super()._action_values(call, batch), batch.entries[key], key, type(self).__name__)


#: actions of which the largest value counts, with `max_q_backup`
BACKUP_ACTIONS = 10


@final
class CQLLoss(SACLoss):
    """Conservative Q-learning: `SACLoss` whose critics assign low values to actions that are not in the data.

    Kumar et al., "Conservative Q-learning for offline reinforcement learning", 2020, eq. 4 and appendix F.

    Keys are those of `SACLoss`. Returns what it returns, and ``loss_cql``, to be added to the others, and with
    `with_lagrange` ``loss_alpha_prime``.

    Args:
        actor_network: Policy with a distribution that has ``rsample``, such as `TanhNormal`.
        qvalue_network: Argument of `SACLoss`.
        action_spec: Bounds of the actions, from which random ones are sampled; that of the actor if None.
        temperature: Temperature of the soft maximum over actions, above 0.
        min_q_weight: Weight of ``loss_cql``.
        max_q_backup: Whether a next state has the largest value of ten sampled actions.
        deterministic_backup: Whether the entropy is left out of the values of next states.
        num_random: Actions of each kind (random, of the policy here, of the policy in the next state) that stand for
            all actions.
        with_lagrange: Whether the weight of the penalty is learned, such that it is `lagrange_thresh`.
        lagrange_thresh: Wanted penalty with `with_lagrange`, units of return.
        actor_bc: Whether the actor maximizes the log-probability of the actions of the data instead of the values, as
            the authors' code does at first. It is an attribute: set it to False to follow the values.
        others: Arguments of `SACLoss`.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.
        SpecError: If the bounds of the actions are unknown.

    Example:
        >>> from rl.core.specs import Bounded
        >>> from tensordict.nn import (
        ...     NormalParamExtractor,
        ...     ProbabilisticTensorDictModule,
        ...     ProbabilisticTensorDictSequential,
        ...     TensorDictModule,
        ...     TensorDictSequential,
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> body = nn.Sequential(nn.Linear(3, 4), NormalParamExtractor())
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc", "scale"], ["action"], distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1)
        ... )
        >>> actor = ProbabilisticTensorDictSequential(TensorDictModule(body, ["observation"], ["loc", "scale"]), head)
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> loss = CQLLoss(actor, critic, action_spec=Bounded(-1, 1, shape=(2,)))
        >>> "loss_cql" in loss.out_keys
        True
    """

    _options: ClassVar[tuple[str, ...]] = ("with_lagrange",)

    with_lagrange: bool = False

    def __init__(  # noqa: PLR0913 - each is one documented part of the loss
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        action_spec: Any = None,
        temperature: float = 1.0,
        min_q_weight: float = 1.0,
        max_q_backup: bool = False,
        deterministic_backup: bool = True,
        num_random: int = 10,
        with_lagrange: bool = False,
        lagrange_thresh: float = 0.0,
        actor_bc: bool = False,
        **others: Any,
    ) -> None:
        as_number(temperature, "CQLLoss", "temperature", above=0)
        as_number(min_q_weight, "CQLLoss", "min_q_weight", least=0)
        as_integer(num_random, "CQLLoss", "num_random", least=1)
        super().__init__(actor_network, qvalue_network, action_spec=action_spec, **others)
        self.temperature, self.min_q_weight, self.num_random = temperature, min_q_weight, num_random
        self.max_q_backup, self.deterministic_backup = max_q_backup, deterministic_backup
        self.lagrange_thresh, self.with_lagrange, self.actor_bc = lagrange_thresh, with_lagrange, actor_bc
        low, high = _bounds(getattr(actor_network, "spec", None) if action_spec is None else action_spec, self._keys)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", self._to_networks(low))
        self.register_buffer("high", self._to_networks(high))
        self.log_alpha_prime = nn.Parameter(self._to_networks(torch.zeros(()))) if with_lagrange else None
        self.derive_early()

    def _writes(self) -> tuple[Key, ...]:
        prime = (scalar("loss_alpha_prime", "loss of the weight of the penalty"),) if self.with_lagrange else ()
        return (*super()._writes(), scalar("loss_cql", "values of actions that are not in the data"), *prime)

    def _next_value(self, batch: Batch) -> Tensor:
        if self._value is not None or not (self.max_q_backup or self.deterministic_backup):
            return super()._next_value(batch)
        count = BACKUP_ACTIONS if self.max_q_backup else 1
        action, _ = self._sample_actions(self._target_policy, batch.after, batch.size, count)
        values = self._all_values(self._target_critic, batch.after, action, batch.size)
        return values.amax(1).amin(0)

    def _actor_values(self, batch: Batch, dist: Distribution, action: Any) -> Tensor:
        if not self.actor_bc:
            return super()._actor_values(batch, dist, action)
        return sum_log_probs(dist.log_prob(batch.entries[self._keys["action"]])).unsqueeze(-1).unsqueeze(0)

    @staticmethod
    def _sample_actions(policy: ActorCall, entries: Entries, size: torch.Size, count: int) -> tuple[Tensor, Tensor]:
        """Sample actions ``[count, *B, d]`` and their log-probabilities ``[count, *B]``, without gradient."""
        with torch.no_grad():
            dist, shape = policy(entries, size), torch.Size([count])
            fused = getattr(dist, "rsample_and_log_prob", None)
            if fused is not None:
                return fused(shape)
            action = dist.sample(shape)
            return action, dist.log_prob(action)

    def _all_values(self, call: Any, entries: Entries, action: Tensor, size: torch.Size) -> Tensor:
        """Return the values of several actions in each state, ``[n, count, *B, 1]``."""
        count = len(action)
        repeated = {key: entries[key].expand(count, *entries[key].shape) for key, _ in self._inputs}
        return self._values(call, repeated, action, torch.Size([count, *size]))

    def _critic_part(self, batch: Batch) -> dict[str, Tensor]:
        out, size, count = super()._critic_part(batch), batch.size, self.num_random
        # Importance samples of actions, [3 * count, *B]: uniform ones, and of the policy in this and in the next state
        here, here_log_prob = self._sample_actions(self._policy, batch.entries, size, count)
        there, there_log_prob = self._sample_actions(self._policy, batch.after, size, count)
        random = self.low + torch.rand_like(here) * (self.high - self.low)
        density = -torch.log(self.high - self.low).expand(here.shape[-1:]).sum()
        log_density = torch.cat([density.expand_as(here_log_prob), here_log_prob, there_log_prob])
        values = self._all_values(self._critic_call, batch.entries, torch.cat([random, here, there]), size).squeeze(-1)
        # logsumexp of Q over all actions, less Q of the action in the data, for each critic (eq. 4)
        gaps = [
            conservative_gap(mine, log_density, taken, self.temperature)
            for mine, taken in zip(values, self._predicted(batch).squeeze(-1), strict=True)
        ]
        penalty = self.min_q_weight * torch.stack(gaps)
        if self.log_alpha_prime is not None:
            weight = self.log_alpha_prime.exp().clamp(0, 1e6)
            # dual descent: the weight rises while the penalty is above the threshold
            excess = penalty - self.lagrange_thresh
            out["loss_alpha_prime"] = reduce(-(weight * excess.detach()).sum(0), self.reduction, batch.mask)
            penalty = weight.detach() * excess
        out["loss_cql"] = reduce(penalty.sum(0), self.reduction, batch.mask)
        return out


def _bounds(spec: Any, keys: Any) -> tuple[Tensor, Tensor]:
    from rl.core.specs import Bounded, Composite

    leaf = spec[keys["action"]] if isinstance(spec, Composite) else spec
    if not isinstance(leaf, Bounded) or not bool((leaf.low.isfinite() & leaf.high.isfinite()).all()):
        raise SpecError(
            f"CQLLoss: action_spec must be Bounded with finite ends, got {leaf!r:.80}: random actions are sampled"
            " from it; pass action_spec"
        )
    return leaf.low.clone(), leaf.high.clone()


@final
class DiscreteCQLLoss(DQNLoss):
    """Conservative Q-learning for discrete actions: `DQNLoss` with low values for actions that are not in the data.

    Kumar et al., "Conservative Q-learning for offline reinforcement learning", 2020, eq. 4.

    Keys are those of `DQNLoss`. Returns ``loss_qvalue`` and ``loss_cql``, to be added, and the detached
    means of ``td_error``, ``pred_value`` and ``target_value``.

    Args:
        value_network: Network that writes ``action_value`` ``[*B, n]``.
        min_q_weight: Weight of ``loss_cql``.
        others: Arguments of `DQNLoss`.

    Raises:
        ContractError: If the network does not write ``action_value``.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action_value"])
        >>> DiscreteCQLLoss(net, action_space="categorical").out_keys[:2]
        ['loss_qvalue', 'loss_cql']
    """

    def __init__(self, value_network: nn.Module, *, min_q_weight: float = 1.0, **others: Any) -> None:
        super().__init__(value_network, **others)
        self.min_q_weight = as_number(min_q_weight, "DiscreteCQLLoss", "min_q_weight", least=0)

    def _derive(self) -> Contract:
        contract = super()._derive()
        losses = (
            scalar("loss_qvalue", "distance of action values and targets"),
            scalar("loss_cql", "soft maximum of the values, minus that of the action taken"),
        )
        return Contract(contract.reads, (*losses, *contract.writes[1:]))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: If shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size = self._keys, tensordict.batch_size
        action_value, after = self._evaluate(entries, size)
        predicted = self._value_of_action(action_value, entries[keys["action"]])
        with torch.no_grad():
            target = self._target(tensordict, entries, mask, self._next_value(entries, after, size))
        gap = self.min_q_weight * (torch.logsumexp(action_value, -1, keepdim=True) - predicted).squeeze(-1)
        found = self._fit(tensordict, predicted, target, entries, mask)
        rest = {str(name): value for name, value in found.items() if name != "loss"}
        return TensorDict(
            {
                "loss_qvalue": found.get("loss"),
                "loss_cql": reduce(gap, self.reduction, mask),
                **rest,
            }
        )


@final
class TD3BCLoss(TD3Loss):
    """TD3 for a dataset: the actor also stays close to the actions of the data.

    Fujimoto and Gu, "A minimalist approach to offline reinforcement learning", 2021, eq. 3 and 5.

    Keys are those of `TD3Loss`. Returns what it returns, and the detached ``bc_loss``, the squared distance to the
    actions of the batch, and ``lmbd``, the weight of the values.

    Args:
        actor_network: Network that writes ``action``.
        qvalue_network: Argument of `TD3Loss`.
        alpha: Weight of the values against imitation, above 0; they are divided by their mean absolute value.
        others: Arguments of `TD3Loss`.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule, TensorDictSequential
        >>> actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> loss = TD3BCLoss(actor, critic, bounds=(-torch.ones(2), torch.ones(2)))
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.zeros(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"]).backward()
    """

    def __init__(self, actor_network: nn.Module, qvalue_network: Any, *, alpha: float = 2.5, **others: Any) -> None:
        super().__init__(actor_network, qvalue_network, **others)
        self.alpha = as_number(alpha, "TD3BCLoss", "alpha", above=0)

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_actor", "negative weighted value of the actor's actions, plus their distance to the data"),
            scalar("bc_loss", "squared distance of the actor's actions to the data, no gradient"),
            scalar("lmbd", "weight of the values, no gradient"),
        )

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        (action,) = self._policy(batch.entries, batch.size)
        (value,) = self._first_critic({**batch.entries, **self._acted(action)}, batch.size)
        value = value.squeeze(-1)
        # pi = argmax lambda * Q(s, pi(s)) - (pi(s) - a)^2 with lambda = alpha / mean |Q| (eq. 3 and 5)
        imitation = (action - batch.entries[self._keys["action"]]).square().mean(-1)
        weight = self.alpha / mean_of(value.detach().abs(), batch.mask).clamp_min(1e-6)
        return {
            "loss_actor": reduce(imitation - weight * value, self.reduction, batch.mask),
            "bc_loss": mean_of(imitation.detach(), batch.mask),
            "lmbd": weight,
        }
