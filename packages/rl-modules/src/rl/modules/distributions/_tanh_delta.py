"""All mass on one point within bounds."""

from __future__ import annotations

from typing import Any

from torch import Size, Tensor
from torch.distributions import constraints

from rl.modules.distributions._base import check_bounds
from rl.modules.distributions._delta import Delta

__all__ = ["TanhDelta"]


class TanhDelta(Delta):
    """A deterministic action squashed into bounds: ``low + (high - low) * (tanh(param) + 1) / 2``.

    Where `low` equals `high`, that dimension is constant.

    Args:
        param: the point before squashing, ``[*B, A]``.
        low: lower bound, a number or a tensor that expands to ``[*B, A]``.
        high: upper bound, a number or a tensor that expands to ``[*B, A]``.
        event_dims: how many trailing dimensions make one action; no more than `param` has.
        atol: absolute tolerance of `log_prob`.
        rtol: relative tolerance of `log_prob`.
        validate_args: check parameters and values.

    Raises:
        SpecError: if `low` is above `high` or they are not finite (of tensors: only with `validate_args`).

    Example:
        >>> import torch
        >>> TanhDelta(torch.tensor([[0.0, 100.0]]), low=-2.0, high=2.0).sample()
        tensor([[0., 2.]])
    """

    def __init__(
        self,
        param: Tensor,
        low: float | Tensor = -1.0,
        high: float | Tensor = 1.0,
        event_dims: int = 1,
        atol: float = 1e-6,
        rtol: float = 1e-6,
        *,
        validate_args: bool = False,
    ) -> None:
        check_bounds("TanhDelta", low, high, validate_args=validate_args)
        tensors = isinstance(low, Tensor) or isinstance(high, Tensor)
        self.low, self.high = low, high
        point = param.tanh()
        if tensors or low != -1 or high != 1:
            point = point * ((high - low) / 2) + (high + low) / 2
        super().__init__(point, atol, rtol, event_dims=event_dims, validate_args=validate_args)

    @property
    def support(self) -> constraints.Constraint:
        """The box between the bounds: which of its points has the mass is data."""
        return constraints.independent(constraints.interval(self.low, self.high), self.event_dims)

    def expand(self, batch_shape: Any, _instance: Any = None) -> TanhDelta:
        """The same distribution with a larger batch shape."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.param = self.param.expand(Size(batch_shape) + self._event_shape)
        other._batch_shape = Size(batch_shape)
        return other
