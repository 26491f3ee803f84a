"""Distributional Q-learning with fixed atoms (C51)."""

from __future__ import annotations

from typing import Any, ClassVar, final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.errors import ShapeError, SpecError
from rl.objectives import _foreign
from rl.objectives.functional._distributional import categorical_divergence, check_support, project_distribution
from rl.objectives.losses.q_learning._base import QLoss

__all__ = ["DistributionalDQNLoss"]


def _find_support(network: nn.Module, owner: str) -> Tensor:
    """The support that a network or one of its parts holds."""
    for part in network.modules():
        found = getattr(part, "support", None)
        if isinstance(found, Tensor):
            return found
    raise SpecError(
        f"{owner} found no support in {type(network).__name__}: give support=torch.linspace(v_min, v_max, n_atoms),"
        " or a network with that attribute"
    )


@final
@_foreign.dqn_loss
class DistributionalDQNLoss(QLoss):
    """Distributional Q-learning with fixed atoms (C51), with a target network and optionally double.

    Bellemare et al., "A distributional perspective on reinforcement learning", 2017, algorithm 1: the cross-entropy of
    the distribution of the action that was taken, and of the target ``r + gamma * z``, projected onto the atoms.

    Reads and returns what `DQNLoss` does: ``loss``, and detached means of ``td_error``, ``pred_value`` and
    ``target_value`` (expected values). Writes one entry into the batch: ``td_error`` ``[*B]``, the Kullback-Leibler
    divergence of target and prediction in nats, detached, as priority of the transition (Hessel et al., "Rainbow",
    2018). Where the batch has ``gamma`` or ``steps_to_next_obs`` ``[*B, 1]``, rewards are multi-step returns.

    Args:
        value_network: writes ``action_value`` ``[*B, n_atoms, n_actions]``, log-probabilities of the atoms; they are
            normalized over the atoms, so that logits serve, too. If it also writes ``action``, that is its best
            action. A plain module reads ``observation``.
        support: atoms in ascending, equal steps, ``[n_atoms]``, units of return; the first attribute ``support`` of
            the network or its parts if None.
        delay_value: as for `DQNLoss`.
        double_dqn: as for `DQNLoss`.
        action_space: as for `DQNLoss`.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` over the batch; ``"none"`` has 0 at padding.

    Raises:
        ContractError: if the network does not write ``action_value``, or has parameters without a shape.
        SpecError: if there is no support, or an argument is out of its range.

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
        """Expected value of each action, ``[*B, n]``."""
        return torch.einsum("...an,a->...n", action_value.softmax(-2), self.support.to(action_value.dtype))

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
        if action_value.ndim != len(size) + 2 or action_value.shape[-2] != self.support.numel():
            raise ShapeError(
                f"{type(self).__name__} got {self._keys['action_value']!r} of shape {tuple(action_value.shape)} for a"
                f" batch of shape {tuple(size)} and {self.support.numel()} atoms; expected [*B, n_atoms, n_actions]"
            )
        index = self._index(entries[self._keys["action"]], action_value[..., 0, :]).unsqueeze(-2)
        chosen = index.expand(*action_value.shape[:-1], 1)
        log_prob = self._gather(action_value, -1, chosen).squeeze(-1).log_softmax(-1)
        with torch.no_grad():
            support = self.support.to(log_prob.dtype)
            following, best = self._next_distribution(entries, after, size)
            best = best.unsqueeze(-2).expand_as(chosen)
            probability = following.gather(-1, best).squeeze(-1).softmax(-1)
            moved = self._backup(tensordict, entries, mask, support.expand_as(probability))
            target = project_distribution(probability, moved, support)
        elements, error = categorical_divergence(log_prob, target)
        predicted = log_prob.detach().exp() @ support
        return self._result(tensordict, elements, error, predicted, target @ support, entries, mask)
