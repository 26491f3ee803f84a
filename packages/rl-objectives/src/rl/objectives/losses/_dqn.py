"""Deep Q-learning."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError, SpecError
from rl.core.keys import NestedKey, next_key, unwrap
from rl.objectives import _foreign
from rl.objectives._batch.done_flags import end_flags
from rl.objectives._batch.mask import DISCOUNT, MASK, discount_key, mask_key, mean_of, scalar, terminated_key
from rl.objectives._networks.calls import NetworkCall, input_key
from rl.objectives.estimators._base import TDEstimatorBase, ValueEstimatorBase
from rl.objectives.functional import greedy_value
from rl.objectives.functional._regression import check_distance, distance, reduce
from rl.objectives.losses._base import Entries, LossModule
from rl.objectives.targets._target_networks import make_target

__all__ = ["DQNLoss"]

_ONE_HOT, _CATEGORICAL = "one-hot", "categorical"


def _action_space(space: Any, action_key: NestedKey, owner: str) -> str | None:
    """``"one-hot"``, ``"categorical"``, or None without a space; from a name or a spec."""
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
        raise SpecError(
            f"{owner} chooses among n actions, got action_space={space!r}: give 'one-hot', 'categorical',"
            " or a OneHot or Categorical spec"
        )
    return name


@final
@_foreign.dqn_loss
class DQNLoss(LossModule):
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
        value_network: writes ``action_value`` ``[*B, n]``; if it also writes ``chosen_action_value``, that is the value
            of the next state. A plain module reads ``observation``.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_value: whether next states are valued by a copy, ``target_value_network``, that `SoftUpdate` or
            `HardUpdate` moves.
        double_dqn: whether the next action is the trained network's choice.
        action_space: ``"one-hot"``, ``"categorical"`` or a spec; None accepts both.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch; ``"none"`` has 0 at padding.

    Raises:
        ContractError: if the network does not write ``action_value``, or has parameters without a shape.
        SpecError: if `action_space` is of another kind, or an argument is out of its range.

    Example:
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

    default_keys: ClassVar[dict[str, NestedKey]] = {
        "action_value": "action_value",
        "chosen_action_value": "chosen_action_value",
        "action": "action",
        "reward": "reward",
        "done": "done",
        "terminated": "terminated",
        "priority": "td_error",
        "priority_weight": "priority_weight",
        "mask": MASK,
        "discount": DISCOUNT,
    }
    _options: ClassVar[tuple[str, ...]] = ("double_dqn",)

    value_network: nn.Module
    target_value_network: nn.Module | None

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
        super().__init__(reduction=reduction)
        owner = type(self).__name__
        if not isinstance(value_network, TensorDictModuleBase) and not hasattr(value_network, "in_keys"):
            value_network = TensorDictModule(value_network, in_keys=["observation"], out_keys=["action_value"])
        self.action_space = _action_space(action_space, self._keys["action"], owner)
        self.loss_function, self.double_dqn = check_distance(loss_function, owner), double_dqn
        self.value_network = value_network
        self.target_value_network = make_target(value_network, owner) if delay_value else None
        self.make_value_estimator(gamma=gamma)

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        if not isinstance(estimator, TDEstimatorBase):
            raise SpecError(
                f"{type(self).__name__} cannot use {type(estimator).__name__}, which needs the value of the"
                " policy at each state; it takes TD0, TD1, TDLambda, or a TDEstimatorBase"
            )

    def _derive(self) -> Contract:
        keys = self._keys
        if self.double_dqn and self.target_value_network is None:
            raise SpecError(
                f"{type(self).__name__} got double_dqn=True without delay_value: without a target network it changes"
                " nothing"
            )
        self._online = NetworkCall(self.value_network, {"action_value": keys["action_value"]})
        written = [unwrap(key) for key in self.value_network.out_keys]  # pyright: ignore[reportUnknownVariableType, reportGeneralTypeIssues] - checked by the call
        following = self.value_network if self.target_value_network is None else self.target_value_network
        choice = "action" if keys["action"] in written else "action_value"
        self._choice = NetworkCall(self.value_network, {choice: keys[choice]}) if self.double_dqn else None
        chosen = not self.double_dqn and keys["chosen_action_value"] in written
        following_value = "chosen_action_value" if chosen else "action_value"
        self._target = NetworkCall(following, {following_value: keys[following_value]})
        self._states = self._online.states
        return Contract(
            (
                *(input_key(key, self._states) for key in self._online.in_keys),
                Key(keys["action"], doc="action that was taken, one-hot or integer"),
                *(Key(next_key(key), doc="the same after the step") for key in self._online.outcome_keys),
                Key(next_key(keys["reward"]), (1,), "reward of the step"),
                Key(next_key(keys["done"]), (1,), "whether the episode ended with the step", torch.bool),
                terminated_key(keys["terminated"]),
                Key(keys["priority_weight"], (), "weight of the element", optional=True),
                mask_key(keys["mask"]),
                discount_key(keys["discount"]),
            ),
            (
                scalar("loss", "distance of action values and targets"),
                scalar("td_error", "mean absolute difference of action values and targets, no gradient"),
                scalar("pred_value", "mean value of the actions taken, no gradient"),
                scalar("target_value", "mean target, no gradient"),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: if shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size = self._keys, tensordict.batch_size
        after: list[Tensor] = []
        if self._states:
            (action_value,), after = self._online.sequence(entries, size)
        else:
            (action_value,) = self._online(entries, size)
        predicted = action_value.gather(-1, self._index(entries[keys["action"]], action_value))
        with torch.no_grad():
            value = self._next_value(entries, after, size)
            reward, ended = entries[next_key(keys["reward"])], entries.get(next_key(keys["terminated"]))
            done = entries[next_key(keys["done"])]
            done, terminated = end_flags(tensordict, done, ended, keys, mask, type(self).__name__)
            estimator = self._estimators[0]
            assert isinstance(estimator, TDEstimatorBase)
            time = estimator.find_time(tensordict, tensordict.get(next_key(keys["done"])).bool())
            returns = estimator.discounted(entries.get(keys["discount"]))
            target = returns(value, reward, done, terminated, time)
        elements = distance(predicted, target, self.loss_function).squeeze(-1)
        weight = entries.get(keys["priority_weight"])
        if weight is not None:
            if weight.shape != elements.shape:
                raise ShapeError(
                    f"{type(self).__name__} got {keys['priority_weight']!r} of shape {tuple(weight.shape)} for a"
                    f" batch of shape {tuple(elements.shape)}: they would broadcast; weights are [*B]"
                )
            elements = elements * weight
        predicted = predicted.detach()
        error = (predicted - target).abs().squeeze(-1)
        out = {
            "loss": reduce(elements, self.reduction, mask),
            "td_error": mean_of(error, mask),
            "pred_value": mean_of(predicted, mask),
            "target_value": mean_of(target, mask),
        }
        tensordict.set(keys["priority"], error)
        return TensorDict(out)

    def _index(self, action: Tensor, action_value: Tensor) -> Tensor:
        """Index of the action among the n values, ``[*B, 1]`` int64."""
        if action.shape == action_value.shape and self.action_space != _CATEGORICAL:
            return action.long().argmax(-1, keepdim=True)
        if action.shape == action_value.shape[:-1] and self.action_space != _ONE_HOT:
            return action.long().unsqueeze(-1)
        raise ShapeError(
            f"{type(self).__name__} got actions of shape {tuple(action.shape)} for action values of shape"
            f" {tuple(action_value.shape)} and action_space={self.action_space!r}: one-hot actions have that shape,"
            " categorical ones lack its last dimension"
        )

    def _next_value(self, entries: Entries, after: list[Tensor], size: torch.Size) -> Tensor:
        """Value of the best action after each step, ``[*B, 1]``; `after` are the states of the trained network."""
        value = self._outcome(self._target, entries, None, size)
        if self._choice is not None:
            choice = self._outcome(self._choice, entries, after, size)
            if self._choice.out_keys == [self._keys["action"]]:
                return value.gather(-1, self._index(choice, value))
            return greedy_value(value, choice)
        if self._target.out_keys == [self._keys["chosen_action_value"]]:
            return value
        return greedy_value(value)

    @staticmethod
    def _outcome(call: NetworkCall, entries: Entries, after: list[Tensor] | None, size: torch.Size) -> Tensor:
        """Output of a network for the next states; a recurrent one continues from the states `after`."""
        if not call.states:
            return call.after(entries, size)[0]
        return call.following(entries, call.sequence(entries, size)[1] if after is None else after, size)[0]
