"""REINFORCE with a baseline."""

from __future__ import annotations

from typing import final

from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl.core.contract import Key
from rl.objectives import _foreign
from rl.objectives._batch.mask import scalar
from rl.objectives.functional import policy_gradient
from rl.objectives.functional._regression import reduce
from rl.objectives.losses.policy_gradient._base import PolicyLoss
from rl.objectives.targets._target_networks import make_target

__all__ = ["ReinforceLoss"]


@final
@_foreign.reinforce_loss
class ReinforceLoss(PolicyLoss):
    """REINFORCE: log-probability of each action times its advantage, with a critic as baseline.

    Williams, "Simple statistical gradient-following algorithms for connectionist reinforcement learning", 1992; Sutton
    and Barto, "Reinforcement learning: an introduction", 2018, section 13.4.

    Reads the inputs of both networks, ``action``, ``advantage`` and ``value_target`` ``[*B, 1]``, and
    ``("collector", "mask")`` bool ``[*B]`` if there, as `PPOLoss` does. Returns scalars: ``loss_actor`` and
    ``loss_value``, to be summed and minimized. Without ``advantage`` in the batch it is estimated, as by `PPOLoss`;
    ``make_value_estimator("td1")`` takes all rewards to the end.

    Args:
        actor_network: policy with a distribution; gives log-probabilities ``[*B]``.
        critic_network: writes ``state_value`` ``[*B, 1]``.
        delay_value: whether advantages are estimated with a copy, ``target_critic_network``, that `SoftUpdate` or
            `HardUpdate` moves.
        loss_critic_type: ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        clip_value: as for `PPOLoss`.
        separate_losses: as for `PPOLoss`.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch; ``"none"`` has 0 at padding.

    Raises:
        ContractError: if a network has no ``in_keys``, or parameters of the critic to be copied have no shape.
        SpecError: if an argument is out of its range.

    Example:
        >>> import torch
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = ReinforceLoss(actor, critic)(batch)
        >>> (out["loss_actor"] + out["loss_value"]).backward()
    """

    target_critic_network: nn.Module | None

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        delay_value: bool = False,
        loss_critic_type: str = "smooth_l1",
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            loss_critic_type=loss_critic_type,
            clip_value=clip_value,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.target_critic_network = make_target(critic_network, type(self).__name__) if delay_value else None
        self.derive_early()

    def _writes(self) -> tuple[Key, ...]:
        return scalar("loss_actor", "policy gradient"), scalar("loss_value", "distance of values and targets")

    def _estimator_networks(self) -> dict[str, nn.Module]:
        networks = super()._estimator_networks()
        target = self.target_critic_network
        return networks if target is None else {**networks, "value_network": target}

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Compute the losses of a batch.

        Args:
            tensordict: the batch, ``[*B]``.

        Raises:
            ContractError: if a key that is read is absent.
            ShapeError: if shapes do not agree.
        """
        entries, mask = self.read_estimated(tensordict)
        size = tensordict.batch_size
        log_prob = self._log_prob(self._actor(entries, size), entries, size)
        objective = policy_gradient(log_prob, entries[self._keys["advantage"]].squeeze(-1))
        return TensorDict(
            {
                "loss_actor": reduce(objective, self.reduction, mask),
                "loss_value": self._value_loss(entries, size, mask)[0],
            }
        )
