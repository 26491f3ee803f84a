"""Generalized advantage estimation on TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensordict import TensorDictBase
from torch import Tensor, nn

from rl.objectives import _foreign
from rl.objectives._batch.agents import acting
from rl.objectives._batch.mask import fitted, learning_steps, mean_std, valid_steps
from rl.objectives.estimators._base import ValueEstimatorBase
from rl.objectives.functional._gae import vec_generalized_advantage_estimate

__all__ = ["GAE"]


@_foreign.estimator
class GAE(ValueEstimatorBase):
    """Generalized advantage estimation.

    Schulman et al., "High-dimensional continuous control using generalized advantage estimation", 2016, eq. 16.

    Reads the inputs of the value network, the same under ``next``, and ``("next", "reward")``, ``("next", "done")`` and
    ``("next", "terminated")`` ``[*B, T, 1]``; writes ``advantage``, ``value_target`` and ``state_value`` of that shape.
    Steps must be in time order. If trajectory ids, ``index`` or ``is_init`` show another order, the estimator raises; a
    flattened or shuffled batch without these entries is read as one sequence.

    Args:
        gamma: discount, in [0, 1].
        lmbda: weight of longer returns, in [0, 1]; 0 is the one-step TD error, 1 the sum of all rewards.
        value_network: writes ``state_value``; if None, the batch already holds it, and ``("next", "state_value")``.
        average_gae: whether the advantage, not `value_target`, is normalized to mean 0 and standard deviation 1 over
            the valid steps of the batch.
        differentiable: whether gradients flow into the values.
        shifted: evaluate ``T + 1`` states instead of ``2 T``; see `ValueEstimatorBase`.
        time_dim: which batch dimension is time; if None, the one named ``time``, else the last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> from tensordict.nn import TensorDictModule
        >>> critic = TensorDictModule(nn.Linear(3, 1), in_keys=["observation"], out_keys=["state_value"])
        >>> gae = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
        >>> flag = torch.zeros(2, 5, 1, dtype=torch.bool)
        >>> after = TensorDict(observation=torch.randn(2, 5, 3), reward=torch.ones(2, 5, 1), done=flag, terminated=flag)
        >>> batch = gae(TensorDict(observation=torch.randn(2, 5, 3), next=after, batch_size=[2, 5]))
        >>> batch["advantage"].shape, batch["value_target"].shape
        (torch.Size([2, 5, 1]), torch.Size([2, 5, 1]))
    """

    lmbda: float | Tensor

    def __init__(
        self,
        *,
        gamma: float | Tensor = 0.99,
        lmbda: float | Tensor = 0.95,
        value_network: nn.Module | None = None,
        average_gae: bool = False,
        differentiable: bool = False,
        shifted: bool = False,
        time_dim: int | None = None,
    ) -> None:
        super().__init__(
            gamma=gamma,
            value_network=value_network,
            differentiable=differentiable,
            shifted=shifted,
            time_dim=time_dim,
        )
        self._hold("lmbda", lmbda)
        self.average_gae = average_gae

    def estimate(
        self, value: Tensor, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int
    ) -> tuple[Tensor, Tensor]:
        """Advantage and value target, ``[*B, T, F]`` as all arguments are."""
        advantage, target = vec_generalized_advantage_estimate(
            self.gamma, self.lmbda, value, next_value, reward, done, terminated, time_dim=time_dim
        )
        return (self._scaled(advantage, None) if self.average_gae else advantage), target

    def formula(self, tensordict: TensorDictBase) -> Callable[..., tuple[Tensor, Tensor]]:
        """`estimate`, normalized over the valid steps."""
        mask = self.counted(tensordict) if self.average_gae else None
        if mask is None:
            return self.estimate

        def masked(*arguments: Any) -> tuple[Tensor, Tensor]:
            advantage, target = vec_generalized_advantage_estimate(
                self.gamma, self.lmbda, *arguments[:-1], time_dim=arguments[-1]
            )
            return self._scaled(advantage, mask), target

        return masked

    def counted(self, tensordict: TensorDictBase) -> Tensor | None:
        """Which elements mean and deviation are taken over: steps that count, ``[*B]``, or agents that act in them."""
        owner = type(self).__name__
        mask = acting(tensordict, self._agent_keys, valid_steps(tensordict, self._keys["mask"], owner), owner)
        learned = learning_steps(tensordict, owner)
        if learned is None or mask is None:
            return mask if learned is None else learned
        return mask & fitted(learned, mask)

    @staticmethod
    def _scaled(advantage: Tensor, mask: Tensor | None) -> Tensor:
        mean, std = mean_std(advantage, mask)
        return (advantage - mean) / std.clamp_min(1e-4)  # a constant advantage stays finite
