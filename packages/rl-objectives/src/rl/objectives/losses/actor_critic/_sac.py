"""Soft actor-critic."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any, ClassVar, TypedDict, TypeVar, Unpack, final, get_args, get_type_hints

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import as_integer, as_number, constructor_setting, module_arguments, one_of
from rl.core.contract import Key
from rl.core.errors import ArgumentError, RLError, ShapeError, UnsupportedError
from rl.core.keys import NestedKey
from rl.objectives._batch import mean_of, scalar
from rl.objectives._networks import ActorCall, NetworkCall
from rl.objectives.functional import (
    expected_soft_value,
    quantile_huber,
    soft_value,
    temperature_loss,
    truncated_quantiles,
)
from rl.objectives.functional._q_learning import distance, reduce
from rl.objectives.losses.actor_critic._base import Batch, OffPolicyLoss, chosen_values, sample_action
from rl.objectives.targets import make_target

S = TypeVar("S", bound="SoftLoss")


class TargetEntropy:
    """Part of a loss with a temperature: the entropy that it is learned for."""

    _given_entropy: float | str
    _count: int | None = None
    """Number of action dimensions, or of discrete actions; None as long as it is unknown."""

    @property
    def target_entropy(self) -> float | str:
        """Entropy of the policy that the temperature is learned for, nats; it may be assigned.

        The automatic one is known from the spec of the action, of the loss or of the actor, or from the first batch:
        ``"auto"`` before. With masks of legal actions it is that without a mask.
        """
        if self._given_entropy != "auto" or self._count is None:
            return self._given_entropy
        return self._entropy_of(self._count)

    @target_entropy.setter
    def target_entropy(self, value: float | str) -> None:
        self._given_entropy = value

    def _entropy_of(self, count: int) -> float:
        """Return minus the number of action dimensions (Haarnoja et al., 2018, appendix D)."""
        return -float(count)


def action_width(spec: Any, key: NestedKey) -> int | None:
    """Return the number of dimensions of an action by its spec; None if the spec may have those of a batch."""
    from rl.core.specs import Composite

    leaf = spec.get(key, None) if isinstance(spec, Composite) else spec
    shape = () if leaf is None else leaf.shape[len(spec.shape) if isinstance(spec, Composite) else 0 :]
    return shape[0] if len(shape) == 1 else None


def log_bounds(
    owner: str, alpha_init: Any, min_alpha: Any, max_alpha: Any, target_entropy: Any
) -> tuple[float, float] | None:
    """Return the bounds of the logarithm of a temperature; None if there are none.

    Args:
        owner: Loss, for messages.
        alpha_init: First temperature, above 0.
        min_alpha: Smallest temperature; None for no bound.
        max_alpha: Largest temperature; None for no bound.
        target_entropy: Number of nats, or ``"auto"``.

    Raises:
        ArgumentError: If an argument is out of its range.

    Example:
        >>> log_bounds("SACLoss", 1.0, 1.0, None, "auto")
        (0.0, inf)
    """
    as_number(alpha_init, owner, "alpha_init", above=0)
    low = -math.inf if min_alpha is None else math.log(as_number(min_alpha, owner, "min_alpha", above=0))
    high = math.inf if max_alpha is None else math.log(as_number(max_alpha, owner, "max_alpha", above=0))
    if isinstance(target_entropy, str):
        one_of(target_entropy, owner, "target_entropy", ("auto",))
    else:
        as_number(target_entropy, owner, "target_entropy")
    if low > high:
        raise ArgumentError(f"{owner}: min_alpha must be at most max_alpha, got {min_alpha} and {max_alpha}")
    return None if min_alpha is None and max_alpha is None else (low, high)


class TemperatureOptions(TypedDict, total=False):
    """Arguments of all losses with a temperature; `SACLoss` describes them."""

    alpha_init: float
    min_alpha: float | None
    max_alpha: float | None
    fixed_alpha: bool
    target_entropy: float | str
    gamma: float
    reduction: str | None


class CrossQOptions(TemperatureOptions, total=False):
    """Arguments of `CrossQLoss`; `SACLoss` describes them."""

    loss_function: str
    action_spec: Any


class SACOptions(CrossQOptions, total=False):
    """Arguments of `SACLoss` and `REDQLoss`; `SACLoss` describes them."""

    delay_actor: bool
    delay_qvalue: bool


class TQCOptions(TemperatureOptions, total=False):
    """Arguments of `TQCLoss`; `SACLoss` describes them."""

    delay_qvalue: bool
    action_spec: Any


class DiscreteSACOptions(TemperatureOptions, total=False):
    """Arguments of `DiscreteSACLoss`; `SACLoss` describes them."""

    loss_function: str
    delay_actor: bool
    delay_qvalue: bool


def _show_options(loss: type[S]) -> type[S]:
    """Decorate a loss so that the signature of its constructor lists its options, with the defaults of `SoftLoss`."""
    constructor: Any = loss.__init__
    signature = inspect.signature(constructor)
    *own, options = signature.parameters.values()
    (kind,) = get_args(get_type_hints(constructor)[options.name])  # of Unpack[...]
    known = inspect.signature(SoftLoss.__init__).parameters
    constructor.__signature__ = signature.replace(parameters=[*own, *(known[name] for name in kind.__annotations__)])
    return loss


class SoftLoss(TargetEntropy, OffPolicyLoss):
    """Base of off-policy losses whose policy has an entropy bonus with a learned temperature; see `SACLoss`."""

    qvalue_network: nn.Module
    target_qvalue_network: nn.Module | None
    log_alpha: Tensor

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        num_qvalue_nets: int,
        *,
        loss_function: str = "smooth_l1",
        alpha_init: float = 1.0,
        min_alpha: float | None = None,
        max_alpha: float | None = None,
        fixed_alpha: bool = False,
        target_entropy: float | str = "auto",
        delay_actor: bool = False,
        delay_qvalue: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
        action_spec: Any = None,
    ) -> None:
        super().__init__(
            actor_network,
            qvalue_network,
            num_qvalue_nets,
            loss_function=loss_function,
            delay_critic=delay_qvalue,
            delay_actor=delay_actor,
            gamma=gamma,
            reduction=reduction,
        )
        self._log_bounds = log_bounds(type(self).__name__, alpha_init, min_alpha, max_alpha, target_entropy)
        self._given_entropy = target_entropy
        spec = getattr(actor_network, "spec", None) if action_spec is None else action_spec
        self._count = action_width(spec, self._keys["action"])
        first = self._to_networks(torch.tensor(math.log(alpha_init)))
        if fixed_alpha:
            self.register_buffer("log_alpha", first)
        else:
            self.register_parameter("log_alpha", nn.Parameter(first))
        self.fixed_alpha = fixed_alpha

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradient."""
        log_alpha = self.log_alpha.detach()
        return (log_alpha if self._log_bounds is None else log_alpha.clamp(*self._log_bounds)).exp()

    def _derive_actor(self) -> list[NestedKey]:
        self._policy = ActorCall(self.actor_network)
        followed = self.target_actor_network
        self._target_policy = self._policy if followed is None else ActorCall(followed)
        return self._policy.in_keys

    def _combined(self, values: Tensor) -> Tensor:
        """Return the values of the actor's actions by critic, ``[n, *B, 1]``, of those that the critics write."""
        return values

    def _actor_values(self, batch: Batch, dist: Distribution, action: Any) -> Tensor:
        """Return the objective of the actor without its entropy: values of its actions by critic, ``[n, *B, 1]``."""
        del dist
        return self._combined(self._values(self._frozen_critic, batch.entries, action, batch.size))

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        dist = self._policy(batch.entries, batch.size)
        action, log_prob = sample_action(dist, type(self).__name__)
        soft = soft_value(self._actor_values(batch, dist, action), log_prob, self.alpha)
        return {
            "loss_actor": reduce(-soft.squeeze(-1), self.reduction, batch.mask),
            **self._temperature(log_prob, action, batch),
            "entropy": mean_of(-log_prob.detach(), batch.mask),
            **self._value_part(soft.detach(), batch),
        }

    def _value_part(self, soft: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of a value network that fits the soft values ``[*B, 1]``; there is none by default."""
        del soft, batch
        return {}

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_actor", "negative entropy-regularized value of the actor's actions"),
            scalar("loss_alpha", "loss of the temperature"),
            scalar("alpha", "temperature, no gradient"),
            scalar("entropy", "mean negative log-probability of the actor's actions, nats, no gradient"),
        )

    def _automatic_entropy(self, action: Any, log_prob: Tensor) -> float | Tensor:
        """Return `_entropy_of` the actions of a batch, and store their number."""
        leaves: Any = action.values(True, True) if isinstance(action, TensorDictBase) else [action]  # noqa: FBT003
        self._count = sum(leaf.shape[log_prob.ndim :].numel() for leaf in leaves)
        return self._entropy_of(self._count)

    def _temperature(self, log_prob: Tensor, action: Any, batch: Batch) -> dict[str, Tensor]:
        """Return the loss of the temperature, and its value."""
        target: Any = self._given_entropy
        if target == "auto":
            target = self._automatic_entropy(action, log_prob)
        if self.fixed_alpha:
            elements = torch.zeros_like(log_prob)
        else:
            elements = temperature_loss(self.log_alpha, log_prob, target)
        return {"loss_alpha": reduce(elements, self.reduction, batch.mask), "alpha": self.alpha}


@module_arguments()
@_show_options
class SACLoss(SoftLoss):
    """Soft actor-critic, with an automatic temperature, and optionally with a value network.

    Haarnoja et al., "Soft actor-critic algorithms and applications", 2018, algorithm 1; with `value_network`, "Soft
    actor-critic: off-policy maximum entropy deep reinforcement learning with a stochastic actor", 2018, eq. 5 to 8.

    Reads the inputs of the networks at the root and under ``next``, ``action``, ``("next", "reward")``,
    ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]``, ``priority_weight`` ``[*B]``,
    ``("collector", "mask")`` bool ``[*B]`` and ``gamma`` ``[*B, 1]`` (the discount after `MultiStepTransform`). Returns
    scalars: ``loss_actor``, ``loss_qvalue``, ``loss_alpha`` and, with a value network, ``loss_value``, to be summed and
    minimized, and the detached ``alpha``, ``entropy``, and means of ``td_error`` (absolute), ``pred_value`` and
    ``target_value``. Writes ``td_error`` ``[*B]``, the largest of the critics, into the batch.

    Args:
        actor_network: Policy with a distribution that has ``rsample``, such as `TanhNormal`.
        qvalue_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics
            are copies with new initial parameters. Or a list of critics.
        value_network: Network that writes ``state_value`` ``[*B, 1]``; None for the second form of the paper, which
            has none.
        num_qvalue_nets: Number of critics.
        loss_function: Distance of the critics, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        alpha_init: First temperature, above 0.
        min_alpha: Smallest temperature; None for no bound.
        max_alpha: Largest temperature; None for no bound.
        fixed_alpha: Whether the temperature stays the first one; ``loss_alpha`` is 0 then.
        target_entropy: Entropy that the temperature is learned for, nats, or ``"auto"`` for minus the number of action
            dimensions.
        delay_actor: Whether the next action, and with a value network the action whose value it fits, is that of a
            copy, ``target_actor_network``, which `SoftUpdate` moves.
        delay_qvalue: Whether next states are valued by a copy, ``target_qvalue_network``, without a value network.
        delay_value: Whether next states are valued by a copy of the value network, ``target_value_network``.
        gamma: Discount, in [0, 1].
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``.
        action_spec: Spec of the action, for the automatic target entropy; that of the actor, or the first batch, if
            None.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.
        UnsupportedError: In a call, if the policy is discrete.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
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
        >>> loss = SACLoss(actor, critic)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {**SoftLoss.default_keys, "value": "state_value"}

    value_network: nn.Module | None
    target_value_network: nn.Module | None

    delay_value: bool = constructor_setting("_delay_value")
    """Whether next states are valued by a copy of the value network."""

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        value_network: nn.Module | None = None,
        *,
        num_qvalue_nets: int = 2,
        delay_value: bool = True,
        **options: Unpack[SACOptions],
    ) -> None:
        if value_network is not None:  # which then values the next states
            options["delay_qvalue"] = False
        super().__init__(actor_network, qvalue_network, num_qvalue_nets, **options)
        self.value_network, self._delay_value = value_network, delay_value
        if value_network is None or not delay_value:
            self.target_value_network = None
        else:
            self.target_value_network = make_target(value_network, type(self).__name__)
        self.derive_early()

    def _derive_actor(self) -> list[NestedKey]:
        inputs = super()._derive_actor()
        network = getattr(self, "value_network", None)  # set after the first derivation
        self._value = None if network is None else NetworkCall(network, {"value": self._keys["value"]})
        if self._value is None:
            return inputs
        followed = self.target_value_network or self.value_network
        self._target_value = NetworkCall(followed, {"value": self._keys["value"]})
        return [*inputs, *self._value.in_keys]

    def _writes(self) -> tuple[Key, ...]:
        value = () if self._value is None else (scalar("loss_value", "distance of values and soft values"),)
        return (*super()._writes(), *value)

    def _next_value(self, batch: Batch) -> Tensor:
        if self._value is not None:
            return self._target_value(batch.after, batch.size)[0]
        action, log_prob = sample_action(self._target_policy(batch.after, batch.size), type(self).__name__)
        return soft_value(self._values(self._target_critic, batch.after, action, batch.size), log_prob, self.alpha)

    def _value_part(self, soft: Tensor, batch: Batch) -> dict[str, Tensor]:
        if self._value is None:
            return {}
        if self._target_policy is not self._policy:
            with torch.no_grad():
                action, log_prob = sample_action(self._target_policy(batch.entries, batch.size), type(self).__name__)
                soft = soft_value(
                    self._values(self._critic_call, batch.entries, action, batch.size), log_prob, self.alpha
                )
        (value,) = self._value(batch.entries, batch.size)
        elements = distance(value, soft, self.loss_function).squeeze(-1)
        return {"loss_value": reduce(elements, self.reduction, batch.mask)}


