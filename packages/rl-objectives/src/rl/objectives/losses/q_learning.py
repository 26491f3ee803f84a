"""Losses of action values: Q-learning and its distributional forms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core.arguments import as_number, constructor_setting, module_arguments
from rl.core.contract import Contract, Key
from rl.core.errors import ArgumentError, ShapeError
from rl.core.keys import NestedKey, key_str, next_key, unwrap
from rl.objectives._agents import Entries
from rl.objectives._networks import NetworkCall, input_key
from rl.objectives.functional import greedy_value
from rl.objectives.functional._q_learning import (
    categorical_divergence,
    check_distance,
    check_support,
    distance,
    project_distribution,
    quantile_huber,
)
from rl.objectives.losses._replay import ReplayLoss
from rl.objectives.targets import make_target

__all__ = ["DQNLoss", "DistributionalDQNLoss", "QRDQNLoss"]


_ONE_HOT, _CATEGORICAL = "one-hot", "categorical"


def _action_space(space: Any, action_key: NestedKey, owner: str) -> str | None:
    """Return ``"one-hot"``, ``"categorical"``, or None without a space; from a name or a spec."""
    if space is None:
        return None
    if isinstance(space, str):
        name = space.replace("_", "-").lower()
    else:
        from rl.core.specs import Categorical, Composite, OneHot

        if isinstance(space, Composite):
            space = space[action_key]
        name = _ONE_HOT if isinstance(space, OneHot) else _CATEGORICAL if isinstance(space, Categorical) else None
    if name not in (_ONE_HOT, _CATEGORICAL):
        raise ArgumentError(
            f"{owner} chooses among n actions, got action_space={space!r}: pass 'one-hot', 'categorical',"
            " or a OneHot or Categorical spec"
        )
    return name


class QLoss(ReplayLoss):
    """Base of losses that fit values of actions to one target, with a target network and optionally double.

    A subclass implements `forward`, and `_means` if its network writes distributions, else `_following_keys`. The last
    line of its ``__init__`` is ``self.make_value_estimator(gamma=gamma)``. Arguments are those of `DQNLoss`.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "action_value": "action_value",
        "chosen_action_value": "chosen_action_value",
        **ReplayLoss.default_keys,
    }
    _options: ClassVar[tuple[str, ...]] = ("double_dqn",)

    value_network: nn.Module
    target_value_network: nn.Module | None

    delay_value: bool = constructor_setting("_delay_value")
    """Whether next states are valued by a copy."""

    def __init__(
        self, value_network: nn.Module, *, delay_value: bool, double_dqn: bool, action_space: Any, reduction: str | None
    ) -> None:
        super().__init__(reduction=reduction)
        owner = type(self).__name__
        if not isinstance(value_network, TensorDictModuleBase) and not hasattr(value_network, "in_keys"):
            value_network = TensorDictModule(value_network, in_keys=["observation"], out_keys=["action_value"])
        self.action_space = _action_space(action_space, self._keys["action"], owner)
        self.double_dqn, self._delay_value, self.value_network = double_dqn, delay_value, value_network
        self.target_value_network = make_target(value_network, owner) if delay_value else None

    def _following_keys(self, written: Sequence[NestedKey]) -> Mapping[str, NestedKey]:
        """Return the outputs to read of the network that values next states; here for distributions."""
        names = ["action_value", *(["action"] if self._keys["action"] in written and not self.double_dqn else [])]
        return {name: self._keys[name] for name in names}

    def _derive(self) -> Contract:
        keys = self._keys
        if self.double_dqn and self.target_value_network is None:
            raise ArgumentError(
                f"{type(self).__name__} got double_dqn=True without delay_value: without a target network it changes"
                " nothing"
            )
        self._online = NetworkCall(self.value_network, {"action_value": keys["action_value"]})
        written = [unwrap(key) for key in self.value_network.out_keys]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues] - checked by the call
        following = self.value_network if self.target_value_network is None else self.target_value_network
        choice = "action" if keys["action"] in written else "action_value"
        self._choice = NetworkCall(self.value_network, {choice: keys[choice]}) if self.double_dqn else None
        self._target_network = NetworkCall(following, self._following_keys(written))
        self._states = self._online.states
        return Contract(
            (
                *(input_key(key, self._states) for key in self._online.in_keys),
                Key(keys["action"], doc="action that was taken, one-hot or integer"),
                *(Key(next_key(key), doc="the same after the step") for key in self._online.outcome_keys),
                *self._outcome_reads(),
            ),
            self._diagnostic_writes("distance of action values and targets"),
        )

    def _evaluate(self, entries: Entries, size: torch.Size) -> tuple[Tensor, list[Tensor]]:
        """Return the output of the trained network, and its recurrent states after each step."""
        if not self._states:
            return self._online(entries, size)[0], []
        (action_value,), after = self._online.sequence(entries, size)
        return action_value, after

    @staticmethod
    def _evaluate_next(
        call: NetworkCall, entries: Entries, after: Sequence[Tensor] | None, size: torch.Size
    ) -> list[Tensor]:
        """Return the outputs of a network for the next states; a recurrent one continues from the states `after`."""
        if not call.states:
            return call.after(entries, size)
        return call.following(entries, call.sequence(entries, size)[1] if after is None else after, size)

    def _index(self, action: Tensor, action_value: Tensor) -> Tensor:
        """Return the index of the action among the n values ``[*B, n]``: ``[*B, 1]`` int64."""
        if action.shape == action_value.shape and self.action_space != _CATEGORICAL:
            if action.is_floating_point() and self.action_space is None:
                self._reject_floats(action, "If they are one-hot, give the loss action_space='one-hot'")
            return action.long().argmax(-1, keepdim=True)
        if action.shape == action_value.shape[:-1] and self.action_space != _ONE_HOT:
            if action.is_floating_point():
                self._reject_floats(action, "If they are indices, convert them with .long()")
            return action.long().unsqueeze(-1)
        raise ShapeError(
            f"{type(self).__name__} got actions of shape {tuple(action.shape)} for action values of shape"
            f" {tuple(action_value.shape)} and action_space={self.action_space!r}: one-hot actions have that shape,"
            " categorical ones lack its last dimension"
        )

    def _reject_floats(self, action: Tensor, remedy: str) -> NoReturn:
        raise ShapeError(
            f"{type(self).__name__} got {action.dtype} actions of shape {tuple(action.shape)}, and chooses among"
            f" {key_str(self._keys['action_value'])}: actions are one-hot or integers. {remedy}"
        )

    def _value_of_action(self, action_value: Tensor, action: Tensor) -> Tensor:
        """Return the value of the action that was taken, ``[*B, 1]``, of the values ``[*B, n]``.

        Raises:
            ShapeError: If actions have another shape or dtype, or on a CPU an index is out of range.
        """
        return self._gather(action_value, -1, self._index(action, action_value))

    def _gather(self, values: Tensor, dim: int, index: Tensor) -> Tensor:
        """Return ``values.gather(dim, index)``, where `dim` is that of the actions.

        Raises:
            ShapeError: If on a CPU an index is out of range.
        """
        try:
            return values.gather(dim, index)
        except RuntimeError:
            count = values.shape[dim]
            if index.device.type != "cpu" or ((low := int(index.min())) >= 0 and int(index.max()) < count):
                raise
            raise ShapeError(
                f"{type(self).__name__} got actions from {low} to {int(index.max())} for {count} action values:"
                f" indices are 0 to {count - 1}. Give the network that writes"
                f" {key_str(self._keys['action_value'])} an output for each action"
            ) from None

    def _next_distribution(self, entries: Entries, after: list[Tensor], size: torch.Size) -> tuple[Tensor, Tensor]:
        """Return the distributions of all next values, as written, and the index of the best action ``[*B, 1]``.

        The action is that of the network, where it writes one, else the one of the largest mean (`_means`).
        """
        written = self._evaluate_next(self._target_network, entries, None, size)
        means = self._means(written[0])
        call, found = self._target_network, written
        if self._choice is not None:
            call, found = self._choice, self._evaluate_next(self._choice, entries, after, size)
        if call.out_keys[-1] == self._keys["action"]:
            return written[0], self._index(found[-1], means)
        return written[0], (means if call is self._target_network else self._means(found[0])).argmax(-1, keepdim=True)

    def _means(self, action_value: Tensor) -> Tensor:
        """Return the expected value of each action, ``[*B, n]``; of a distributional loss."""
        raise NotImplementedError


