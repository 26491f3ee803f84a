"""Advantage actor-critic."""

from __future__ import annotations

from typing import final

from tensordict import TensorDict, TensorDictBase
from torch import nn

from rl.core.contract import Key
from rl.objectives import _foreign
from rl.objectives._batch.mask import mean_of, scalar
from rl.objectives.functional import policy_gradient
from rl.objectives.functional._regression import reduce
from rl.objectives.losses.policy_gradient._base import EntropyCoeff, PolicyLoss, check_entropy, weighted_entropy

__all__ = ["A2CLoss"]


@final
@_foreign.a2c_loss
class A2CLoss(PolicyLoss):
    """Advantage actor-critic: policy gradient with a critic and an entropy bonus.

    Mnih et al., "Asynchronous methods for deep reinforcement learning", 2016, section 4 and algorithm S3, with steps
    collected together.

    Reads the inputs of both networks, ``action``, ``advantage`` and ``value_target`` ``[*B, 1]``, and
    ``("collector", "mask")`` bool ``[*B]`` if there, as `PPOLoss` does, without ``action_log_prob``.
    Returns scalars: ``loss_objective``, ``loss_critic``, ``loss_entropy``, to be summed and minimized, and the detached
    ``entropy``. Without ``advantage`` in the batch it is estimated, as by `PPOLoss`.

    Args:
        actor_network: policy with a distribution; gives log-probabilities ``[*B]``.
        critic_network: writes ``state_value`` ``[*B, 1]``.
        entropy_bonus: whether the entropy bonus is added.
        samples_mc_entropy: number of actions that estimate the entropy of a distribution without a formula for it.
        entropy_coeff: weight of the entropy bonus, at least 0; for an actor with several actions also a mapping from
            action key to weight.
        critic_coeff: weight of the critic's loss, at least 0.
        loss_critic_type: ``"smooth_l1"``, ``"l2"`` or ``"l1"``.
        clip_value: as for `PPOLoss`.
        separate_losses: as for `PPOLoss`.
        reduction: ``"mean"``, ``"sum"`` or ``"none"`` of the losses over the batch; ``"none"`` has 0 at padding.

    Raises:
        ContractError: if a network has no ``in_keys``.
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
        >>> loss = A2CLoss(actor, critic)
        >>> loss.in_keys
        ['observation', 'action', 'advantage', 'value_target']
        >>> batch = actor(TensorDict(observation=torch.randn(8, 3), batch_size=[8])).detach()
        >>> batch = batch.update({"advantage": torch.randn(8, 1), "value_target": torch.randn(8, 1)})
        >>> out = loss(batch)
        >>> (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    """

    def __init__(
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: EntropyCoeff = 0.01,
        critic_coeff: float = 1.0,
        loss_critic_type: str = "smooth_l1",
        clip_value: float | None = None,
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            clip_value=clip_value,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.entropy_coeff = check_entropy(entropy_coeff, samples_mc_entropy, type(self).__name__, bonus=entropy_bonus)
        self.samples_mc_entropy = samples_mc_entropy
        self.derive_early()

    def _writes(self) -> tuple[Key, ...]:
        return (
            scalar("loss_objective", "policy gradient"),
            scalar("loss_critic", "weighted distance of values and targets"),
            scalar("loss_entropy", "weighted negative entropy"),
            scalar("entropy", "entropy of the policy, nats, no gradient"),
        )

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
        dist = self._actor(entries, size)
        log_prob = self._log_prob(dist, entries, size)
        objective = policy_gradient(log_prob, entries[self._keys["advantage"]].squeeze(-1))
        loss_entropy, entropy = weighted_entropy(
            dist, self.entropy_coeff, self.samples_mc_entropy, self.reduction, mask
        )
        return TensorDict(
            {
                "loss_objective": reduce(objective, self.reduction, mask),
                "loss_critic": self._value_loss(entries, size, mask)[0],
                "loss_entropy": loss_entropy,
                "entropy": mean_of(entropy.detach(), mask),
            }
        )