@final
@module_arguments()
@_show_options
class DiscreteSACLoss(SoftLoss):
    """Soft actor-critic for discrete actions: expectations over the actions instead of samples.

    Christodoulou, "Soft actor-critic for discrete action settings", 2019, eq. 10 to 12.

    Reads and writes what `SACLoss` does without a value network; ``action`` is one-hot ``[*B, n]`` or integer ``[*B]``.

    Args:
        actor_network: Policy with a categorical distribution, which has ``logits``.
        qvalue_network: Network that writes ``action_value`` ``[*B, n]``; the other critics are copies with new initial
            parameters. Or a list of critics.
        num_qvalue_nets: Number of critics.
        target_entropy_weight: Share of the largest entropy that is the target if `target_entropy` is ``"auto"``.
        action_space: Ignored; the critics tell the number of actions.
        num_actions: Number of actions; that of the first batch if None.
        options: Arguments of `SACLoss`: its distance, temperature, copies, discount and reduction.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.
        UnsupportedError: In a call, if the policy is not categorical.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 4), ["observation"], ["logits"])
        >>> critic = TensorDictModule(nn.Linear(3, 4), ["observation"], ["action_value"])
        >>> loss = DiscreteSACLoss(ProbabilisticTensorDictSequential(body, head), critic)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(
        ...     observation=torch.randn(8, 3), action=torch.randint(4, (8,)), next=after, batch_size=[8]
        ... )
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_qvalue"] + out["loss_alpha"]).backward()
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        **{name: key for name, key in SoftLoss.default_keys.items() if name != "state_action_value"},
        "action_value": "action_value",
    }
    _critic_reads: ClassVar[str] = "action_value"

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 2,
        target_entropy_weight: float = 0.98,
        action_space: Any = None,
        num_actions: int | None = None,
        **options: Unpack[DiscreteSACOptions],
    ) -> None:
        super().__init__(actor_network, qvalue_network, num_qvalue_nets, **options)
        del action_space  # of TorchRL: the critics say it
        self._count = num_actions
        self.target_entropy_weight = as_number(target_entropy_weight, type(self).__name__, "target_entropy_weight")

    def _log_probs(self, dist: Distribution) -> Tensor:
        logits = getattr(dist, "logits", None)
        if logits is None:
            raise UnsupportedError(
                f"DiscreteSACLoss takes the expectation over discrete actions, and {type(dist).__name__} has no logits:"
                " use SACLoss for continuous ones"
            )
        return torch.log_softmax(logits, -1)

    def _predicted(self, batch: Batch) -> Tensor:
        (values,) = self._critic_call(batch.entries, batch.size)
        key = self._keys["action"]
        return chosen_values(values, batch.entries[key], key, type(self).__name__)

    def _next_value(self, batch: Batch) -> Tensor:
        log_probs = self._log_probs(self._target_policy(batch.after, batch.size))
        (values,) = self._target_critic(batch.after, batch.size)
        return expected_soft_value(values, log_probs, self.alpha)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        log_probs = self._log_probs(self._policy(batch.entries, batch.size))
        (values,) = self._frozen_critic(batch.entries, batch.size)
        soft = expected_soft_value(values.detach(), log_probs, self.alpha)
        expected = expected_soft_value(torch.zeros_like(values), log_probs.detach(), -1.0).squeeze(-1)
        return {
            "loss_actor": reduce(-soft.squeeze(-1), self.reduction, batch.mask),
            **self._temperature(expected, log_probs, batch),
            "entropy": mean_of(-expected, batch.mask),
        }

    def _automatic_entropy(self, action: Any, log_prob: Tensor) -> Tensor:
        """Return the part `target_entropy_weight` of the largest entropy, that of the legal actions of each element."""
        del log_prob
        self._count = action.shape[-1]
        legal = (
            action.detach() > torch.finfo(action.dtype).min / 2
        )  # masks write minus infinity, or the smallest number
        return self.target_entropy_weight * legal.sum(-1).clamp_min(1).to(action.dtype).log()

    def _entropy_of(self, count: int) -> float:
        """Return the part `target_entropy_weight` of the largest entropy."""
        return self.target_entropy_weight * math.log(count)


@final
@module_arguments()
@_show_options
class CrossQLoss(SoftLoss):
    """CrossQ: soft actor-critic whose critics value both ends of a step in one call, without target networks.

    Bhatt et al., "CrossQ: batch normalization in deep reinforcement learning for greater sample efficiency and
    simplicity", 2024, section 4. Give the critics batch (re)normalization layers: in training mode they see the steps
    and the following ones together. For the actor they are called in evaluation mode.

    Reads and writes what `SACLoss` does without a value network. Padding is not supported, since it would count in the
    normalization.

    Args:
        actor_network: Policy with a distribution that has ``rsample``.
        qvalue_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics
            are copies with new initial parameters. Or a list of critics.
        num_qvalue_nets: Number of critics.
        options: Arguments of `SACLoss`, but for copies of networks.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.
        UnsupportedError: In a call, if the policy is discrete.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import (
        ...     NormalParamExtractor,
        ...     ProbabilisticTensorDictModule,
        ...     ProbabilisticTensorDictSequential,
        ...     TensorDictModule,
        ... )
        >>> from torch.distributions import Independent, Normal
        >>> body = TensorDictModule(
        ...     nn.Sequential(nn.Linear(3, 4), NormalParamExtractor()), ["observation"], ["loc", "scale"]
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["loc", "scale"], ["action"], distribution_class=lambda loc, scale: Independent(Normal(loc, scale), 1)
        ... )
        >>> layers = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
        >>> critic = TensorDictModule(layers, ["action"], ["state_action_value"])
        >>> loss = CrossQLoss(ProbabilisticTensorDictSequential(body, head), critic)
        >>> loss.target_qvalue_network is None
        True
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 2,
        **options: Unpack[CrossQOptions],
    ) -> None:
        super().__init__(actor_network, qvalue_network, num_qvalue_nets, delay_qvalue=False, **options)

    def _next_value(self, batch: Batch) -> Tensor:
        del batch
        raise RLError("CrossQLoss values both ends of a step in one call")

    def _critic_part(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            action, log_prob = sample_action(self._policy(batch.after, batch.size), type(self).__name__)
        after = {**batch.after, **self._acted(action)}
        # One pass over steps and next steps, so that batch normalization sees the mixture of both
        both = {key: torch.cat([batch.entries[key], after[key]]) for key in self._critic_call.in_keys}
        size = torch.Size((2 * batch.size[0], *batch.size[1:]))
        (value,) = self._critic_call(both, size)
        predicted, following = value.chunk(2, 1)
        with torch.no_grad():
            following = soft_value(following.detach(), log_prob, self.alpha)
            target = self._target(batch.tensordict, batch.entries, batch.mask, following)
        return self._fit(predicted, target, batch)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        training = self.qvalue_network.training
        self.qvalue_network.eval()
        try:
            return super()._actor_part(batch)
        finally:
            self.qvalue_network.train(training)


@final
@module_arguments()
@_show_options
class TQCLoss(SoftLoss):
    """Truncated quantile critics: soft actor-critic whose critics write quantiles, the largest of which are dropped.

    Kuznetsov et al., "Controlling overestimation bias with truncated mixture of continuous distributional quantile
    critics", 2020, eq. 8 to 13.

    Reads and writes what `SACLoss` does without a value network. The critics' loss is the mean over critics and
    quantiles; ``pred_value``, ``target_value`` and ``td_error`` are those of the means of the distributions.

    Args:
        actor_network: Policy with a distribution that has ``rsample``.
        qvalue_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, n_quantiles]``; the other
            critics are copies with new initial parameters. Or a list of critics.
        num_qvalue_nets: Number of critics.
        top_quantiles_to_drop_per_net: Number of quantiles that the target drops for each critic.
        options: Arguments of `SACLoss`, but for a distance and a copy of the actor.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.
        UnsupportedError: In a call, if the policy is discrete.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(2, 25), ["action"], ["state_action_value"])
        >>> TQCLoss(TensorDictModule(nn.Linear(1, 1), ["x"], ["y"]), critic, top_quantiles_to_drop_per_net=-1)
        Traceback (most recent call last):
        rl.core.errors.ArgumentError: TQCLoss: top_quantiles_to_drop_per_net must be at least 0, got -1
    """

    _distributional: ClassVar[bool] = True

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 2,
        top_quantiles_to_drop_per_net: int = 2,
        **options: Unpack[TQCOptions],
    ) -> None:
        self.dropped = as_integer(top_quantiles_to_drop_per_net, "TQCLoss", "top_quantiles_to_drop_per_net", least=0)
        super().__init__(actor_network, qvalue_network, num_qvalue_nets, **options)

    def _next_value(self, batch: Batch) -> Tensor:
        action, log_prob = sample_action(self._policy(batch.after, batch.size), type(self).__name__)
        quantiles = self._values(self._target_critic, batch.after, action, batch.size)
        if quantiles.shape[1:-1] != log_prob.shape:
            raise ShapeError(
                f"TQCLoss got quantiles of shape {tuple(quantiles.shape[1:])} and log-probabilities"
                f" {tuple(log_prob.shape)}; expected [*B, n_quantiles] and [*B]"
            )
        return truncated_quantiles(quantiles, self.dropped) - self.alpha * log_prob.unsqueeze(-1)

    def _fit(self, predicted: Tensor, target: Tensor, batch: Batch) -> dict[str, Tensor]:
        count = predicted.shape[-1]
        # predicted [n, *B, count] against the pooled target quantiles [*B, n * (count - dropped)]
        elements = torch.stack([quantile_huber(one, target) for one in predicted]).mean(0) / count
        means = predicted.detach().mean(-1, keepdim=True)
        return self._critic_results(elements, means, target.mean(-1, keepdim=True), batch)

    def _combined(self, values: Tensor) -> Tensor:
        return values.mean(-1, keepdim=True).mean(0, keepdim=True)


