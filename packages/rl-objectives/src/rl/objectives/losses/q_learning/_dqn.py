"""Deep Q-learning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives.functional import greedy_value
from rl.objectives.functional._regression import check_distance, distance
from rl.objectives.losses._base import Entries
from rl.objectives.losses.q_learning._base import QLoss

__all__ = ["DQNLoss"]


@_foreign.dqn_loss
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
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: if shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size = self._keys, tensordict.batch_size
        action_value, after = self._now(entries, size)
        predicted = self._of_action(action_value, entries[keys["action"]])
        with torch.no_grad():
            target = self._backup(tensordict, entries, mask, self._next_value(entries, after, size))
        return self._fit(tensordict, predicted, target, entries, mask)

    def _fit(
        self, tensordict: TensorDictBase, predicted: Tensor, target: Tensor, entries: Entries, mask: Tensor | None
    ) -> TensorDictBase:
        """The loss of `predicted` ``[*B, 1]`` against `target`, and diagnostics; writes ``td_error``."""
        elements = distance(predicted, target, self.loss_function).squeeze(-1)
        predicted = predicted.detach()
        error = (predicted - target).abs().squeeze(-1)
        return self._result(tensordict, elements, error, predicted, target, entries, mask)

    def _next_value(self, entries: Entries, after: list[Tensor], size: torch.Size) -> Tensor:
        """Value of the best action after each step, ``[*B, 1]``; `after` are the states of the trained network."""
        (value,) = self._outcome(self._target, entries, None, size)
        if self._choice is not None:
            (choice,) = self._outcome(self._choice, entries, after, size)
            if self._choice.out_keys == [self._keys["action"]]:
                return value.gather(-1, self._index(choice, value))
            return greedy_value(value, choice)
        if self._target.out_keys == [self._keys[self._chosen]]:
            return value
        return greedy_value(value)