def _find_support(network: nn.Module, owner: str) -> Tensor:
    """Return the support that a network or one of its parts holds."""
    for part in network.modules():
        found = getattr(part, "support", None)
        if isinstance(found, Tensor):
            return found
    raise ArgumentError(
        f"{owner} found no support in {type(network).__name__}: pass support=torch.linspace(v_min, v_max, n_atoms),"
        " or a network with that attribute"
    )


@final
@module_arguments()
class DistributionalDQNLoss(QLoss):
    """Distributional Q-learning with fixed atoms (C51), with a target network and optionally double.

    Bellemare et al., "A distributional perspective on reinforcement learning", 2017, algorithm 1: the cross-entropy of
    the distribution of the action that was taken, and of the target ``r + gamma * z``, projected onto the atoms.

    Reads and returns what `DQNLoss` does: ``loss``, and detached means of ``td_error``, ``pred_value`` and
    ``target_value`` (expected values). Writes one entry into the batch: ``td_error`` ``[*B]``, the Kullback-Leibler
    divergence of target and prediction in nats, detached, as priority of the transition (Hessel et al., "Rainbow",
    2018). Where the batch has ``gamma`` or ``steps_to_next_obs`` ``[*B, 1]``, rewards are multi-step returns.

    Args:
        value_network: Network that writes ``action_value`` ``[*B, n_atoms, n_actions]``, log-probabilities of the
            atoms; they are normalized over the atoms, so that logits serve, too. If it also writes ``action``, that is
            its best action. A plain module reads ``observation``.
        support: Atoms in ascending, equal steps, ``[n_atoms]``, units of return; the first attribute ``support`` of the
            network or its parts if None.
        delay_value: Argument of `DQNLoss`.
        double_dqn: Argument of `DQNLoss`.
        action_space: Argument of `DQNLoss`.
        gamma: Discount, in [0, 1].
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at padding.

    Raises:
        ContractError: If the network does not write ``action_value``.
        ArgumentError: If there is no support, an argument is out of its range, or the network has parameters
            without a shape.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> net = nn.Sequential(nn.Linear(4, 2 * 51), nn.Unflatten(-1, (51, 2)), nn.LogSoftmax(-2))
        >>> loss = DistributionalDQNLoss(
        ...     TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"]),
        ...     support=torch.linspace(-10, 10, 51),
        ... )
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 4), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(
        ...     observation=torch.randn(8, 4), action=torch.randint(2, (8,)), next=after, batch_size=[8]
        ... )
        >>> loss(batch)["loss"].backward()
        >>> batch["td_error"].shape
        torch.Size([8])
    """

    _distributional: ClassVar[bool] = True

    support: Tensor

    def __init__(
        self,
        value_network: nn.Module,
        *,
        support: Tensor | None = None,
        delay_value: bool = True,
        double_dqn: bool = False,
        action_space: Any = None,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            value_network,
            delay_value=delay_value,
            double_dqn=double_dqn,
            action_space=action_space,
            reduction=reduction,
        )
        owner = type(self).__name__
        support = _find_support(value_network, owner) if support is None else support
        self.register_buffer("support", self._to_networks(check_support(support, owner).detach().clone()))
        self.make_value_estimator(gamma=gamma)

    def _means(self, action_value: Tensor) -> Tensor:
        """Return the expected value of each action, ``[*B, n]``."""
        return torch.einsum("...an,a->...n", action_value.softmax(-2), self.support.to(action_value.dtype))

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: If shapes do not agree, or on a CPU an action is out of range.
        """
        entries, mask = self.read(tensordict)
        size = tensordict.batch_size
        action_value, after = self._evaluate(entries, size)
        if action_value.ndim != len(size) + 2 or action_value.shape[-2] != self.support.numel():
            raise ShapeError(
                f"{type(self).__name__} got {self._keys['action_value']!r} of shape {tuple(action_value.shape)} for a"
                f" batch of shape {tuple(size)} and {self.support.numel()} atoms; expected [*B, n_atoms, n_actions]"
            )
        # [*B, n_atoms, n_actions] -> log-probabilities of the atoms of the action that was taken, [*B, n_atoms]
        index = self._index(entries[self._keys["action"]], action_value[..., 0, :]).unsqueeze(-2)
        chosen = index.expand(*action_value.shape[:-1], 1)
        log_prob = self._gather(action_value, -1, chosen).squeeze(-1).log_softmax(-1)
        with torch.no_grad():
            support = self.support.to(log_prob.dtype)
            following, best = self._next_distribution(entries, after, size)
            best = best.unsqueeze(-2).expand_as(chosen)
            probability = following.gather(-1, best).squeeze(-1).softmax(-1)
            # each atom z moves to r + gamma**n * z, and its probability to the nearest atoms of the support
            moved = self._target(tensordict, entries, mask, support.expand_as(probability))
            target = project_distribution(probability, moved, support)
        elements, error = categorical_divergence(log_prob, target)
        predicted = log_prob.detach().exp() @ support
        return TensorDict(self._results(tensordict, entries, mask, elements, error, predicted, target @ support))


@module_arguments()
class DQNLoss(QLoss):
    """Deep Q-learning, with a target network and optionally double.

    Mnih et al., "Human-level control through deep reinforcement learning", 2015, algorithm 1; van Hasselt et al., "Deep
    reinforcement learning with double Q-learning", 2016, eq. 4.

    Reads the network's inputs at the root and under ``next``, ``action`` (one-hot ``[*B, n]`` or integer ``[*B]``),
    ``("next", "reward")``, ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]`` and
    ``priority_weight`` ``[*B]``, which weights the elements, and ``("collector", "mask")`` bool ``[*B]``, which masks
    out padding. Where the batch has ``gamma`` ``[*B, 1]``, as `MultiStepTransform` of rl-replay writes it, that is the
    discount of the next values, in place of the argument. Returns scalars: ``loss``, and detached means of
    ``td_error`` (absolute), ``pred_value`` and ``target_value``. Writes one entry into the batch, which a
    prioritized replay buffer reads: ``td_error`` ``[*B]``, absolute, detached.

    A recurrent network reads the batch as sequences, whose last dimension is time, from the state stored at their start
    (Kapturowski et al., "Recurrent experience replay in distributed reinforcement learning", 2019); a next state is
    valued one step after its sequence.

    Args:
        value_network: Network that writes ``action_value`` ``[*B, n]``; if it also writes ``chosen_action_value``, that
            is the value of the next state. A plain module reads ``observation``.
        loss_function: Name of the distance, ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_value: Whether next states are valued by a copy, ``target_value_network``, that `SoftUpdate` or
            `HardUpdate` moves.
        double_dqn: Whether the next action is the trained network's choice.
        action_space: Kind of the action, ``"one-hot"``, ``"categorical"`` or a spec; None accepts both.
        gamma: Discount, in [0, 1].
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at padding.

    Raises:
        ContractError: If the network does not write ``action_value``.
        ArgumentError: If `action_space` is of another kind, an argument is out of its range, or the network has
            parameters without a shape.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> net = TensorDictModule(nn.Linear(4, 2), in_keys=["observation"], out_keys=["action_value"])
        >>> loss = DQNLoss(net, action_space="categorical", gamma=0.9)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 4), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(
        ...     observation=torch.randn(8, 4), action=torch.randint(2, (8,)), next=after, batch_size=[8]
        ... )
        >>> loss(batch)["loss"].backward()
        >>> batch["td_error"].shape
        torch.Size([8])
    """

    _chosen: ClassVar[str] = "chosen_action_value"
    """Name of the key of the best action's value."""

    def __init__(
        self,
        value_network: nn.Module,
        *,
        loss_function: str = "l2",
        delay_value: bool = True,
        double_dqn: bool = False,
        action_space: Any = None,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            value_network,
            delay_value=delay_value,
            double_dqn=double_dqn,
            action_space=action_space,
            reduction=reduction,
        )
        self.loss_function = check_distance(loss_function, type(self).__name__)
        self.make_value_estimator(gamma=gamma)

    def _following_keys(self, written: Sequence[NestedKey]) -> Mapping[str, NestedKey]:
        chosen = not self.double_dqn and self._keys[self._chosen] in written
        name = self._chosen if chosen else "action_value"
        return {name: self._keys[name]}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

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
        return self._fit(tensordict, predicted, target, entries, mask)

    def _fit(
        self, tensordict: TensorDictBase, predicted: Tensor, target: Tensor, entries: Entries, mask: Tensor | None
    ) -> TensorDictBase:
        """Return the loss of `predicted` ``[*B, 1]`` against `target`, and diagnostics; write ``td_error``."""
        elements = distance(predicted, target, self.loss_function).squeeze(-1)
        predicted = predicted.detach()
        error = (predicted - target).abs().squeeze(-1)
        return TensorDict(self._results(tensordict, entries, mask, elements, error, predicted, target))

    def _next_value(self, entries: Entries, after: list[Tensor], size: torch.Size) -> Tensor:
        """Return the value of the best action after each step, ``[*B, 1]``.

        Args:
            entries: Entries that were read.
            after: Recurrent states of the trained network after each step.
            size: Shape of the batch.
        """
        (value,) = self._evaluate_next(self._target_network, entries, None, size)
        if self._choice is not None:
            (choice,) = self._evaluate_next(self._choice, entries, after, size)
            if self._choice.out_keys == [self._keys["action"]]:
                return value.gather(-1, self._index(choice, value))
            return greedy_value(value, choice)
        if self._target_network.out_keys == [self._keys[self._chosen]]:
            return value
        return greedy_value(value)


