"""Base of losses of action values: contract, actions, values of next states, target network, priorities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn

from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError, SpecError
from rl.core.keys import NestedKey, key_str, next_key, unwrap
from rl.objectives._batch.agents import mask_keys, next_values, per_agent, priority_of, weights_of
from rl.objectives._batch.done_flags import end_flags
from rl.objectives._batch.mask import (
    DISCOUNT,
    MASK,
    STEPS,
    discount_key,
    mean_of,
    scalar,
    steps_key,
    terminated_key,
)
from rl.objectives._networks.calls import NetworkCall, input_key
from rl.objectives.estimators._base import TDEstimatorBase, ValueEstimatorBase
from rl.objectives.estimators._td import check_td
from rl.objectives.functional._regression import reduce
from rl.objectives.losses._base import Entries, LossModule
from rl.objectives.targets._target_networks import make_target

__all__ = ["QLoss"]

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


class QLoss(LossModule):
    """Base of losses that fit values of actions to one target, with a target network and optionally double.

    A subclass implements `forward`, and `_means` if its network writes distributions, else `_following_keys`. The last
    line of its ``__init__`` is ``self.make_value_estimator(gamma=gamma)``. Arguments are those of `DQNLoss`.
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
        "steps_to_next_obs": STEPS,
    }
    _options: ClassVar[tuple[str, ...]] = ("double_dqn",)
    _distributional: ClassVar[bool] = False
    """Whether the network writes a distribution of the value of each action."""

    value_network: nn.Module
    target_value_network: nn.Module | None

    def __init__(
        self, value_network: nn.Module, *, delay_value: bool, double_dqn: bool, action_space: Any, reduction: str | None
    ) -> None:
        super().__init__(reduction=reduction)
        owner = type(self).__name__
        if not isinstance(value_network, TensorDictModuleBase) and not hasattr(value_network, "in_keys"):
            value_network = TensorDictModule(value_network, in_keys=["observation"], out_keys=["action_value"])
        self.action_space = _action_space(action_space, self._keys["action"], owner)
        self.double_dqn, self.delay_value, self.value_network = double_dqn, delay_value, value_network
        self.target_value_network = make_target(value_network, owner) if delay_value else None

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        check_td(estimator, type(self).__name__, one_step=self._distributional)

    def _following_keys(self, written: Sequence[NestedKey]) -> Mapping[str, NestedKey]:
        """Outputs of the network that values next states, of those that it writes; here for distributions."""
        names = ["action_value", *(["action"] if self._keys["action"] in written and not self.double_dqn else [])]
        return {name: self._keys[name] for name in names}

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
        self._target = NetworkCall(following, self._following_keys(written))
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
                *mask_keys(keys, after=True),
                discount_key(keys["discount"]),
                steps_key(keys["steps_to_next_obs"]),
            ),
            (
                scalar("loss", "distance of action values and targets"),
                scalar("td_error", "mean absolute difference of action values and targets, no gradient"),
                scalar("pred_value", "mean value of the actions taken, no gradient"),
                scalar("target_value", "mean target, no gradient"),
            ),
        )

    def _now(self, entries: Entries, size: torch.Size) -> tuple[Tensor, list[Tensor]]:
        """Output of the trained network, and its recurrent states after each step."""
        if not self._states:
            return self._online(entries, size)[0], []
        (action_value,), after = self._online.sequence(entries, size)
        return action_value, after

    @staticmethod
    def _outcome(call: NetworkCall, entries: Entries, after: Sequence[Tensor] | None, size: torch.Size) -> list[Tensor]:
        """Outputs of a network for the next states; a recurrent one continues from the states `after`."""
        if not call.states:
            return call.after(entries, size)
        return call.following(entries, call.sequence(entries, size)[1] if after is None else after, size)

    def _index(self, action: Tensor, action_value: Tensor) -> Tensor:
        """Index of the action among the n values ``[*B, n]``: ``[*B, 1]`` int64."""
        if action.shape == action_value.shape and self.action_space != _CATEGORICAL:
            if action.is_floating_point() and self.action_space is None:
                self._refuse_floats(action, "If they are one-hot, give the loss action_space='one-hot'")
            return action.long().argmax(-1, keepdim=True)
        if action.shape == action_value.shape[:-1] and self.action_space != _ONE_HOT:
            if action.is_floating_point():
                self._refuse_floats(action, "If they are indices, convert them with .long()")
            return action.long().unsqueeze(-1)
        raise ShapeError(
            f"{type(self).__name__} got actions of shape {tuple(action.shape)} for action values of shape"
            f" {tuple(action_value.shape)} and action_space={self.action_space!r}: one-hot actions have that shape,"
            " categorical ones lack its last dimension"
        )

    def _refuse_floats(self, action: Tensor, remedy: str) -> NoReturn:
        raise ShapeError(
            f"{type(self).__name__} got {action.dtype} actions of shape {tuple(action.shape)}, and chooses among"
            f" {key_str(self._keys['action_value'])}: actions are one-hot or integers. {remedy}"
        )

    def _of_action(self, action_value: Tensor, action: Tensor) -> Tensor:
        """Value of the action that was taken, ``[*B, 1]``, of the values ``[*B, n]``.

        Raises:
            ShapeError: if actions have another shape or dtype, or on a CPU an index is out of range.
        """
        return self._gather(action_value, -1, self._index(action, action_value))

    def _gather(self, values: Tensor, dim: int, index: Tensor) -> Tensor:
        """``values.gather(dim, index)``, where `dim` is that of the actions.

        Raises:
            ShapeError: if on a CPU an index is out of range.
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
        """Distributions of all next values, as the network writes them, and the index of the best action ``[*B, 1]``.

        The action is that of the network, where it writes one, else the one of the largest mean (`_means`).
        """
        written = self._outcome(self._target, entries, None, size)
        means = self._means(written[0])
        call, found = self._target, written
        if self._choice is not None:
            call, found = self._choice, self._outcome(self._choice, entries, after, size)
        if call.out_keys[-1] == self._keys["action"]:
            return written[0], self._index(found[-1], means)
        return written[0], (means if call is self._target else self._means(found[0])).argmax(-1, keepdim=True)

    def _means(self, action_value: Tensor) -> Tensor:
        """Expected value of each action, ``[*B, n]``; of a distributional loss."""
        raise NotImplementedError

    def _backup(self, tensordict: TensorDictBase, entries: Entries, mask: Tensor | None, value: Tensor) -> Tensor:
        """Target of each of the next values ``[*B, F]``, in that shape; reward and flags count for all F."""
        keys = self._keys
        reward, ended = entries[next_key(keys["reward"])], entries.get(next_key(keys["terminated"]))
        done = entries[next_key(keys["done"])]
        done, terminated = end_flags(tensordict, done, ended, keys, mask, type(self).__name__)
        estimator = self._estimators[0]
        assert isinstance(estimator, TDEstimatorBase)
        time = estimator.find_time(tensordict, done)
        discount = estimator.row_discount(
            *(self._optional(tensordict, entries, name) for name in ("discount", "steps_to_next_obs"))
        )
        if value.shape[-1] != 1:
            for name, flag in (("reward", reward), ("done", done), ("terminated", terminated), ("gamma", discount)):
                if flag is not None and flag.shape != (*value.shape[:-1], 1):
                    raise ShapeError(
                        f"{type(self).__name__} got {name} of shape {tuple(flag.shape)} for a batch of shape"
                        f" {tuple(value.shape[:-1])}: they would broadcast; rewards and flags are [*B, 1]"
                    )
            reward, done, terminated = (x.expand_as(value) for x in (reward, done, terminated))
            discount = None if discount is None else discount.expand_as(value)
        reward, done, terminated = per_agent(value, [reward, done, terminated])
        discount = None if discount is None else per_agent(value, [discount])[0]
        value = next_values(value, entries, keys)
        return estimator.discounted(discount)(value, reward, done, terminated, time)

    def _result(
        self,
        tensordict: TensorDictBase,
        elements: Tensor,
        error: Tensor,
        predicted: Tensor,
        target: Tensor,
        entries: Entries,
        mask: Tensor | None,
    ) -> TensorDictBase:
        """Write the priorities into the batch and return the losses.

        Args:
            tensordict: the batch, ``[*B]``.
            elements: loss of each element, ``[*B]``.
            error: priority of each element, ``[*B]``.
            predicted: values, any shape that starts with ``[*B]``.
            target: targets, any such shape.
            entries: of the batch.
            mask: of valid steps.
        """
        weight = self._optional(tensordict, entries, "priority_weight")
        if weight is not None:
            name = self._keys["priority_weight"]
            elements = elements * weights_of(weight, name, elements, tensordict.batch_size, type(self).__name__)
        out = {
            "loss": reduce(elements, self.reduction, mask),
            "td_error": mean_of(error, mask),
            "pred_value": mean_of(predicted, mask),
            "target_value": mean_of(target, mask),
        }
        tensordict.set(self._keys["priority"], priority_of(error, tensordict.batch_size, mask))
        return TensorDict(out)
