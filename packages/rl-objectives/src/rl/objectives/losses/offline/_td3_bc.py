"""TD3 with behaviour cloning."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor, nn

from rl.core.contract import Key
from rl.core.errors import SpecError
from rl.objectives._batch.mask import mean_of, scalar
from rl.objectives.functional._regression import is_number, reduce
from rl.objectives.losses.actor_critic._base import Batch
from rl.objectives.losses.actor_critic._td3 import TD3Loss

__all__ = ["TD3BCLoss"]


@final
class TD3BCLoss(TD3Loss):
    """TD3 for a data set: the actor also stays close to the actions of the data.

    Fujimoto and Gu, "A minimalist approach to offline reinforcement learning", 2021, eq. 3 and 5.

    Keys are those of `TD3Loss`. Returns what it returns, and the detached ``bc_loss``, the squared distance to the
    actions of the batch, and ``lmbd``, the weight of the values.

    Args:
        actor_network: writes ``action``.
        qvalue_network: as for `TD3Loss`.
        alpha: weight of the values against imitation, above 0; they are divided by their mean absolute value.
        others: those of `TD3Loss`.

    Raises:
        ContractError: if a network lacks a key, or has parameters without a shape.
        SpecError: if an argument is out of its range.

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
        if not (is_number(alpha) and alpha > 0):
            raise SpecError(f"TD3BCLoss got alpha={alpha!r}; it is a number above 0")
        super().__init__(actor_network, qvalue_network, **others)
        self.alpha = alpha

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
        imitation = (action - batch.entries[self._keys["action"]]).square().mean(-1)
        weight = self.alpha / mean_of(value.detach().abs(), batch.mask).clamp_min(1e-6)
        return {
            "loss_actor": reduce(imitation - weight * value, self.reduction, batch.mask),
            "bc_loss": mean_of(imitation.detach(), batch.mask),
            "lmbd": weight,
        }
