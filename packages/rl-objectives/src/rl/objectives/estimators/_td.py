"""Temporal difference estimators on TensorDicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

from torch import Tensor, nn

from rl.core.errors import UnsupportedError
from rl.objectives import _foreign
from rl.objectives.estimators._base import TDEstimatorBase, ValueEstimatorBase
from rl.objectives.functional._td import (
    td0_return_estimate,
    vec_td1_return_estimate,
    vec_td_lambda_return_estimate,
)

__all__ = ["TD0Estimator", "TD1Estimator", "TDLambdaEstimator", "check_td"]


@final
class TD0Estimator(TDEstimatorBase):
    """TD(0): one reward and the discounted value of the next state; steps may be in any order.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 6.2. Arguments and keys as for
    `ValueEstimatorBase`, shapes ``[*B, ...]``. Reads ``gamma`` ``[*B, 1]``, if it is there, in place of the argument:
    the discount after a multi-step return.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flag = torch.tensor([[False], [True]])
        >>> after = TensorDict(reward=torch.ones(2, 1), done=flag, terminated=flag, state_value=torch.ones(2, 1))
        >>> batch = TensorDict(state_value=torch.zeros(2, 1), next=after, batch_size=[2])
        >>> TD0Estimator(gamma=0.5)(batch)["value_target"].flatten()
        tensor([1.5000, 1.0000])
    """

    needs_time = False

    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:  # noqa: ARG002 - of the interface
        """The target, ``[*B, F]`` as all arguments are."""
        return td0_return_estimate(self.gamma, next_value, reward, terminated)

    def discounted(self, discount: Tensor | None) -> Callable[..., Tensor]:
        """`returns` with the discount of the batch, if it holds one."""
        if discount is None:
            return self.returns
        return lambda next_value, reward, _done, terminated, _time: td0_return_estimate(
            discount, next_value, reward, terminated
        )


@final
class TD1Estimator(TDEstimatorBase):
    """TD(1): all rewards to the end of the episode or batch, and the value of the last state.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 12.20 with lambda = 1. Arguments and keys as
    for `ValueEstimatorBase`.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flag = torch.tensor([[False], [True]])
        >>> after = TensorDict(reward=torch.ones(2, 1), done=flag, terminated=flag, state_value=torch.ones(2, 1))
        >>> batch = TensorDict(state_value=torch.zeros(2, 1), next=after, batch_size=[2])
        >>> TD1Estimator(gamma=0.5)(batch)["value_target"].flatten()
        tensor([1.5000, 1.0000])
    """

    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:
        """The target, ``[*B, T, F]`` as all arguments are."""
        return vec_td1_return_estimate(self.gamma, next_value, reward, done, terminated, time_dim=time_dim)


@final
@_foreign.td_estimator
class TDLambdaEstimator(TDEstimatorBase):
    """TD(lambda): n-step returns of all lengths, weighted by powers of lambda.

    Sutton and Barto, "Reinforcement learning: an introduction", 2018, eq. 12.20.

    Args:
        gamma: discount, in [0, 1].
        lmbda: weight of longer returns, in [0, 1].
        value_network: writes ``state_value``; if None, the batch already holds it, and ``("next", "state_value")``.
        differentiable: whether gradients flow into the values.
        shifted: evaluate ``T + 1`` states instead of ``2 T``; see `ValueEstimatorBase`.
        time_dim: which batch dimension is time; if None, the one named ``time``, else the last.

    Example:
        >>> import torch
        >>> from tensordict import TensorDict
        >>> flag = torch.tensor([[False], [True]])
        >>> after = TensorDict(reward=torch.ones(2, 1), done=flag, terminated=flag, state_value=torch.ones(2, 1))
        >>> batch = TensorDict(state_value=torch.zeros(2, 1), next=after, batch_size=[2])
        >>> TDLambdaEstimator(gamma=0.5, lmbda=0.0)(batch)["value_target"].flatten()
        tensor([1.5000, 1.0000])
    """

    lmbda: float | Tensor

    def __init__(
        self,
        *,
        gamma: float | Tensor = 0.99,
        lmbda: float | Tensor = 0.95,
        value_network: nn.Module | None = None,
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

    def returns(self, next_value: Tensor, reward: Tensor, done: Tensor, terminated: Tensor, time_dim: int) -> Tensor:
        """The target, ``[*B, T, F]`` as all arguments are."""
        return vec_td_lambda_return_estimate(
            self.gamma, self.lmbda, next_value, reward, done, terminated, time_dim=time_dim
        )


def check_td(estimator: ValueEstimatorBase, owner: str, *, one_step: bool) -> None:
    """Raise unless the target of an estimator needs only the values of the next states.

    Args:
        estimator: the estimator.
        owner: the loss, for messages.
        one_step: Whether the loss fits distributions, whose targets are one step.

    Raises:
        UnsupportedError: if it needs more.
    """
    if one_step and not isinstance(estimator, TD0Estimator):
        raise UnsupportedError(
            f"{owner} cannot use {type(estimator).__name__}: the target of a distribution is one step, TD0; for n steps"
            " store multi-step transitions (MultiStepTransform)"
        )
    if not isinstance(estimator, TDEstimatorBase):
        raise UnsupportedError(
            f"{owner} cannot use {type(estimator).__name__}, which needs the value of the policy at each state; it"
            " takes TD0, TD1, TDLambda, or a TDEstimatorBase"
        )
