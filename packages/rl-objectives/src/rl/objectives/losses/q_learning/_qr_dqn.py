"""Distributional Q-learning with quantile regression (QR-DQN)."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.errors import ShapeError, SpecError
from rl.objectives import _foreign
from rl.objectives.functional._distributional import quantile_huber
from rl.objectives.functional._regression import is_number
from rl.objectives.losses.q_learning._base import QLoss

__all__ = ["QRDQNLoss"]


@final
@_foreign.dqn_loss
class QRDQNLoss(QLoss):
    """Distributional Q-learning with quantile regression (QR-DQN), with a target network and optionally double.

    Dabney et al., "Distributional reinforcement learning with quantile regression", 2018, eq. 10 and algorithm 1.

    Reads and returns what `DQNLoss` does: ``loss``, and detached means of ``td_error``, ``pred_value`` and
    ``target_value`` (means of quantiles). Writes one entry into the batch, the priority of the transition: ``td_error``
    ``[*B]``, the absolute difference of the means of target and prediction, detached. Where the batch has ``gamma`` or
    ``steps_to_next_obs`` ``[*B, 1]``, rewards are multi-step returns.

    Args:
        value_network: writes ``action_value`` ``[*B, n_actions, n_quantiles]``, quantiles at the midpoints
            ``(i + 0.5) / n_quantiles``. If it also writes ``action``, that is its best action. A plain module reads
            ``observation``.
        kappa: error up to which the loss is quadratic, at least 0, units of return; 0 is quantile regression (eq. 8).
        delay_value: as for `DQNLoss`.
        double_dqn: as for `DQNLoss`.
        action_space: as for `DQNLoss`.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch; ``"none"`` has 0 at padding.

    Raises:
        ContractError: if the network does not write ``action_value``, or has parameters without a shape.
        SpecError: if an argument is out of its range.

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
        if not (is_number(kappa) and kappa >= 0):
            raise SpecError(f"{type(self).__name__} got kappa={kappa!r}; it is a number of at least 0")
        self.kappa = kappa
        self.make_value_estimator(gamma=gamma)

    def _means(self, action_value: Tensor) -> Tensor:
        """Mean of the quantiles of each action, ``[*B, n]``."""
        return action_value.mean(-1)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the loss of a batch, and write ``td_error`` into the batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent, or a step is terminated or truncated and not done.
            ShapeError: if shapes do not agree, or on a CPU an action is out of range.
        """
        entries, mask = self.read(tensordict)
        size = tensordict.batch_size
        action_value, after = self._now(entries, size)
        if action_value.ndim != len(size) + 2:
            raise ShapeError(
                f"{type(self).__name__} got {self._keys['action_value']!r} of shape {tuple(action_value.shape)} for a"
                f" batch of shape {tuple(size)}; expected [*B, n_actions, n_quantiles]"
            )
        index = self._index(entries[self._keys["action"]], action_value[..., 0])
        predicted = self._quantiles_of(action_value, index)
        with torch.no_grad():
            following, best = self._next_distribution(entries, after, size)
            target = self._backup(tensordict, entries, mask, self._quantiles_of(following, best))
        elements = quantile_huber(predicted, target, self.kappa)
        mean, aim = predicted.detach().mean(-1), target.mean(-1)
        return self._result(tensordict, elements, (mean - aim).abs(), mean, aim, entries, mask)

    def _quantiles_of(self, action_value: Tensor, index: Tensor) -> Tensor:
        """Quantiles of one action each, ``[*B, n_quantiles]``."""
        chosen = index.unsqueeze(-1).expand(*index.shape, action_value.shape[-1])
        return self._gather(action_value, -2, chosen).squeeze(-2)
