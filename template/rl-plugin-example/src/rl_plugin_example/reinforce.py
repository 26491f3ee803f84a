"""Policy gradient with an entropy bonus."""

from __future__ import annotations

from typing import Any

from rl.core.arguments import as_number, same_shape
from rl.core.contract import Contract, Key
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

__all__ = ["ReinforceLoss", "policy_gradient"]


def policy_gradient(log_prob: Tensor, advantage: Tensor) -> Tensor:
    """Return the negated score times advantage, elementwise.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992.

    Args:
        log_prob: Log-probability of the action that was taken, ``[*B]``, nats.
        advantage: Advantage of that action, ``[*B]``, units of return; not differentiated.

    Returns:
        Loss per element, ``[*B]``.

    Raises:
        ShapeError: If the shapes differ.
    """
    same_shape(log_prob=log_prob, advantage=advantage)
    return -log_prob * advantage.detach()


class ReinforceLoss(nn.Module):
    """Loss of a batch of steps with advantages; minimize the sum of the entries that start with ``loss_``.

    Args:
        actor: Probabilistic TensorDict module, which has ``in_keys`` and ``get_dist(tensordict)``.
        entropy_coeff: Weight of the entropy bonus, at least 0, units of return per nat.

    Keys: reads what the actor reads, ``action`` and ``advantage`` ``[*B, 1]``; returns ``loss_objective``,
    ``loss_entropy`` and ``entropy`` (nats, without gradient), all ``[]``.

    Raises:
        ArgumentError: If `entropy_coeff` is negative.
    """

    def __init__(self, actor: Any, entropy_coeff: float = 0.01) -> None:
        super().__init__()
        self.actor = actor
        self.entropy_coeff = as_number(entropy_coeff, "ReinforceLoss", "entropy_coeff", least=0)
        self.contract = Contract(
            reads=(
                *(Key(key, doc="input of the actor") for key in actor.in_keys),
                Key("action", doc="action that was taken"),
                Key("advantage", (1,), "advantage of that action", remedy="Run a value estimator such as GAE before."),
            ),
            writes=(
                Key("loss_objective", (), "policy gradient", batched=False),
                Key("loss_entropy", (), "weighted negative entropy", batched=False),
                Key("entropy", (), "mean entropy, nats, no gradient", batched=False),
            ),
        )

    def forward(self, tensordict: TensorDictBase) -> TensorDict:
        """Compute the losses.

        Raises:
            ContractError: If a key that is read is absent.
        """
        *_, action, advantage = self.contract.read(tensordict, self)
        dist = self.actor.get_dist(tensordict.select(*self.actor.in_keys))
        objective = policy_gradient(dist.log_prob(action), advantage.squeeze(-1)).mean()
        entropy = dist.entropy().mean()
        return TensorDict(
            {
                "loss_objective": objective,
                "loss_entropy": -self.entropy_coeff * entropy,
                "entropy": entropy.detach(),
            }
        )