@final
@module_arguments()
class QRDQNLoss(QLoss):
    """Distributional Q-learning with quantile regression (QR-DQN), with a target network and optionally double.

    Dabney et al., "Distributional reinforcement learning with quantile regression", 2018, eq. 10 and algorithm 1.

    Reads and returns what `DQNLoss` does: ``loss``, and detached means of ``td_error``, ``pred_value`` and
    ``target_value`` (means of quantiles). Writes one entry into the batch, the priority of the transition: ``td_error``
    ``[*B]``, the absolute difference of the means of target and prediction, detached. Where the batch has ``gamma`` or
    ``steps_to_next_obs`` ``[*B, 1]``, rewards are multi-step returns.

    Args:
        value_network: Network that writes ``action_value`` ``[*B, n_actions, n_quantiles]``, quantiles at the midpoints
            ``(i + 0.5) / n_quantiles``. If it also writes ``action``, that is its best action. A plain module reads
            ``observation``.
        kappa: Error up to which the loss is quadratic, at least 0, units of return; 0 is quantile regression (eq. 8).
        delay_value: Argument of `DQNLoss`.
        double_dqn: Argument of `DQNLoss`.
        action_space: Argument of `DQNLoss`.
        gamma: Discount, in [0, 1].
        reduction: Reduction over the batch, ``"mean"``, ``"sum"`` or ``"none"``; ``"none"`` has 0 at padding.

    Raises:
        ContractError: If the network does not write ``action_value``.
        ArgumentError: If an argument is out of its range, or a network has parameters without a shape.

    Example:
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> net = nn.Sequential(nn.Linear(4, 2 * 8), nn.Unflatten(-1, (2, 8)))
        >>> loss = QRDQNLoss(TensorDictModule(net, in_keys=["observation"], out_keys=["action_value"]))
        >>> flag = torch.zeros(5, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(5, 4), reward=torch.ones(5, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(
        ...     observation=torch.randn(5, 4), action=torch.randint(2, (5,)), next=after, batch_size=[5]
        ... )
        >>> loss(batch)["loss"].backward()
        >>> batch["td_error"].shape
        torch.Size([5])
    """

    _distributional: ClassVar[bool] = True

    def __init__(
        self,
        value_network: nn.Module,
        *,
        kappa: float = 1.0,
        delay_value: bool = True,
        double_dqn: bool = False,
        action_space: Any = None,
        gamma: float = 0.99,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            value_network,
            delay_value=delay_value,
            double_dqn=double_dqn,
            action_space=action_space,
            reduction=reduction,
        )
        self.kappa = as_number(kappa, type(self).__name__, "kappa", least=0)
        self.make_value_estimator(gamma=gamma)

    def _means(self, action_value: Tensor) -> Tensor:
        """Return the mean of the quantiles of each action, ``[*B, n]``."""
        return action_value.mean(-1)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: Batch ``[*B]``.

        Raises:
            ContractError: If a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: If shapes do not agree, or on a CPU an action is out of range.
        """
        entries, mask = self.read(tensordict)
        size = tensordict.batch_size
        action_value, after = self._evaluate(entries, size)
        if action_value.ndim != len(size) + 2:
            raise ShapeError(
                f"{type(self).__name__} got {self._keys['action_value']!r} of shape {tuple(action_value.shape)} for a"
                f" batch of shape {tuple(size)}; expected [*B, n_actions, n_quantiles]"
            )
        index = self._index(entries[self._keys["action"]], action_value[..., 0])
        predicted = self._quantiles_of(action_value, index)
        with torch.no_grad():
            following, best = self._next_distribution(entries, after, size)  # [*B, n_actions, n_quantiles]
            target = self._target(tensordict, entries, mask, self._quantiles_of(following, best))
        elements = quantile_huber(predicted, target, self.kappa)
        mean, aim = predicted.detach().mean(-1), target.mean(-1)
        return TensorDict(self._results(tensordict, entries, mask, elements, (mean - aim).abs(), mean, aim))

    def _quantiles_of(self, action_value: Tensor, index: Tensor) -> Tensor:
        """Return the quantiles of one action each, ``[*B, n_quantiles]``."""
        chosen = index.unsqueeze(-1).expand(*index.shape, action_value.shape[-1])
        return self._gather(action_value, -2, chosen).squeeze(-2)
