"""Deep deterministic policy gradient."""

from __future__ import annotations

from typing import ClassVar, final

from torch import Tensor, nn

from rl.core.contract import Key
from rl.core.keys import NestedKey
from rl.objectives import _foreign
from rl.objectives._batch.mask import scalar
from rl.objectives._networks.calls import NetworkCall
from rl.objectives.functional._regression import reduce
from rl.objectives.losses.actor_critic._base import Batch, OffPolicyLoss

__all__ = ["DDPGLoss"]


@final
@_foreign.off_policy_loss
class DDPGLoss(OffPolicyLoss):
    """Deep deterministic policy gradient.

    Lillicrap et al., "Continuous control with deep reinforcement learning", 2016, algorithm 1.

    Reads the inputs of both networks at the root and under ``next``, ``action``, ``("next", "reward")``,
    ``("next", "done")`` and, if there, ``("next", "terminated")`` ``[*B, 1]``, ``priority_weight`` ``[*B]``,
    ``("collector", "mask")`` bool ``[*B]`` and ``gamma`` ``[*B, 1]`` (the discount after `MultiStepTransform`). Returns
    scalars: ``loss_actor`` and ``loss_value``, to be summed and minimized, and detached means of ``td_error``
    (absolute), ``pred_value`` and ``target_value``. Writes ``td_error`` ``[*B]`` into the batch.

    Args:
        actor_network: writes ``action``.
        value_network: reads ``action`` and writes ``state_action_value`` ``[*B, 1]``.
        loss_function: ``"l2"``, ``"l1"`` or ``"smooth_l1"``.
        delay_actor: whether the next action is that of a copy, ``target_actor_network``.
        delay_value: whether it is valued by a copy, ``target_value_network``. `SoftUpdate` moves both.
        gamma: discount, in [0, 1].
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch.

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
        >>> loss = DDPGLoss(actor, critic)
        >>> flag = torch.zeros(8, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(8, 3), reward=torch.ones(8, 1), done=flag, terminated=flag)
        >>> batch = TensorDict(observation=torch.randn(8, 3), action=torch.randn(8, 2), next=after, batch_size=[8])
        >>> out = loss(batch)
        >>> (out["loss_actor"] + out["loss_value"]).backward()
    """

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
