"""Base of losses of replayed steps: targets of one step or n steps, importance weights and priorities."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor

from rl.core.contract import Key
from rl.core.errors import ShapeError
from rl.core.keys import NestedKey, key_str, next_key
from rl.objectives._agents import Entries, mask_keys, per_agent
from rl.objectives._batch import (
    DISCOUNT,
    MASK,
    STEPS,
    discount_key,
    expand_right,
    mean_of,
    scalar,
    steps_key,
    terminated_key,
)
from rl.objectives._estimator_base import TDEstimatorBase, ValueEstimatorBase
from rl.objectives.estimators import check_td
from rl.objectives.functional._q_learning import reduce
from rl.objectives.losses._base import LossModule, of_estimator


class ReplayLoss(LossModule):
    """Base of losses that fit values of actions to targets, from replayed steps in any order.

    With `TD1Estimator` or `TDLambdaEstimator`, batches are ``[*B, T]`` in time order. The returns are those of the
    actions in the batch, not corrected for the present policy.
    """

    default_keys: ClassVar[dict[str, NestedKey]] = {
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
    _loss_name: ClassVar[str] = "loss"
    _distributional: ClassVar[bool] = False
    """Whether networks write distributions of values."""

    gamma: float | Tensor = of_estimator("gamma")
    """Discount."""
    lmbda: float | Tensor = of_estimator("lmbda")
    """Weight of longer returns, if the value estimator has one."""

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        check_td(estimator, type(self).__name__, one_step=self._distributional)

    def _outcome_reads(self) -> tuple[Key, ...]:
        """Return the part of the contract that `_target` and `_results` read."""
        keys = self._keys
        self._outcome: tuple[Any, Any, Any] = (
            next_key(keys["reward"]),
            next_key(keys["done"]),
            next_key(keys["terminated"]),
        )
        return (
            Key(next_key(keys["reward"]), (1,), "reward of the step"),
            Key(next_key(keys["done"]), (1,), "whether the episode ended with the step", torch.bool),
            terminated_key(keys["terminated"]),
            Key(keys["priority_weight"], (), "weight of the element", optional=True),
            *mask_keys(keys["mask"], self._agents, after=True),
            discount_key(keys["discount"]),
            steps_key(keys["steps_to_next_obs"]),
        )

    def _diagnostic_writes(self, loss: str) -> tuple[Key, ...]:
        """Return the part of the contract that `_results` writes.

        Args:
            loss: Description of the loss.
        """
        return (
            scalar(self._loss_name, loss),
            scalar("td_error", "mean absolute difference of values and targets, no gradient"),
            scalar("pred_value", "mean value of the actions taken, no gradient"),
            scalar("target_value", "mean target, no gradient"),
        )

    def _target(self, td: TensorDictBase, entries: Entries, mask: Tensor | None, next_value: Tensor) -> Tensor:
        """Return ``reward + gamma**n * (1 - terminated) * next_value``, in the shape of `next_value` ``[*B, F]``.

        The estimator of the loss may add rewards of later steps. Reward, flags and discount count for all F, and
        those of the entire team for each agent of a group.

        Args:
            td: Batch ``[*B]``.
            entries: Entries that were read.
            mask: Mask of valid steps.
            next_value: Value of the next state, ``[*B, 1]``, or a distribution of it, ``[*B, n]``.
        """
        reward_key, done_key, terminated_key = self._outcome
        reward = entries[reward_key]
        done, terminated = self._reader.end_flags(td, entries[done_key], entries.get(terminated_key), mask)
        estimator = self._estimators[0]
        assert isinstance(estimator, TDEstimatorBase)
        time = estimator.find_time(td, done) if estimator.needs_time else 0

        # n-step returns: the batch has gamma**n of each row, or n; None for single steps, whose discount is gamma
        discount = self._optional(td, entries, "discount")
        steps = self._optional(td, entries, "steps_to_next_obs")
        if discount is not None or steps is not None:
            discount = estimator.row_discount(discount, steps)

        if self._agents is not None:
            next_value = self._agents.mask_next_value(next_value, entries)
        if not reward.shape == done.shape == terminated.shape == next_value.shape or discount is not None:
            reward, done, terminated, discount = self._expand_outcome(next_value, reward, done, terminated, discount)
        returns = estimator.returns if discount is None else estimator.discounted(discount)
        return returns(next_value, reward, done, terminated, time)

    def _expand_outcome(
        self, value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, discount: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Expand outcomes of a team to its agents, and those of values to their distributions.

        Raises:
            ShapeError: If an outcome of a distribution has another shape than ``[*B, 1]``.
        """
        like = value[..., :1]  # [*B, 1], or [*B, n_agents, 1]
        reward, done, terminated = per_agent(like, [reward, done, terminated])
        discount = None if discount is None else per_agent(like, [discount])[0]
        if value.shape[-1] == 1:
            return reward, done, terminated, discount
        for name, one in (("reward", reward), ("done", done), ("terminated", terminated), ("gamma", discount)):
            if one is not None and one.shape != like.shape:
                raise ShapeError(
                    f"{type(self).__name__} got {name} of shape {tuple(one.shape)} for a batch of shape"
                    f" {tuple(like.shape[:-1])}: they would broadcast; rewards and flags are [*B, 1]"
                )
        reward, done, terminated = (one.expand_as(value) for one in (reward, done, terminated))
        return reward, done, terminated, None if discount is None else discount.expand_as(value)

    def _results(
        self,
        td: TensorDictBase,
        entries: Entries,
        mask: Tensor | None,
        elements: Tensor,
        error: Tensor,
        predicted: Tensor,
        target: Tensor,
    ) -> dict[str, Tensor]:
        """Write the priorities into the batch, and return the loss of weighted elements and diagnostics.

        Args:
            td: Batch ``[*B]``.
            entries: Entries that were read.
            mask: Mask of the elements that count.
            elements: Loss of each element, ``[*B]``, or ``[*B, n_agents]``.
            error: Priority of each element, of that shape.
            predicted: Values, any shape that starts with ``[*B]``.
            target: Targets, any such shape.

        Raises:
            ShapeError: If weights are not ``[*B]``.
        """
        size = td.batch_size
        weight = self._optional(td, entries, "priority_weight")
        if weight is not None:
            if weight.shape != size:
                raise ShapeError(
                    f"{type(self).__name__} got {key_str(self._keys['priority_weight'])} of shape"
                    f" {tuple(weight.shape)} for a batch of shape {tuple(size)}: they would broadcast; weights are"
                    " [*B]"
                )
            elements = elements * expand_right(weight, elements)
        results = {
            self._loss_name: reduce(elements, self.reduction, mask),
            "td_error": mean_of(error, mask),
            "pred_value": mean_of(predicted, mask),
            "target_value": mean_of(target, mask),
        }
        if error.ndim > len(size):  # of agents: a step has the largest priority of those that act
            error = (error if mask is None or mask.ndim < error.ndim else error.where(mask, 0)).amax(-1)
        td.set(self._keys["priority"], error)
        return results
