"""Base of losses that fit critics of state and action to targets of one step, from replayed steps."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn
from torch.distributions import Distribution

from rl.core.arguments import as_number, constructor_setting, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError, SpecError, UnsupportedError
from rl.core.keys import NestedKey, key_str, next_key
from rl.objectives._agents import Entries
from rl.objectives._batch import expand_right, scalar
from rl.objectives._keyed_module import as_list, sum_log_probs
from rl.objectives._networks import Ensemble, FrozenCall, NetworkCall, actor_keys, input_key
from rl.objectives.functional import smoothed_action
from rl.objectives.functional._q_learning import check_distance, distance, reduce
from rl.objectives.losses._replay import ReplayLoss
from rl.objectives.targets import make_target


class Batch(NamedTuple):
    """Entries of a batch by key, the same one step later by the same keys, the mask of valid steps and the size."""

    tensordict: TensorDictBase
    entries: Entries
    after: Entries
    mask: Tensor | None
    size: torch.Size


def sample_action(dist: Distribution, owner: str) -> tuple[Any, Tensor]:
    """Return a sample with a gradient, and its log-probability ``[*B]``.

    Raises:
        UnsupportedError: If the distribution gives samples no gradient.
    """
    fused = getattr(dist, "rsample_and_log_prob", None)
    if fused is not None:
        action, log_prob = fused()
    elif not dist.has_rsample:
        raise UnsupportedError(
            f"{owner} differentiates sampled actions, and {type(dist).__name__} has no rsample: it is discrete, use"
            " DiscreteSACLoss; or take a distribution such as TanhNormal"
        )
    else:
        action = dist.rsample()
        log_prob = dist.log_prob(action)
    return action, sum_log_probs(log_prob)


def chosen_values(values: Tensor, action: Tensor, key: NestedKey, owner: str) -> Tensor:
    """Return the values of the actions that were taken, ``[k, *B, 1]``, of those of all actions ``[k, *B, n]``.

    Raises:
        ShapeError: If actions are neither one-hot ``[*B, n]`` nor integers ``[*B]``.
    """
    if action.shape == values.shape[1:]:
        index = action.long().argmax(-1, keepdim=True)
    elif action.shape == values.shape[1:-1]:
        index = action.long().unsqueeze(-1)
    else:
        raise ShapeError(
            f"{owner} got {key_str(key)} of shape {tuple(action.shape)} for action values of shape"
            f" {tuple(values.shape[1:])}: one-hot actions have that shape, integers lack its last one"
        )
    return values.gather(-1, index.expand(values.shape[0], *index.shape))


class OffPolicyLoss(ReplayLoss):
    """Base of losses of an actor and critics that learn from replayed steps, in any order.

    A subclass implements `_derive_actor`, `_next_value`, `_actor_part` and `_writes`; critics, targets, weights and
    masks are handled here. The critic's entry ``td_error`` is written into the batch.

    Args:
        actor_network: Policy.
        critic: Network that writes ``state_action_value`` ``[*B, 1]``; one network or several.
        count: Number of critics; None for the one network itself.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_critic: Whether targets are those of a copy, which `SoftUpdate` moves.
        delay_actor: Whether next actions are those of a copy of the actor.
        gamma: Discount, in [0, 1].
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``.
    """

    network_inputs: ClassVar[tuple[str, ...]] = ("action",)
    default_keys: ClassVar[dict[str, NestedKey]] = {
        "state_action_value": "state_action_value",
        **ReplayLoss.default_keys,
    }
    _critic_name: ClassVar[str] = "qvalue_network"
    _critic_reads: ClassVar[str] = "state_action_value"
    """Name of the key that the critics write."""
    _loss_name: ClassVar[str] = "loss_qvalue"

    actor_network: nn.Module
    target_actor_network: nn.Module | None

    delay_actor: bool = constructor_setting("_delay_actor")
    """Whether next actions are those of a copy of the actor."""
    delay_qvalue: bool = constructor_setting("_delay_critic")
    """Whether next actions are valued by a copy of the critics."""

    def __init__(
        self,
        actor_network: nn.Module,
        critic: nn.Module | Sequence[nn.Module],
        count: int | None,
        *,
        loss_function: str,
        delay_critic: bool,
        delay_actor: bool,
        gamma: float,
        reduction: str | None,
    ) -> None:
        super().__init__(reduction=reduction)
        owner = type(self).__name__
        self.loss_function = check_distance(loss_function, owner)
        self.actor_network = actor_network
        self._keys.update({"action": actor_keys(actor_network)["action"]})
        self.target_actor_network = make_target(actor_network, owner) if delay_actor else None
        network = critic if count is None else Ensemble(critic, count, owner)
        assert isinstance(network, nn.Module)
        setattr(self, self._critic_name, network)
        setattr(self, f"target_{self._critic_name}", make_target(network, owner) if delay_critic else None)
        self._delay_actor, self._delay_critic = delay_actor, delay_critic
        self.make_value_estimator(gamma=gamma)

    # ---- written by the subclass

    @abstractmethod
    def _derive_actor(self) -> list[NestedKey]:
        """Build the calls of the actor; return its in keys."""

    @abstractmethod
    def _next_value(self, batch: Batch) -> Tensor:
        """Return the value of the next states, ``[*B, 1]``; called without gradient."""

    @abstractmethod
    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        """Return the losses of the actor, and diagnostics."""

    @abstractmethod
    def _writes(self) -> tuple[Key, ...]:
        """Return the scalars of `_actor_part` in the contract."""

    # ---- contract

    def _critics(self, *, target: bool = False) -> nn.Module:
        """Return the critics, or their targets if there are some."""
        followed = getattr(self, f"target_{self._critic_name}") if target else None
        return getattr(self, self._critic_name) if followed is None else followed

    def _derive(self) -> Contract:
        keys = self._keys
        value = {self._critic_reads: keys[self._critic_reads]}
        self._critic_call = NetworkCall(self._critics(), value)
        self._frozen_critic = FrozenCall(self._critic_call)
        self._target_critic = NetworkCall(self._critics(target=True), value)
        actor_inputs = self._derive_actor()
        actions = as_list(keys["action"])
        inputs = [key for key in dict.fromkeys([*actor_inputs, *self._critic_call.in_keys]) if key not in actions]
        for call in (self._critic_call, getattr(self, "_policy", None)):
            if call is not None and call.states:
                raise UnsupportedError(
                    f"{type(self).__name__} takes no recurrent networks; for those use DQNLoss or PPOLoss, or give"
                    " networks a history of observations (CatFrames)"
                )
        self._inputs = [(key, next_key(key)) for key in inputs]
        self._stacked = isinstance(self._critics(), Ensemble)
        return Contract(
            (
                *(input_key(key, (), "input of the networks") for key in inputs),
                *(Key(key, doc="action that was taken") for key in actions),
                *(Key(next_key(key), doc="the same after the step") for key in inputs),
                *self._outcome_reads(),
            ),
            (
                *self._writes(),
                *self._diagnostic_writes("distance of action values and targets, summed over the critics"),
            ),
        )

    # ---- losses

    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """Return the parameters of the critics, without those of target networks: for an optimizer of their own.

        Example:
            >>> from tensordict.nn import TensorDictModule
            >>> from rl.objectives import DDPGLoss
            >>> actor = TensorDictModule(nn.Linear(3, 1), ["observation"], ["action"])
            >>> critic = TensorDictModule(nn.Linear(1, 1), ["action"], ["state_action_value"])
            >>> [tuple(one.shape) for one in DDPGLoss(actor, critic).critic_parameters()]
            [(1, 1), (1,)]
        """
        return self._critics().parameters()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute all losses of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: If shapes do not agree.
        """
        batch = self._batch(tensordict)
        return TensorDict({**self._critic_part(batch), **self._actor_part(batch)})

    def critic_loss(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the losses of the critics alone, as `forward` computes them, and ``td_error`` in the batch."""
        return TensorDict(self._critic_part(self._batch(tensordict)))

    def actor_loss(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Return the losses of the actor alone, as `forward` computes them."""
        # The step was counted with `critic_loss`, after which target networks are moved.
        return TensorDict(self._actor_part(self._batch(tensordict, counted=False)))

    def _batch(self, tensordict: TensorDictBase, *, counted: bool = True) -> Batch:
        self.derived()
        entries, mask = self._read(tensordict, self._reader, counted=counted)
        after: Entries = {key: entries[following] for key, following in self._inputs}
        if self._agents is not None and self._agents.next_key in entries:
            after[self._agents.key] = entries[self._agents.next_key]
        return Batch(tensordict, entries, after, mask, tensordict.batch_size)

    def _values(self, call: Any, entries: Entries, action: Any, size: torch.Size) -> Tensor:
        """Return values of actions by critic, ``[n, *B, 1]``; those of agents that do not act are 0 to critics."""
        mask = None if self._agents is None else entries.get(self._agents.key)
        if mask is not None:
            action = action.masked_fill(~expand_right(mask, action), 0)
        (value,) = call({**entries, **self._acted(action)}, size)
        return value if self._stacked else value.unsqueeze(0)

    def _acted(self, action: Any) -> Entries:
        """Return the entries of an action, or of a TensorDict of several, which one key may name as a whole."""
        keys = self._keys["action"]
        if not isinstance(keys, list):
            return {keys: action}
        return {key: action.get(key, action if len(keys) == 1 else None) for key in keys}

    def _predicted(self, batch: Batch) -> Tensor:
        """Return the values of the actions that were taken, ``[n, *B, 1]``."""
        (value,) = self._critic_call(batch.entries, batch.size)
        return value if self._stacked else value.unsqueeze(0)

    def _critic_part(self, batch: Batch) -> dict[str, Tensor]:
        with torch.no_grad():
            target = self._target(batch.tensordict, batch.entries, batch.mask, self._next_value(batch))
        return self._fit(self._predicted(batch), target, batch)

    def _fit(self, predicted: Tensor, target: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return the critics' loss and diagnostics; write ``td_error``."""
        if predicted.shape[1:] != target.shape:
            raise ShapeError(
                f"{type(self).__name__} got {key_str(self._keys[self._critic_reads])} of shape"
                f" {tuple(predicted.shape[1:])} and rewards of shape {tuple(target.shape)}: they would broadcast; both"
                " are [*B, 1]"
            )
        elements = distance(predicted, target.expand_as(predicted), self.loss_function).squeeze(-1).sum(0)
        return self._critic_results(elements, predicted.detach(), target, batch)

    def _critic_results(self, elements: Tensor, predicted: Tensor, target: Tensor, batch: Batch) -> dict[str, Tensor]:
        """Return `_results`, of ``[n, *B, 1]`` values; the priority is the largest error of the critics."""
        error = (predicted - target).abs().amax(0).squeeze(-1)
        return self._results(batch.tensordict, batch.entries, batch.mask, elements, error, predicted.mean(0), target)


@final
@module_arguments()
class DDPGLoss(OffPolicyLoss):
    """Deep deterministic policy gradient.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016, algorithm 1.

    Reads the inputs of both networks at the root and under ``next``, ``action``, ``("next", "reward")``,
    ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]``, ``priority_weight`` ``[*B]``,
    ``("collector", "mask")`` bool ``[*B]`` and ``gamma`` ``[*B, 1]`` (the discount after `MultiStepTransform`). Returns
    scalars: ``loss_actor`` and ``loss_value``, to be summed and minimized, and detached means of ``td_error``
    (absolute), ``pred_value`` and ``target_value``. Writes ``td_error`` ``[*B]`` into the batch.

    Args:
        actor_network: Network that writes ``action``.
        value_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, 1]``.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_actor: Whether the next action is that of a copy, ``target_actor_network``.
        delay_value: Whether the next action is valued by a copy, ``target_value_network``. `SoftUpdate` moves both.
        gamma: Discount, in [0, 1].
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

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
        >>> loss = DDPGLoss(actor, critic)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_value"]).backward()
    """

    delay_value: bool = constructor_setting("_delay_critic")
    """Whether the next action is valued by a copy of the value network."""
    _critic_name: ClassVar[str] = "value_network"
    _loss_name: ClassVar[str] = "loss_value"

    value_network: nn.Module
    target_value_network: nn.Module | None

    def __init__(
        self,
        actor_network: nn.Module,
        value_network: nn.Module,
        *,
        loss_function: str = "l2",
        delay_actor: bool = True,
        delay_value: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            value_network,
            None,
            loss_function=loss_function,
            delay_critic=delay_value,
            delay_actor=delay_actor,
            gamma=gamma,
            reduction=reduction,
        )

    def _derive_actor(self) -> list[NestedKey]:
        action = {"action": self._keys["action"]}
        self._policy = NetworkCall(self.actor_network, action)
        self._target_policy = NetworkCall(self.target_actor_network or self.actor_network, action)
        return self._policy.in_keys

    def _writes(self) -> tuple[Key, ...]:
        return (scalar("loss_actor", "negative value of the actor's actions"),)

    def _next_value(self, batch: Batch) -> Tensor:
        (action,) = self._target_policy(batch.after, batch.size)
        return self._values(self._target_critic, batch.after, action, batch.size)[0]

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        (action,) = self._policy(batch.entries, batch.size)
        value = self._values(self._frozen_critic, batch.entries, action, batch.size)[0]
        return {"loss_actor": reduce(-value.squeeze(-1), self.reduction, batch.mask)}


@module_arguments()
class TD3Loss(OffPolicyLoss):
    """Twin delayed deep deterministic policy gradient: two critics, and noise on the target policy.

    Fujimoto et al., "Addressing function approximation error in actor-critic methods", 2018, algorithm 1. The actor is
    delayed by the training loop: call `critic_loss` at each update and `actor_loss` at every second one.

    Reads and writes what `DDPGLoss` does; the critics' loss, summed over the critics, is called ``loss_qvalue``.

    Args:
        actor_network: Network that writes ``action``.
        qvalue_network: Network that reads ``action`` and writes ``state_action_value`` ``[*B, 1]``; the other critics
            are copies with new initial parameters. Or a list of critics.
        action_spec: Bounds of the action: a `Bounded` spec of one element.
        bounds: Lower and upper bound, numbers or tensors; instead of `action_spec`.
        num_qvalue_nets: Number of critics.
        policy_noise: Standard deviation of the noise on target actions, units of the action: a number, or a tensor
            with one for each of its dimensions.
        noise_clip: Largest absolute value of the noise: a number, or such a tensor.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_actor: Whether target actions are those of a copy, ``target_actor_network``.
        delay_qvalue: Whether target actions are valued by a copy, ``target_qvalue_network``.
        gamma: Discount, in [0, 1].
        reduction: Reduction of the losses over the batch, ``"mean"``, ``"sum"`` or ``"none"``.

    Raises:
        ContractError: If a network lacks a key.
        ShapeError: In a call, if bounds or noise have another width than the action.
        ArgumentError: If an argument is out of its range, a network has parameters without a shape, or there are
            no bounds.
        SpecError: If `action_spec` is not bounded.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule, TensorDictSequential
        >>> actor = TensorDictModule(nn.Linear(3, 2), ["observation"], ["action"])
        >>> both = TensorDictModule(lambda x, a: torch.cat([x, a], -1), ["observation", "action"], ["both"])
        >>> critic = TensorDictSequential(both, TensorDictModule(nn.Linear(5, 1), ["both"], ["state_action_value"]))
        >>> loss = TD3Loss(actor, critic, bounds=(-1.0, 1.0))
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> loss.critic_loss(batch)["loss_qvalue"].backward()
    """

    qvalue_network: Ensemble
    target_qvalue_network: nn.Module | None

    def __init__(  # noqa: PLR0913 - the names that users of TorchRL know
        self,
        actor_network: nn.Module,
        qvalue_network: nn.Module | Sequence[nn.Module],
        *,
        action_spec: Any = None,
        bounds: tuple[Tensor | float, Tensor | float] | None = None,
        num_qvalue_nets: int = 2,
        policy_noise: float | Tensor = 0.2,
        noise_clip: float | Tensor = 0.5,
        loss_function: str = "smooth_l1",
        delay_actor: bool = True,
        delay_qvalue: bool = True,
        gamma: float = 0.99,
        reduction: str | None = "mean",
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
        low, high = _bounds(action_spec, bounds, self._keys["action"])
        self.policy_noise, self.noise_clip = policy_noise, noise_clip
        for name, value in (("policy_noise", policy_noise), ("noise_clip", noise_clip)):
            if not isinstance(value, Tensor):
                if value != math.inf:  # an infinite clip is none
                    as_number(value, "TD3Loss", name, least=0)
                continue
            if bool((~(value >= 0)).any()) or (low.ndim and value.ndim and value.shape[-1:] != low.shape[-1:]):
                raise ArgumentError(
                    f"TD3Loss got {name}={value.tolist()} for bounds of shape {list(low.shape)}; expected numbers of at"
                    " least 0, one for each dimension of the action"
                )
            delattr(self, name)
            self.register_buffer(name, self._to_networks(value.to(low.dtype)), persistent=False)
        self.low: Tensor
        self.high: Tensor
        self.register_buffer("low", self._to_networks(low))
        self.register_buffer("high", self._to_networks(high))

    def _derive_actor(self) -> list[NestedKey]:
        action = {"action": self._keys["action"]}
        self._policy = NetworkCall(self.actor_network, action)
        self._target_policy = NetworkCall(self.target_actor_network or self.actor_network, action)
        value = {"state_action_value": self._keys["state_action_value"]}
        self._first_critic = FrozenCall(NetworkCall(self.qvalue_network.members[0], value))
        return self._policy.in_keys

    def _writes(self) -> tuple[Key, ...]:
        return (scalar("loss_actor", "negative value of the actor's actions by the first critic"),)

    def _next_value(self, batch: Batch) -> Tensor:
        (action,) = self._target_policy(batch.after, batch.size)
        noise, clip, low, high = self.policy_noise, self.noise_clip, self.low, self.high
        for name, one in (("policy_noise", noise), ("noise_clip", clip), ("low", low), ("high", high)):
            if isinstance(one, Tensor) and one.ndim and one.shape[-1] not in (1, action.shape[-1]):
                raise ShapeError(
                    f"TD3Loss got {name} of shape {list(one.shape)} for actions of shape {list(action.shape)}; expected"
                    " a number, or one for each dimension of the action"
                )
        noise, clip = (one.to(action.dtype) if isinstance(one, Tensor) else one for one in (noise, clip))
        # a' = clip(pi'(s') + clip(noise)), and the smaller of the target critics, min_i Q'_i(s', a')
        action = smoothed_action(action, torch.randn_like(action) * noise, clip, low, high)
        return self._values(self._target_critic, batch.after, action, batch.size).amin(0)

    def _actor_part(self, batch: Batch) -> dict[str, Tensor]:
        (action,) = self._policy(batch.entries, batch.size)
        (value,) = self._first_critic({**batch.entries, **self._acted(action)}, batch.size)
        return {"loss_actor": reduce(-value.squeeze(-1), self.reduction, batch.mask)}


def _bounds(spec: Any, bounds: Any, key: Any) -> tuple[Tensor, Tensor]:
    """Return the bounds of the action."""
    if (spec is None) == (bounds is None):
        raise ArgumentError("TD3Loss needs the bounds of the action: pass action_spec, or bounds=(low, high)")
    if bounds is None:
        from rl.core.specs import Bounded, Composite

        leaf = spec[key] if isinstance(spec, Composite) else spec
        if not isinstance(leaf, Bounded):
            raise SpecError(
                f"TD3Loss got action_spec {type(leaf).__name__}; it needs a Bounded one, or bounds=(low, high)"
            )
        bounds = (leaf.low, leaf.high)
    low, high = (torch.as_tensor(one, dtype=torch.get_default_dtype()).clone() for one in bounds)
    if bool((low > high).any()):
        raise ArgumentError(f"TD3Loss: bounds must be ascending, got {low.tolist()} and {high.tolist()}")
    return low, high