@final
@module_arguments()
@_show_options
class REDQLoss(SoftLoss):
    """Randomized ensembled double Q-learning: soft actor-critic with many critics and a random subset in the target.

    Chen et al., "Randomized ensembled double Q-learning: learning fast without a model", 2021, algorithm 1. The paper
    takes 20 updates a step.

    Reads and writes what `SACLoss` does without a value network.

    Args:
        actor_network: Policy with a distribution that has ``rsample``.
        qvalue_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics
            are copies with new initial parameters. Or a list of critics.
        num_qvalue_nets: Number of critics.
        sub_sample_len: Number of critics whose minimum is the next value, sampled for each batch; all if there are
            fewer.
        options: Arguments of `SACLoss`.

    Raises:
        ContractError: If a network lacks a key.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.
        UnsupportedError: In a call, if the policy is discrete.

    Example:
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(2, 1), ["action"], ["state_action_value"])
        >>> REDQLoss(TensorDictModule(nn.Linear(1, 1), ["x"], ["y"]), critic, sub_sample_len=0)
        Traceback (most recent call last):
        rl.core.errors.ArgumentError: REDQLoss: sub_sample_len must be at least 1, got 0
    """

    def __init__(
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        num_qvalue_nets: int = 10,
        sub_sample_len: int = 2,
        **options: Unpack[SACOptions],
    ) -> None:
        self.sub_sample_len = as_integer(sub_sample_len, "REDQLoss", "sub_sample_len", least=1)
        super().__init__(actor_network, qvalue_network, num_qvalue_nets, **options)
        self.num_qvalue_nets = num_qvalue_nets

    def _next_value(self, batch: Batch) -> Tensor:
        action, log_prob = sample_action(self._target_policy(batch.after, batch.size), type(self).__name__)
        values = self._values(self._target_critic, batch.after, action, batch.size)
        chosen = torch.randperm(self.num_qvalue_nets, device=values.device)[: self.sub_sample_len]
        return soft_value(values[chosen], log_prob, self.alpha)

    def _combined(self, values: Tensor) -> Tensor:
        return values.mean(0, keepdim=True)
