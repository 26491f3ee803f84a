"""Importance-weighted actor-learner (IMPALA): V-trace actor-critic."""

from __future__ import annotations

from typing import ClassVar, final

import torch
from tensordict import TensorDict, TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError, SpecError
from rl.core.keys import next_key
from rl.objectives import _foreign
from rl.objectives._batch.agents import entry_of_team
from rl.objectives._batch.done_flags import end_flags
from rl.objectives._batch.mask import mean_of, scalar
from rl.objectives._networks.composite import joint, taken
from rl.objectives.estimators._base import ValueEstimatorBase
from rl.objectives.estimators._kinds import ValueEstimators
from rl.objectives.estimators._vtrace import VTrace
from rl.objectives.functional import policy_gradient
from rl.objectives.functional._regression import distance, reduce
from rl.objectives.losses._base import Entries
from rl.objectives.losses.policy_gradient._base import EntropyCoeff, PolicyLoss, check_entropy, weighted_entropy

__all__ = ["ImpalaLoss"]


@final
@_foreign.impala_loss
class ImpalaLoss(PolicyLoss):
    """V-trace actor-critic: an off-policy policy gradient with a critic and an entropy bonus.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
    section 4.2. Targets and advantages are computed from the present networks in each call; an ``advantage`` of the
    batch is not read.

    Reads batches ``[*B, T]`` in time order: the inputs of both networks, those of the critic under ``next`` too,
    ``action``, ``action_log_prob`` ``[*B, T]`` of the policy that collected, ``("next", "reward")``, ``("next",
    "done")`` and, if there, ``("next", "terminated")`` ``[*B, T, 1]`` and ``("collector", "mask")`` ``[*B, T]``.
    Returns scalars: ``loss_objective``, ``loss_critic``, ``loss_entropy``, to be summed and minimized, and the detached
    ``entropy``.

    Args:
        actor_network: policy with a distribution; gives log-probabilities ``[*B, T]``.
        critic_network: writes ``state_value`` ``[*B, T, 1]``.
        gamma: discount, in [0, 1].
        lmbda: weight of longer returns, in [0, 1].
        rho_thresh: largest weight of a temporal difference.
        c_thresh: largest weight of what follows, at most `rho_thresh`.
        entropy_bonus: whether the entropy bonus is added.
        samples_mc_entropy: number of actions that estimate the entropy of a distribution without a formula for it.
        entropy_coeff: weight of the entropy bonus, at least 0; for an actor with several actions also a mapping from
            action key to weight.
        critic_coeff: weight of the critic's loss, at least 0.
        loss_critic_type: ``"l2"``, ``"smooth_l1"`` or ``"l1"``.
        separate_losses: as for `PPOLoss`.
        reduction: ``"mean"``, ``"sum"`` (as in the paper) or ``"none"`` of the losses over the batch; ``"none"`` has 0
            at padding.

    Raises:
        ContractError: if a network has no ``in_keys``.
        SpecError: if an argument is out of its range.

    Example:
        >>> from tensordict.nn import (
        ...     ProbabilisticTensorDictModule, ProbabilisticTensorDictSequential, TensorDictModule
        ... )
        >>> head = ProbabilisticTensorDictModule(
        ...     ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ... )
        >>> body = TensorDictModule(nn.Linear(3, 2), in_keys=["observation"], out_keys=["logits"])
        >>> actor = ProbabilisticTensorDictSequential(body, head)
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> batch = actor(TensorDict(observation=torch.randn(2, 5, 3), batch_size=[2, 5])).detach()
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> batch["next"] = TensorDict(
        ...     observation=torch.randn(2, 5, 3), reward=torch.ones(2, 5, 1), done=flag, terminated=flag
        ... )
        >>> out = ImpalaLoss(actor, critic)(batch)
        >>> (out["loss_objective"] + out["loss_critic"] + out["loss_entropy"]).backward()
    """

    default_value_estimator: ClassVar[ValueEstimators] = ValueEstimators.VTrace
    _compares: ClassVar[bool] = True

    def __init__(  # noqa: PLR0913 - as elsewhere
        self,
        actor_network: nn.Module,
        critic_network: nn.Module,
        *,
        gamma: float = 0.99,
        lmbda: float = 1.0,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        entropy_bonus: bool = True,
        samples_mc_entropy: int = 1,
        entropy_coeff: EntropyCoeff = 0.01,
        critic_coeff: float = 0.5,
        loss_critic_type: str = "l2",
        separate_losses: bool = False,
        reduction: str | None = "mean",
    ) -> None:
        super().__init__(
            actor_network,
            critic_network,
            critic_coeff=critic_coeff,
            loss_critic_type=loss_critic_type,
            separate_losses=separate_losses,
            reduction=reduction,
        )
        self.entropy_coeff = check_entropy(entropy_coeff, samples_mc_entropy, type(self).__name__, bonus=entropy_bonus)
        self.samples_mc_entropy = samples_mc_entropy
        self.make_value_estimator(gamma=gamma, lmbda=lmbda, rho_thresh=rho_thresh, c_thresh=c_thresh)

    def _check_estimator(self, estimator: ValueEstimatorBase) -> None:
        if not isinstance(estimator, VTrace) or estimator.shifted or estimator.differentiable:
            raise SpecError(
                f"{type(self).__name__} takes VTrace without shifted and differentiable, got"
                f" {type(estimator).__name__}: it evaluates both networks itself. For another estimator use A2CLoss"
            )

    def _derive(self) -> Contract:
        contract, computed = super()._derive(), (self._keys["advantage"], self._keys["value_target"])
        return Contract(tuple(key for key in contract.reads if key.name not in computed), contract.writes)

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
            tensordict: the batch, ``[*B, T]``, in time order.

        Raises:
            ContractError: if a key that is read is absent, the batch is not in time order, or a step is terminated or
                truncated and not done.
            ShapeError: if shapes do not agree.
        """
        entries, mask = self.read(tensordict)
        keys, size, owner = self._keys, tensordict.batch_size, type(self).__name__
        estimator = self._estimators[0]
        assert isinstance(estimator, VTrace)
        raw, ended = (entry_of_team(tensordict, next_key(keys[name]), keys) for name in ("done", "terminated"))
        assert raw is not None  # it was read
        done, terminated = end_flags(tensordict, raw, ended, keys, mask, owner)
        time = estimator.find_time(tensordict, done)
        dist = self._actor(entries, size)
        log_pi = joint(dist.log_prob(taken(entries, keys["action"], size)))
        log_mu = joint(taken(entries, keys["sample_log_prob"], size)).detach()
        if log_pi.shape != size or log_mu.shape != size:
            raise ShapeError(
                f"{owner} got log-probabilities of shape {tuple(log_pi.shape)} from the actor and {tuple(log_mu.shape)}"
                f" under {keys['sample_log_prob']!r} for a batch of shape {tuple(size)}; expected the shape of the"
                " batch; a distribution with one for each dimension needs torch.distributions.Independent"
            )
        value, next_value = self._values(entries, size)
        with torch.no_grad():
            scores = log_pi.detach().unsqueeze(-1), log_mu.unsqueeze(-1)
            reward = entries[next_key(keys["reward"])]
            advantage, target = estimator.off_policy(
                *scores, value.detach(), next_value, reward, done, terminated, time
            )
        objective = policy_gradient(log_pi, advantage.squeeze(-1))
        loss_critic = reduce(distance(value, target, self.loss_critic_type), self.reduction, mask)
        loss_entropy, entropy = weighted_entropy(
            dist, self.entropy_coeff, self.samples_mc_entropy, self.reduction, mask
        )
        return TensorDict(
            {
                "loss_objective": reduce(objective, self.reduction, mask),
                "loss_critic": self.critic_coeff * loss_critic,
                "loss_entropy": loss_entropy,
                "entropy": mean_of(entropy.detach(), mask),
            }
        )

    def _values(self, entries: Entries, size: torch.Size) -> tuple[Tensor, Tensor]:
        """Values of the states before and after each step, the latter without gradient."""
        if not self._critic.states:
            (value,) = self._critic(entries, size)
            with torch.no_grad():
                return value, self._critic.after(entries, size)[0]
        (value,), after = self._critic.sequence(entries, size)
        with torch.no_grad():
            return value, self._critic.following(entries, after, size)[0]
