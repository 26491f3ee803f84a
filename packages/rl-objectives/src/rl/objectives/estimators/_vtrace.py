"""V-trace on TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import final

import torch
from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.core.contract import Contract, Key
from rl.core.errors import ShapeError
from rl.objectives import _foreign
from rl.objectives._batch.agents import read_entries
from rl.objectives._batch.mask import valid_steps, without_padding
from rl.objectives._networks.calls import ActorCall, actor_keys, input_key, joint_states
from rl.objectives._networks.composite import joint, listed, taken
from rl.objectives.estimators._base import ValueEstimatorBase
from rl.objectives.functional._vtrace import check_thresholds, vtrace_advantage_estimate

__all__ = ["VTrace"]


@final
@_foreign.vtrace
class VTrace(ValueEstimatorBase):
    """V-trace: off-policy returns of the current actor, from steps of an older one.

    Espeholt et al., "IMPALA: scalable distributed deep-RL with importance weighted actor-learner architectures", 2018,
    eq. 1.

    Reads the inputs of both networks, those of the value network under ``next`` too, ``action``, its log-probability
    at collection ``action_log_prob`` ``[*B, T]``, and ``("next", "reward")``, ``("next", "done")`` and ``("next",
    "terminated")`` ``[*B, T, 1]``; writes ``advantage``, ``value_target`` and ``state_value`` of that shape.

    Args:
        actor_network: policy with a distribution that gives log-probabilities ``[*B, T]``.
        gamma: discount, in [0, 1].
        lmbda: weight of longer returns, in [0, 1].
        rho_thresh: largest weight of a temporal difference; determines the policy whose values are the fixed point.
        c_thresh: largest weight of what follows, at most `rho_thresh`; determines the speed of convergence.
        value_network: writes ``state_value``; if None, the batch already holds it, and ``("next", "state_value")``.
        differentiable: whether gradients flow into the values and the log-probabilities.
        shifted: evaluate ``T + 1`` states instead of ``2 T``; see `ValueEstimatorBase`.
        time_dim: which batch dimension is time; if None, the one named ``time``, else the last.

    Raises:
        ContractError: if a network has no ``in_keys`` or ``out_keys``.
        SpecError: if a coefficient is outside [0, 1], or the thresholds are not ``0 <= c_thresh <= rho_thresh``.

    Example:
        >>> from tensordict import TensorDict
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
        >>> VTrace(actor_network=actor, value_network=critic)(batch)["advantage"].shape
        torch.Size([2, 5, 1])
    """

    needs_actor = True
    lmbda: float | Tensor
    actor_network: nn.Module

    def __init__(
        self,
        *,
        actor_network: nn.Module,
        gamma: float | Tensor = 0.99,
        lmbda: float | Tensor = 1.0,
        rho_thresh: float = 1.0,
        c_thresh: float = 1.0,
        value_network: nn.Module | None = None,
        differentiable: bool = False,
        shifted: bool = False,
        time_dim: int | None = None,
    ) -> None:
        check_thresholds(rho_thresh, c_thresh, type(self).__name__)
        super().__init__(
            gamma=gamma,
            value_network=value_network,
            differentiable=differentiable,
            shifted=shifted,
            time_dim=time_dim,
        )
        self._hold("lmbda", lmbda)
        self.rho_thresh, self.c_thresh = rho_thresh, c_thresh
        self._keys.update(actor_keys(actor_network))
        self.actor_network = actor_network
        self.derive_early()

    def _derive(self) -> Contract:
        super()._derive()
        actor = self.actor_network
        self._actor = ActorCall(actor)
        self._states = joint_states(
            type(self).__name__, actor, *([] if self.value_network is None else [self.value_network])
        )
        own = (
            *(
                input_key(key, self._states, "input of the actor")
                for key in self._actor.in_keys
                if key not in self._reads.in_keys
            ),
            *(Key(key, doc="action that was taken") for key in listed(self._keys["action"])),
            *(
                Key(
                    key,
                    (),
                    "log-probability of the action at collection, nats",
                    remedy="Build the actor with return_log_prob=True, or name the key with"
                    " set_keys(sample_log_prob=...)",
                )
                for key in listed(self._keys["sample_log_prob"])
            ),
        )
        return Contract((*self._reads.reads, *own), self._reads.writes)

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:
        """V-trace with the probability ratios of this batch."""
        contract, size = self.contract, tensordict.batch_size
        mask = valid_steps(tensordict, self._keys["mask"], type(self).__name__)
        leaves = without_padding(read_entries(contract, tensordict, self._keys, self), mask)
        entries = dict(zip(contract.in_keys, leaves, strict=True))
        dist = self._actor(entries, size)
        log_pi = joint(dist.log_prob(taken(entries, self._keys["action"], size)))
        log_mu = joint(taken(entries, self._keys["sample_log_prob"], size))
        if log_pi.shape != tensordict.batch_size or log_mu.shape != tensordict.batch_size:
            raise ShapeError(
                f"{type(self).__name__} got log-probabilities of shape {tuple(log_pi.shape)} from the actor and"
                f" {self._keys['sample_log_prob']!r} {tuple(log_mu.shape)} from a batch of shape"
                f" {tuple(tensordict.batch_size)}; expected the shape of the batch; a distribution with one"
                " log-probability for each dimension needs torch.distributions.Independent"
            )
        return partial(self.off_policy, log_pi.unsqueeze(-1), log_mu.unsqueeze(-1))

    def off_policy(
        self,
        log_pi: Tensor,
        log_mu: Tensor,
        value: Tensor,
        next_value: Tensor,
        reward: Tensor,
        done: Tensor,
        terminated: Tensor,
        time_dim: int,
    ) -> tuple[Tensor, Tensor]:
        """Advantage and value target, ``[*B, T, F]`` as all arguments are, log-probabilities included."""
        return vtrace_advantage_estimate(
            self.gamma,
            log_pi,
            log_mu,
            value,
            next_value,
            reward,
            done,
            terminated,
            rho_thresh=self.rho_thresh,
            c_thresh=self.c_thresh,
            lmbda=self.lmbda,
            time_dim=time_dim,
        )

    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Advantage and value target of on-policy steps, ``[*B, T, F]`` as all arguments are."""
        same = torch.zeros_like(reward)
        return self.off_policy(same, same, value, next_value, reward, done, terminated, time_dim)
